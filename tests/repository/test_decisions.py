"""Every decision says its context, what was decided, and what follows from it."""

from pathlib import Path

import pytest

DECISIONS = Path(__file__).resolve().parents[2] / "docs" / "decisions"


@pytest.mark.parametrize("path", sorted(DECISIONS.glob("*.md")), ids=lambda path: path.stem)
def test_a_decision_has_context_decision_and_consequences(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    places = [text.find(f"**{part}") for part in ("Context", "Decision", "Consequences")]
    assert -1 not in places
    assert places == sorted(places)
