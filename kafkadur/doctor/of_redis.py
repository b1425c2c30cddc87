"""The checks of Redis: version, role, eviction, persistence, rights, clock, latency."""

from __future__ import annotations

import statistics
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Final

from redis import Redis
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from kafkadur.doctor.finding import Finding, Level, counted, failed, good, problem, timed, unknown, warning
from kafkadur.runtime.clients import coordinator_of
from kafkadur.settings import Settings
from kafkadur_coordinators.redis.access import COMMANDS, COMMANDS_OF_CLUSTERS
from kafkadur_coordinators.redis.cluster import SLOTS, SlotMap, slot_of
from kafkadur_coordinators.redis.link import OLDEST
from kafkadur_coordinators.redis.server import Address, open_server, shown
from kafkadur_sharing.errors import CoordinatorRefused, CoordinatorUnavailable

_OLDEST: Final = ".".join(map(str, OLDEST))
#: Part of the memory limit from which memory is short.
_FULL: Final = 0.8
#: Calls that measure the latency, and the most that the median may be, ms: each exchange of a member is one.
_CALLS: Final = 200
_SLOW_MS: Final = 5.0
#: How long a key of the trial lives, ms, if the user may not remove it.
_TRIED_MS: Final = 5_000
#: How far the clocks may differ, seconds: due times are in Redis's time, and are shown by this host's clock.
_SKEW_S: Final = 2.0

Info = Mapping[str, Any]


def look_at_redis(settings: Settings) -> Iterator[Finding]:
    """Yield the finding of every check; only the first if Redis refuses the connection."""
    if (refused := _reached(settings)) is not None:
        yield refused
        return
    yield good("redis connection", shown(settings.redis))
    slots = _slots(settings)
    if slots is None:
        yield from _look_at_server(settings)
        return
    yield judge_slots(slots)
    findings = {
        f"{node[0]}:{node[1]}": list(_look_at_server(settings, node, key=_key_on(slots, node)))
        for node in slots.nodes()
    }
    yield from together(findings)


def _look_at_server(
    settings: Settings, node: Address | None = None, key: str = "doctor"
) -> Iterator[Finding]:
    """Yield the finding of every check of one server; `node` as in `open_server`.

    `key` is in the names of the keys that are tried there.
    """
    with open_server(settings.redis, timeout=settings.redis_timeout.total_seconds(), node=node) as client:
        try:
            info: Info = client.info()
        except RedisError as error:
            yield unknown("redis server", str(error), "allow the command INFO (kafkadur acl redis)")
            info = {}
        if info:
            yield from judge(info)
        yield _rights(client, settings, key, in_cluster=node is not None)
        yield _clock(client)
        yield _latency(client)


def _slots(settings: Settings) -> SlotMap | None:
    """Return which node of the cluster serves which slots; None: there is one server, or it does not say."""
    coordinator = coordinator_of(settings)
    try:
        return coordinator.slots()
    except (CoordinatorRefused, CoordinatorUnavailable):
        return None
    finally:
        coordinator.close()


def _key_on(slots: SlotMap, node: Address) -> str:
    """Return a name whose slot a node serves."""
    return next(name for name in map("doctor{}".format, count()) if slots.node(slot_of(name)) == node)


def judge_slots(slots: SlotMap) -> Finding:
    """Return the finding about the slots of a cluster."""
    nodes = counted(len(slots.nodes()), "node")
    if slots.served() < SLOTS:
        state = f"{nodes}; {SLOTS - slots.served()} of {SLOTS} slots are not served"
        return problem("redis cluster", state, "repair the cluster: subscriptions of these slots stand still")
    return good("redis cluster", f"{nodes}, all slots are served")


