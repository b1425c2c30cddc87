"""The parts of a link that both directions have: its capabilities, and its end with an error."""

from __future__ import annotations

from typing import Protocol

from proton import Condition, Endpoint, Link, Receiver, Terminus

from kafkadur.gateway.conditions import Refused


class LinkEngine(Protocol):
    """The part of the engine that a link uses."""

    writable: bool

    def soon(self) -> None:
        """Send what the link has said, in the next round of the loop."""

    def process(self) -> None:
        """Send it now."""


def refuse(link: Link, error: Refused) -> None:
    """End a link with an error. Before it was attached this refuses the attach.

    A null terminus says that there is no such node: else a client takes the link for attached.
    """
    if not link.state & Endpoint.LOCAL_ACTIVE:
        if isinstance(link, Receiver):
            link.source.copy(link.remote_source)
            link.target.type = Terminus.UNSPECIFIED
        else:
            link.source.type = Terminus.UNSPECIFIED
            link.target.copy(link.remote_target)
        link.open()
    link.condition = Condition(error.condition, error.description)
    link.close()


def capabilities_of(terminus: Terminus) -> frozenset[str]:
    """Return the capabilities that a client names: one symbol, or an array of them."""
    data = terminus.capabilities
    data.rewind()
    found: set[str] = set()
    while data.next() is not None:
        value = data.get_object()
        found |= {str(each) for each in value} if isinstance(value, list | tuple) else _symbols(value)
    return frozenset(found)


def _symbols(value: object) -> set[str]:
    elements = getattr(value, "elements", None)
    return {str(value)} if elements is None else {str(each) for each in elements}
