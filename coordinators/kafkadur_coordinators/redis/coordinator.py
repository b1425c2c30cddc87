"""The coordinator on Redis or Valkey: sends scripts, turns replies into values and codes into errors.

One `RedisCoordinator` is used by one thread at a time. It never repeats a call that a server may have run:
the caller knows which call may be repeated (an exchange under its number) and which state a broken connection
leaves. `cluster.py` knows which server has a subscription's keys, `link.py` talks to it. The rules are in
`lua/`; `lifecycle.py` decides which members may attach.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, TypeVar, cast

import hiredis
import msgpack
from redis.exceptions import AskError, NoScriptError

from kafkadur_coordinators.interface import Inspection, Known
from kafkadur_coordinators.redis import scripts
from kafkadur_coordinators.redis.cluster import Listener, Place, Servers, SlotMap
from kafkadur_coordinators.redis.link import Link
from kafkadur_coordinators.redis.replies import inspection, known, text_of
from kafkadur_coordinators.redis.server import Address
from kafkadur_coordinators.redis.wire import (
    Active,
    DetachRequest,
    Held,
    InspectRequest,
    PauseRequest,
    Reply,
    Request,
    read_reply,
)
from kafkadur_sharing.errors import CoordinatorUnavailable, KafkadurError, StateLost

T = TypeVar("T")

#: Version of the shared state of new subscriptions, and that of the version before, which is understood, too.
STATE_VERSION, STATE_VERSION_BEFORE = 3, 1

#: One script call: name, keys, request.
Call = tuple[str, Sequence[str], Sequence[object]]
#: Script calls that are sent before the first reply is read.
_AT_ONCE = 200
#: Nodes of a cluster that may name another one before the call fails.
_REDIRECTIONS: Final = 5
#: The id of no member.
_NOBODY: Final = "-"

#: Told of every script call: script name, request, reply. For histories and tests; must not raise.
Recorder = Callable[[str, Sequence[object], Reply], None]


class Refusal(KafkadurError):
    """A script refused; `code` says why. Never reaches an application.

    It is a `KafkadurError`: an `except` clause for it must come before one for `KafkadurError`.
    """

    def __init__(self, reply: Reply) -> None:
        """Keep the code and the whole reply."""
        super().__init__(f"The coordinator answered {reply.code}.")
        self.code = reply.code
        self.reply = reply

    @property
    def active(self) -> Active:
        """The attached members; of the code ACTIVE alone."""
        return Active._make(self.reply.body)

    @property
    def held(self) -> Held:
        """The holder of the client id; of the code HELD alone."""
        return Held._make(self.reply.body)


@dataclass(frozen=True, kw_only=True, slots=True)
class SubscriptionAddress:
    """The keys of the state of one subscription: their prefix and hash tag."""

    prefix: str
    namespace: str
    tag: str

    @property
    def root(self) -> str:
        """The beginning of all its keys."""
        return f"{self.prefix}:{self.namespace}:{{{self.tag}}}:"

    def fixed(self) -> list[str]:
        """The seven keys of the subscription, in the order scripts take them (`lua/include/context.lua`)."""
        root = self.root
        names = ("def", "seal", "next", "members", "leases", "hungry", "watchers")
        return [root + name for name in names]

    def partition(self, subscription_id: str, state: str, partition: int) -> list[str]:
        """The three keys of a partition or lane of keys, in the order scripts take them.

        `state` names the state of all of them (`changes.py`): the topic's id, and how many lanes they have.
        """
        root = f"{self.root}{subscription_id}:{state}:{partition}:"
        return [root + "state", root + "bits", root + "runs"]

    def keys(self, subscription_id: str, state: str, partitions: Iterable[int]) -> list[str]:
        """The keys of the subscription and of these partitions, in the order scripts take them."""
        each = (self.partition(subscription_id, state, partition) for partition in partitions)
        return [*self.fixed(), *chain.from_iterable(each)]

    def channel(self, member: str) -> str:
        """The sharded channel on which a member listens."""
        return f"{self.root}c:{member}"

    def progress(self, member: str) -> str:
        """The key under which a holder writes its progress, for people (`holder_progress.py`)."""
        return f"{self.root}progress:{member}"


def pack(request: Sequence[object]) -> bytes:
    """Encode a request the way the scripts' msgpack reads it (no binary type)."""
    return cast("bytes", msgpack.packb(request, use_bin_type=False))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sent:
    """Calls to one server whose replies were not read yet."""

    link: Link
    connection: Any
    calls: Sequence[Call]
    #: their places among all calls that were sent together
    places: Sequence[int]