def together(findings: Mapping[str, Sequence[Finding]]) -> Iterator[Finding]:
    """Yield the findings of several nodes, by node: one for each check that is good on all of them."""
    by_check: dict[str, list[tuple[str, Finding]]] = defaultdict(list)
    for node, some in findings.items():
        for finding in some:
            by_check[finding.check].append((node, finding))
    for check, found in by_check.items():
        wrong = [
            replace(each, state=f"{node}: {each.state}")
            for node, each in found
            if each.level is not Level.GOOD
        ]
        states = [each.state for _, each in found]
        if wrong:
            yield from wrong
        elif len(set(states)) == 1:
            yield good(check, f"each node: {states[0]}")
        else:
            yield good(check, "; ".join(f"{node}: {each.state}" for node, each in found))


def _reached(settings: Settings) -> Finding | None:
    """Return why no connection is possible (no answer, a password, TLS); None: it is possible."""
    coordinator = coordinator_of(settings)
    try:
        coordinator.connect()
    except CoordinatorUnavailable as error:
        return failed("redis connection", error)
    except CoordinatorRefused as error:
        try:  # the other checks find each reason of the refusal, unless the connection itself is refused
            with open_server(settings.redis, timeout=settings.redis_timeout.total_seconds()) as client:
                client.ping()
        except RedisError:
            return failed("redis connection", error)
    finally:
        coordinator.close()
    return None


def judge(info: Info) -> Iterator[Finding]:
    """Yield the findings about the server's INFO, as redis-py reads it."""
    yield _version(info)
    yield _role(info)
    yield from _memory(info)
    yield from _persistence(info)


def _version(info: Info) -> Finding:
    version = str(info.get("redis_version", "0"))
    own = info.get("valkey_version")
    state = f"Valkey {own}, as Redis {version}" if own else f"Redis {version}"
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        return problem("redis version", state, f"use Redis or Valkey {_OLDEST} or newer")
    return good("redis version", state)


def _role(info: Info) -> Finding:
    role = str(info.get("role", "master"))
    if role != "master":
        return problem("redis role", role, "name the master, or the Sentinels (redis+sentinel://)")
    where = "primary in a cluster" if int(info.get("cluster_enabled", 0)) else "master"
    return good("redis role", f"{where}, {counted(int(info.get('connected_slaves', 0)), 'replica')}")


def _memory(info: Info) -> Iterator[Finding]:
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if policy == "noeviction":
        yield good("redis eviction", policy)
    else:
        yield problem("redis eviction", policy, "set maxmemory-policy noeviction: state must not be evicted")
    used, most = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    state = f"{_mib(used)} of {_mib(most)}" if most else f"{_mib(used)}, no limit"
    if most and used > most * _FULL:
        yield warning("redis memory", state, "raise maxmemory: a full server grants no leases")
    else:
        yield good("redis memory", state)


def _persistence(info: Info) -> Iterator[Finding]:
    comes_again = "after a restart messages that were settled since the last checkpoint come again"
    if int(info.get("aof_enabled", 0)):
        yield good("redis persistence", "append-only file")
        if info.get("aof_last_write_status", "ok") != "ok":
            yield problem("redis disk", "the append-only file cannot be written", "make room on its disk")
        return
    yield warning("redis persistence", f"no append-only file: {comes_again}", "set appendonly yes")
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        yield problem("redis disk", "the last snapshot could not be written", "make room on its disk")


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"


# -- trials


def _rights(client: Redis, settings: Settings, key: str, *, in_cluster: bool) -> Finding:
    """Try every command that kafkadur uses, on keys that are removed afterwards."""
    check, own = "redis rights", f"{settings.prefix}:{settings.namespace}"
    denied: dict[str, None] = {}
    unusual: list[str] = []
    connection = client.connection_pool.make_connection()  # subscribing changes its mode
    try:
        for name, arguments in _tried(f"{own}:{{{key}}}:{uuid.uuid4().hex}", in_cluster=in_cluster):
            try:
                connection.send_command(*arguments)
                connection.read_response()
            except NoPermissionError:
                denied[name.replace("|", " ")] = None
            except ResponseError as error:
                unusual.append(f"{name.replace('|', ' ')}: {error}")
    except RedisError as error:
        return unknown(check, str(error), "look at the server's log")
    finally:
        connection.disconnect()
    if denied:
        remedy = f"set the user's rights: kafkadur acl redis --namespace {settings.namespace}"
        return problem(check, f"may not {', '.join(denied)}", remedy)
    if unusual:
        return problem(check, "; ".join(unusual), "let the server take these commands, under their own names")
    tried = len(COMMANDS) - (0 if in_cluster else len(COMMANDS_OF_CLUSTERS))
    return good(check, f"{tried} commands, keys and channels of {own}")


