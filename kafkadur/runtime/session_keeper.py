"""Keeps the sessions of a connection's members, with few calls for many of them.

It renews those that have nothing to say, and looks whether the neighbours of members still listen. It belongs
to the coordinator thread.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from kafkadur.runtime.served import Served, fail_by_defect
from kafkadur_coordinators.redis.coordinator import Call, RedisCoordinator
from kafkadur_sharing.errors import KafkadurError

_log = logging.getLogger("kafkadur.coordinator")

#: Sessions that are to be renewed within this part of a session are renewed together.
_SOON = 1 / 8


class SessionKeeper:
    """Keeps the sessions of the members of one connection. None of its methods raises."""

    def __init__(self, coordinator: RedisCoordinator) -> None:
        """Talk to `coordinator`, in the thread that owns it."""
        self._coordinator = coordinator

    def renew(self, members: Iterable[Served], chosen: Iterable[Served]) -> None:
        """Renew the sessions of members that have nothing to say, with one round trip.

        When one of the members `chosen` is due, all that are due soon are renewed as well. Members make
        exchanges where that fails, or does not suffice.
        """
        now = time.monotonic()
        if not any(_suffices(served, now, now) for served in chosen):
            return
        quiet: list[tuple[Served, Call]] = []
        for served in members:
            if _suffices(served, now, now + served.member.session * _SOON):
                call = served.session.renewing()
                if call is not None:
                    quiet.append((served, call))
        try:
            replies = self._coordinator.run_many([call for _, call in quiet])
        except (KafkadurError, OSError) as error:  # their exchanges say what is wrong
            _log.debug("renewing sessions: %s", error)
            return
        except Exception:  # noqa: BLE001 - a defect: the other members are to be served
            _log.exception("renewing sessions met a defect")
            return
        for (served, _), reply in zip(quiet, replies, strict=True):
            if reply.code == "OK":
                served.member.renewal.made(now)
            else:
                served.member.renewal.failed()

    def look_at_neighbours(self, members: Iterable[Served]) -> None:
        """Look whether the neighbours of members still listen; a member reports a silent one."""
        #: by server: whose neighbours listen on which channel
        channels: defaultdict[object, dict[str, list[Served]]] = defaultdict(dict)
        for served in members:
            try:
                if neighbour := served.member.neighbour:
                    address = served.membership.subscription.address
                    on_server = channels[self._coordinator.node_of(address.root)]
                    on_server.setdefault(address.channel(neighbour), []).append(served)
            except KafkadurError:
                continue  # its server does not answer, which its exchange reports
            except Exception as error:  # noqa: BLE001 - any defect
                fail_by_defect(served.member, error)
        for on_server in channels.values():
            heard = self._heard(list(on_server))
            for channel, asking in on_server.items():
                if not heard.get(channel, True):
                    for served in asking:
                        served.member.report_silence()

    def _heard(self, channels: Sequence[str]) -> Mapping[str, bool]:
        """Return which channels of one server are listened to; empty where that is not known."""
        try:
            return self._coordinator.heard(channels)
        except (KafkadurError, OSError) as error:  # exchanges say what is wrong
            _log.debug("looking at neighbours: %s", error)
        except Exception:  # noqa: BLE001 - a defect: the other members are to be served
            _log.exception("looking at neighbours met a defect")
        return {}


def _suffices(served: Served, now: float, by: float) -> bool:
    """Whether a renewal by then is enough for a member; a defect fails only this member."""
    if served.detached or served.retry_at > now:
        return False
    try:
        return served.member.renewal.suffices(by)
    except Exception as error:  # noqa: BLE001 - any defect
        fail_by_defect(served.member, error)
        return False
