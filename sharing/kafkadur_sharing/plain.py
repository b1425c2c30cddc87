"""Text from elsewhere, made safe for a line of a log and for a terminal; nothing else lives here."""

from __future__ import annotations

import re
from typing import Final

#: Control characters, what ends a line, what turns the direction of writing, and halves of characters.
_ACTIVE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def plain(text: str, *, keep: str = "") -> str:
    r"""Return `text` with all that is not just read, but does something, as an escape such as \u001b.

    What is in `keep` stays. The escapes are those of JSON: what was JSON is still.
    """
    if text.isprintable():
        return text
    return _ACTIVE.sub(
        lambda found: found[0] if found[0] in keep else f"\\u{ord(found[0]):04x}",
        text,
    )