def _tried(key: str, *, in_cluster: bool) -> Iterator[tuple[str, list[str]]]:
    """Yield each command with harmless arguments; a key of the right type is made before its other commands.

    Nothing is left behind if only some commands are allowed: the string expires, and every member that was
    added to another key is removed.
    """
    text, fields, ranked = f"{key}:text", f"{key}:fields", f"{key}:ranked"
    calls: dict[str, list[str]] = {
        "ping": [],
        "asking": [],
        "cluster|slots": [],
        "time": [],
        "info": ["server"],
        "client|setinfo": ["LIB-VER", "0"],
        "script|load": ["return 1"],
        "eval": ["return 1", "0"],
        "evalsha": ["e0e1f9fabfc9d4800c877a703b823ac0578ff8db", "0"],  # of "return 1"
        "pubsub|shardnumsub": [key],
        "spublish": [key, "0"],
        "wait": ["0", "1"],
        "bitop": ["NOT", text, text],
        "setrange": [text, "0", ""],
        "set": [text, "0", "PX", str(_TRIED_MS)],
        "get": [text],
        "getrange": [text, "0", "0"],
        "setbit": [text, "0", "0"],
        "bitcount": [text],
        "bitpos": [text, "0"],
        "strlen": [text],
        "exists": [text],
        "rename": [text, text],
        "del": [text],
        "unlink": [text],
        "hset": [fields, "f", "0"],
        "hget": [fields, "f"],
        "hgetall": [fields],
        "hmget": [fields, "f"],
        "hlen": [fields],
        "hexists": [fields, "f"],
        "hdel": [fields, "f"],
        "zadd": [ranked, "0", "m"],
        "zrange": [ranked, "0", "0"],
        "zrem": [ranked, "m"],
        "ssubscribe": [key],
        "sunsubscribe": [key],
    }
    useless = () if in_cluster else COMMANDS_OF_CLUSTERS
    for name in sorted({*COMMANDS} - {*useless}, key=[*calls, *COMMANDS].index):
        yield name, [*name.split("|"), *calls[name]]
    # One of this pair may be forbidden.
    for name, arguments in (("unlink", [fields, ranked]), ("del", [fields, ranked])):
        yield name, [name, *arguments]


def _clock(client: Redis) -> Finding:
    before = time.time()
    try:
        seconds, micros = client.time()
    except RedisError as error:
        return unknown("redis clock", str(error))
    skew = int(seconds) + int(micros) / 1e6 - (before + time.time()) / 2
    state = f"{abs(skew):.3f} s {'ahead' if skew > 0 else 'behind'}"
    if abs(skew) > _SKEW_S:
        return warning("redis clock", state, "synchronise both clocks (NTP): due times are shown wrong")
    return good("redis clock", state)


def _latency(client: Redis) -> Finding:
    try:
        took = [timed(client.ping) for _ in range(_CALLS)]
    except RedisError as error:
        return unknown("redis latency", str(error))
    middle, slow = statistics.median(took), statistics.quantiles(took, n=100)[98]
    state = f"{middle:.2f} ms, 99th percentile {slow:.2f} ms"
    if middle > _SLOW_MS:
        return warning(
            "redis latency", state, "run Redis near its clients: each exchange waits for an answer"
        )
    return good("redis latency", state)