class RedisCoordinator:
    """Connections to the servers that hold the coordination state: one server, or the nodes of a cluster.

    Not thread-safe. Every method that talks to a server raises `CoordinatorUnavailable` when it does not
    answer within the time-out, and `CoordinatorRefused` when it cannot be used; a script's refusal is raised
    as `Refusal`.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 5.0,
        recorder: Recorder | None = None,
        clock: Callable[[], int] | None = None,
        state_version: int = STATE_VERSION,
        on_warning: Callable[[str], None] | None = None,
        listener: Listener | None = None,
    ) -> None:
        """Remember the address (`server.py`); connects at the first call.

        `timeout` in seconds bounds connecting and every call. `clock` (ms since the epoch) replaces the
        server's clock in scripts: for tests. `state_version`: of subscriptions that are
        created or rebuilt. `listener` is told which servers run scripts.
        """
        self._servers = Servers(
            url, timeout=timeout, on_warning=on_warning or (lambda _: None), listener=listener
        )
        #: calls whose replies were not read yet
        self._sent: Sequence[_Sent] = ()
        self._recorder = recorder
        self._clock = clock
        self.state_version = state_version

    # -- the connections

    def connect(self) -> None:
        """Connect and look at the server, or at one node of a cluster, unless that was done.

        Raises `CoordinatorRefused` if the server is too old or may evict state.
        """
        self._servers.connect()

    def reach(self) -> None:
        """Raise an error unless all servers answer now, also over connections that were made before."""
        for link in self._servers.everyone():
            link.command("PING")

    def close(self) -> None:
        """Close the connections for good."""
        self._servers.close()

    def command(self, name: str, *arguments: str | bytes | float, at: str | None = None) -> Any:  # noqa: ANN401 - a server's answer has any type
        """Send one plain command to the server that has the key or channel `at`, and return its answer.

        `at` None: the first argument is the key.
        """
        key = at or (str(arguments[0]) if arguments else "")
        return self._redirected(key, lambda link: link.command(name, *arguments))

    def replicate(self, key: str, replicas: int, *, patience_ms: int) -> bool:
        """Write `key`, and return whether so many replicas of its server have that write in time."""

        def at(link: Link) -> bool:
            link.command("SET", key, "1", "PX", 60_000)
            return int(link.command("WAIT", replicas, patience_ms)) >= replicas

        return self._redirected(key, at)

    def slots(self) -> SlotMap | None:
        """Return which node of the cluster serves which slots; None: there is one server."""
        return self._servers.slots()

    def node_of(self, key: str) -> Address | None:
        """Return the node that has a key, as far as is known, without a call.

        None: there is one server, or it is not known.
        """
        return self._servers.node_of(key)

    def server_of(self, key: str) -> Place:
        """Return the server that has a key, as far as is known."""
        link = self._servers.of(key)
        return Place(link.node, link.run_id)

    def _redirected(self, key: str, call: Callable[[Link], T], link: Link | None = None) -> T:
        """Return what `call` returns with the link to the server that has a key; `link` is asked first."""
        link = link or self._servers.of(key)
        for _ in range(_REDIRECTIONS):
            try:
                return call(link)
            except AskError as error:  # MovedError is one, too
                link = self._servers.follow(error, link)
        raise CoordinatorUnavailable(
            state="the nodes of the cluster name each other",
            owner=f"key {key}",
            remedy="wait until the nodes agree again; nothing is lost",
        )

    # -- scripts

    def run(self, name: str, keys: Sequence[str], request: Sequence[object]) -> Reply:
        """Run a script and return its reply, whatever its code."""
        link = self._servers.of(keys[0])
        try:
            raw = link.call(self._packed(link, name, keys, request))
        except NoScriptError:
            raw = self._evaluate(link, name, keys, request)
        except AskError as error:  # MovedError is one, too
            raw = self._evaluate(self._servers.follow(error, link), name, keys, request)
        return self._taken(name, request, raw)

    def _evaluate(self, link: Link, name: str, keys: Sequence[str], request: Sequence[object]) -> Any:  # noqa: ANN401 - a server's answer has any type
        """Run a script by its text, on a server that may not have it."""
        text, packed = self._script(name).text, pack(request)
        return self._redirected(
            keys[0], lambda at: at.command("EVAL", text, len(keys), *keys, packed, at.run_id), link
        )

    def _script(self, name: str) -> scripts.Script:
        return scripts.load(name, trusts_clock=self._clock is not None)

    def _packed(self, link: Link, name: str, keys: Sequence[str], request: Sequence[object]) -> bytes:
        # packed here: redis-py converts each argument in Python, which is a fifth of an exchange's cost
        # the number as text: hiredis crashes where a signal handler raises an exception while it makes one
        count = str(len(keys))
        arguments: Any = ("EVALSHA", self._script(name).sha, count, *keys, pack(request), link.run_id)
        return cast("bytes", hiredis.pack_command(arguments))  # the stub says: arguments of length one

    def _taken(self, name: str, request: Sequence[object], raw: list[Any]) -> Reply:
        """A reply as callers get it."""
        reply = read_reply(raw)
        if self._recorder is not None:
            self._recorder(name, request, reply)
        return reply

    def run_many(self, calls: Sequence[Call]) -> list[Reply]:
        """Run scripts one after the other without waiting in between; their replies, whatever the codes.

        Raises as `run`; then some may have run and others not.
        """
        replies: list[Reply] = []
        for first in range(0, len(calls), _AT_ONCE):
            self.begin_many(calls[first : first + _AT_ONCE])
            replies += self.finish_many()
        return replies

    def begin_many(self, calls: Sequence[Call]) -> None:
        """Send script calls; `finish_many` reads the replies. Calls in between use other connections."""
        servers: dict[int, Link] = {}
        places: dict[int, list[int]] = defaultdict(list)
        for place, (_, keys, _) in enumerate(calls):
            link = self._servers.of(keys[0])
            servers[id(link)] = link
            places[id(link)].append(place)
        sent: list[_Sent] = []
        try:
            for which, link in servers.items():
                some = [calls[place] for place in places[which]]
                for name in {call[0] for call in some} - link.loaded:
                    link.command("SCRIPT", "LOAD", self._script(name).text)
                    link.loaded.add(name)
                connection = link.send([self._packed(link, *call) for call in some])
                sent.append(_Sent(link=link, connection=connection, calls=some, places=places[which]))
        except BaseException:
            _drop(sent)
            raise
        self._sent = sent

    def finish_many(self) -> list[Reply]:
        """Wait for the replies to the calls sent last, whatever the codes; raises as `run`."""
        sent, self._sent = list(self._sent), ()
        found: dict[int, Reply] = {}
        moved: list[tuple[int, Call]] = []
        try:
            while sent:
                some = sent.pop(0)
                replies = some.link.receive(some.connection, len(some.calls))
                for place, call, raw in zip(some.places, some.calls, replies, strict=True):
                    if isinstance(raw, AskError):
                        moved.append((place, call))
                    else:
                        found[place] = self._taken(call[0], call[2], raw)
        except BaseException:
            _drop(sent)
            raise
        for place, call in moved:  # to the nodes that serve these keys now
            found[place] = self.run(*call)
        return [found[place] for place in sorted(found)]

    def call(self, name: str, keys: Sequence[str], request: Sequence[object]) -> Reply:
        """Run a script; raise `Refusal` unless it answers OK."""
        reply = self.run(name, keys, request)
        if reply.code != "OK":
            raise Refusal(reply)
        return reply

    def common(self, *, subscription_id: str = "", incarnation: int = 0, member: str = "") -> Request:
        """The beginning of every request."""
        clock = self._clock() if self._clock else 0
        return Request(self.state_version, clock, subscription_id, incarnation, member)

    # -- reading

    def peek(self, address: SubscriptionAddress, *, seen: int = 0) -> Known:
        """Return the state of a subscription; raises `Refusal` with MISSING, RESTARTED or VERSION.

        RESTARTED also if its incarnation is before `seen`: then this server holds an old copy.
        """
        reply = self.run("peek", address.fixed(), self.common(incarnation=-seen))
        if reply.code not in ("OK", "MISSING") or not reply.body:  # without a body: it is damaged
            raise Refusal(reply)
        found = known(reply)
        if reply.code == "MISSING" and found.changing_ms is None:
            raise Refusal(reply)
        return found

    def inspect(
        self, address: SubscriptionAddress, subscription_id: str, state: str, partitions: Iterable[int]
    ) -> Inspection:
        """State of partitions (at most 16 a call) and of all leases. Raises `Refusal`."""
        call = self.inspecting(address, subscription_id, state, partitions, leases=True)
        return inspection(self.call(*call))

    def inspecting(
        self,
        address: SubscriptionAddress,
        subscription_id: str,
        state: str,
        partitions: Iterable[int],
        *,
        leases: bool = False,
        token: str = "",
    ) -> Call:
        """The call that asks for the state of at most 16 partitions; `inspection` reads its reply.

        `token` is that of a rebuild.
        """
        wanted = list(partitions)
        keys = address.keys(subscription_id, state, wanted)
        common = self.common(subscription_id=subscription_id)
        return ("inspect", keys, [*common, *InspectRequest(wanted, int(leases), token)])

    def pause(self, address: SubscriptionAddress, subscription_id: str, *, paused: bool) -> None:
        """Pause a subscription, or let it go on; raises `Refusal` with the common codes."""
        common = self.common(subscription_id=subscription_id)
        self.call("pause", address.fixed(), [*common, *PauseRequest(int(paused))])

    def evict(self, address: SubscriptionAddress, subscription_id: str, member: str) -> None:
        """End the session of a member as if it had died; raises `Refusal` with the common codes."""
        common = self.common(subscription_id=subscription_id, member=member)
        self.call("detach", address.fixed(), [*common, *DetachRequest([], 1)])

    def sweep(self, address: SubscriptionAddress, subscription_id: str) -> None:
        """Look for members that died, as each member does; raises `Refusal` with the common codes.

        A member ends if its session has ended, or if it was silent at an earlier look, half a second ago.
        """
        common = self.common(subscription_id=subscription_id, member=_NOBODY)
        self.call("detach", address.fixed(), [*common, *DetachRequest([], 1)])

    def heard(self, channels: Sequence[str]) -> dict[str, bool]:
        """Return for each of these channels on one server whether a process listens on it."""
        reply = self.command("PUBSUB", "SHARDNUMSUB", *channels, at=channels[0])
        return {text_of(reply[i]): reply[i + 1] > 0 for i in range(0, len(reply), 2)}


def _drop(sent: Iterable[_Sent]) -> None:
    """Close connections whose replies nobody reads any more."""
    for some in sent:
        some.link.drop(some.connection)


def state_lost(display: str, detail: str) -> StateLost:
    """The error for state that could not be rebuilt in time."""
    return StateLost(
        state=detail,
        owner=f"subscription {display}",
        remedy="open the subscription again; delivery goes on from the mirrored floor",
    )
