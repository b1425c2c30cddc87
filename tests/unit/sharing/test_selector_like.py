"""LIKE: patterns by example, against a table of all prefixes, and the work a match takes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kafkadur_sharing.selector_like import like


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("", [""], ["a", " "]),
        ("abc", ["abc"], ["ab", "abcd", "ABC", "xabc", ""]),
        ("12%3", ["123", "12993", "1233"], ["1234", "12", "0123"]),
        ("l_se", ["lose", "l\nse", "l😀se"], ["loose", "lse"]),
        ("%", ["", "a", "a\nb"], []),
        ("_", ["a", "%", "\n"], ["", "ab"]),
        ("__%", ["ab", "abc"], ["", "a"]),
        ("%%a%%", ["a", "bab"], ["", "b"]),
        ("%a_c%", ["abc", "aabbabc", "aacc"], ["abbc", "ac"]),
        ("a%a", ["aa", "aba", "aaa"], ["a", "ab"]),
        ("%ab%ab", ["abab", "xabxab"], ["ab", "aab", "ababx"]),
        ("a.*[b]", ["a.*[b]"], ["axxb", "ab"]),
    ],
)
def test_patterns(pattern: str, matching: list[str], other: list[str]) -> None:
    matches = like(pattern)
    assert [text for text in matching + other if matches(text)] == matching


@pytest.mark.parametrize(
    ("pattern", "escape", "matching", "other"),
    [
        (r"\_%", "\\", ["_foo", "_"], ["bar", "\\_"]),
        ("!%", "!", ["%"], ["a", "!", "!a"]),
        ("!!", "!", ["!"], ["!!"]),
        ("!a", "!", ["a"], ["!a"]),
        ("a%%b", "%", ["a%b"], ["ab", "axb"]),
        ("__a", "_", ["_a"], ["ba"]),
    ],
)
def test_escapes(pattern: str, escape: str, matching: list[str], other: list[str]) -> None:
    matches = like(pattern, escape)
    assert [text for text in matching + other if matches(text)] == matching


@pytest.mark.parametrize("pattern", ["!", "a!", "!!!"])
def test_an_escape_escapes_something(pattern: str) -> None:
    with pytest.raises(ValueError, match="ends with its escape"):
        like(pattern, "!")


def table_says(parts: list[str], text: str) -> bool:
    """Match by filling a table: does the part of the pattern up to i match that of the text up to j."""
    table = {(0, 0): True}
    for i, j in product(range(len(parts) + 1), range(len(text) + 1)):
        if i == 0:
            table[i, j] = j == 0
        elif parts[i - 1] == "any number":
            table[i, j] = table[i - 1, j] or (j > 0 and table[i, j - 1])
        else:
            fits = j > 0 and parts[i - 1] in {"any one", text[j - 1]}
            table[i, j] = fits and table[i - 1, j - 1]
    return table[len(parts), len(text)]


PARTS = st.sampled_from(["a", "b", "_", "%", "!", "any one", "any number"])


@given(parts=st.lists(PARTS, max_size=12), text=st.text("ab_%!", max_size=16))
def test_as_the_table_says(parts: list[str], text: str) -> None:
    written = {"any one": "_", "any number": "%", "_": "!_", "%": "!%", "!": "!!"}
    pattern = "".join(written.get(part, part) for part in parts)
    assert like(pattern, "!")(text) == table_says(parts, text)


@given(text=st.text(max_size=50))
def test_a_text_is_like_itself(text: str) -> None:
    escaped = "".join(f"!{char}" for char in text)
    assert like(escaped, "!")(text)
    assert like(f"%{escaped}%", "!")(f"xx{text}yy")
    assert like("_" * len(text))(text)


class Counted(str):
    """A text that counts the characters read from it."""

    __slots__ = ("reads",)

    def __iter__(self) -> Iterator[str]:
        self.reads = 0
        for char in super().__iter__():
            self.reads += 1
            yield char


@pytest.mark.parametrize("pattern", ["%a%a%a%a%a%a%a%a%b", "%a_a_a_a_b", "%" * 50 + "b", "%aaaaaaaaaaaab"])
def test_each_character_is_read_once(pattern: str) -> None:
    text = Counted("a" * 1000)
    assert not like(pattern)(text)
    assert text.reads == 1000


def test_reading_ends_when_nothing_can_match() -> None:
    text = Counted("b" * 1000)
    assert not like("a%")(text)
    assert text.reads == 1
