"""Redis Streams through redis-py and hiredis: a consumer group, XREADGROUP and XACK."""

# pyright: reportUnknownMemberType=false
# redis-py is only partly typed.

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

import redis

from benchmarks.systems.base import Env, Store, System, Variant, Workload

if TYPE_CHECKING:
    from benchmarks.recorder import Recorder

BATCH = 500
BLOCK_MS = 50

_FSYNC = "in Redis memory (append-only file: fsync as the server is set)"
_BATCH = Variant(name="batch", confirmed=f"one XACK of {BATCH}; {_FSYNC}")
_EACH = Variant(name="each", confirmed=f"XACK each, pipelined a batch; {_FSYNC}", fraction=0.25)
_ONE_TRIP = Variant(
    name="one-trip", confirmed=f"XACK + XREADGROUP in one trip; {_FSYNC}", fraction=1 / 30, members=(1,)
)
_TWO_TRIPS = Variant(
    name="two-trips", confirmed=f"XACK, then XREADGROUP; {_FSYNC}", fraction=1 / 30, members=(1,)
)
_TURNS = Variant(name="one-trip", confirmed=_ONE_TRIP.confirmed, fraction=0.2, members=(1,))
_SERVE = Variant(name="each", confirmed=f"XACK each; {_FSYNC}")

_VARIANTS = {
    Workload.DRAIN: (_BATCH, _EACH),
    Workload.WINDOW1: (_ONE_TRIP, _TWO_TRIPS),
    Workload.FANOUT: (_SERVE,),
    Workload.TURNS: (_TURNS,),
    Workload.LATENCY: (_SERVE,),
    Workload.FIRST: (),
    Workload.FAILOVER: (),
    Workload.AMPLIFICATION: (),
}

#: Entries of one stream in a reply: (id, fields).
Entries = list[tuple[bytes, dict[bytes, bytes]]]


def entries_of(reply: object) -> Entries:
    """Take the entries of our one stream out of a reply of XREADGROUP in either protocol version."""
    if not reply:
        return []
    if isinstance(reply, dict):  # RESP3: {stream: [entries]}
        return next(iter(cast("dict[bytes, list[Entries]]", reply).values()))[0]
    return cast("list[tuple[bytes, Entries]]", reply)[0][1]


class RedisStreams(System):
    """A consumer of a consumer group on one stream."""

    name: ClassVar[str] = "redis"
    store: ClassVar[Store] = Store.REDIS

    @classmethod
    def variants(cls, workload: Workload) -> tuple[Variant, ...]:
        """Return the variants of a workload."""
        return _VARIANTS[workload]

    @classmethod
    def prepare(cls, env: Env, variant: str) -> None:  # noqa: ARG003
        """Create the group at the oldest entry."""
        with redis.Redis.from_url(env.redis) as client:
            client.xgroup_create(env.topic, env.group, id="0", mkstream=True)

    def __init__(self, env: Env, variant: str) -> None:
        """Make the client."""
        self._env = env
        self._variant = variant
        self._consumer = f"member-{env.member}"
        self._redis = redis.Redis.from_url(env.redis)

    def join(self) -> None:
        """Connect: a stream has no other way to join."""
        self._redis.ping()

    def _read(self, count: int, *, block_ms: int | None = BLOCK_MS) -> Entries:
        """Read up to ``count`` new entries; wait ``block_ms`` for the first one (None: do not wait)."""
        env = self._env
        reply: object = self._redis.xreadgroup(
            env.group, self._consumer, {env.topic: ">"}, count=count, block=block_ms
        )
        return entries_of(reply)

    def drain(self, recorder: Recorder) -> None:
        """Read batches of 500, acknowledge them at once or one by one."""
        topic, group, each = self._env.topic, self._env.group, self._variant == _EACH.name
        while recorder.more():
            entries = self._read(recorder.room(BATCH))
            if not entries:
                continue
            recorder.batch([fields[b"v"] for _, fields in entries])
            if each:
                pipe = self._redis.pipeline(transaction=False)
                for entry, _ in entries:
                    pipe.xack(topic, group, entry)
                pipe.execute()
            else:
                self._redis.xack(topic, group, *[entry for entry, _ in entries])

    def window1(self, recorder: Recorder) -> None:
        """Read one entry, acknowledge it, alone or in the same trip as the next read."""
        topic, group = self._env.topic, self._env.group
        entries = self._read(1)
        while recorder.more():
            if not entries:
                entries = self._read(1)
                continue
            entry, fields = entries[0]
            recorder.one(fields[b"v"])
            if self._variant == _TWO_TRIPS.name:
                self._redis.xack(topic, group, entry)
                entries = self._read(1, block_ms=None) if recorder.more() else []
                continue
            pipe = self._redis.pipeline(transaction=False)
            pipe.xack(topic, group, entry)
            if recorder.more():
                pipe.xreadgroup(group, self._consumer, {topic: ">"}, count=1)
            replies = pipe.execute()
            entries = entries_of(replies[1]) if len(replies) > 1 else []

    def serve(self, recorder: Recorder) -> None:
        """Read one entry, handle it, acknowledge it."""
        topic, group = self._env.topic, self._env.group
        while recorder.more():
            for entry, fields in self._read(1):
                recorder.handle(fields[b"v"])
                self._redis.xack(topic, group, entry)

    def close(self) -> None:
        """Close the connection."""
        self._redis.close()
