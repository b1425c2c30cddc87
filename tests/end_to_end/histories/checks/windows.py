"""I7: an application has at most a window of messages in its hands."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.end_to_end.histories.findings import Finding
from tests.end_to_end.histories.history import Delivery, History, Lost, Place, Token, Verdict


def check(history: History) -> Iterator[Finding]:
    """Members that had too much."""
    happened: defaultdict[str, list[tuple[int, int, Delivery | Verdict | Lost]]] = defaultdict(list)
    for delivery in history.deliveries:
        happened[delivery.member].append((delivery.at, 1, delivery))
    for verdict in history.verdicts:
        if verdict.kind != "extend":
            happened[verdict.member].append((verdict.called, 0, verdict))
    for lost in history.lost:
        happened[lost.member].append((lost.at, 0, lost))
    for attachment in history.attachments:
        hands: dict[tuple[Place, Token], Delivery] = {}
        # what was found to be lost when a delivery came was lost before it came, and is written down after
        gone = {(each.place, each.token) for each in history.lost if each.member == attachment.member}
        for _, _, item in sorted(happened[attachment.member], key=lambda each: each[:2]):
            if not isinstance(item, Delivery):
                hands.pop((item.place, item.token), None)
                continue
            hands[item.place, item.token] = item
            mine = [each for each in hands.values() if (each.place, each.token) not in gone]
            if len(mine) > attachment.window:
                text = (
                    f"{attachment.process} had {len(mine)} messages of {attachment.subscription} in its "
                    f"hands, and its window is {attachment.window}"
                )
                yield Finding(invariant="I7", kind="window exceeded", text=text, lines=history.tell(*mine))
                break
