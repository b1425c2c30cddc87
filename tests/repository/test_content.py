"""Every file stands on its own: it names nothing outside the checkout and holds no half-done work.

Brackets in the patterns keep this file from finding itself.
"""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

#: Pattern by what is wrong with it.
FORBIDDEN = {
    "a folder of some machine": r"(?<![\w.])/(?:hom[e]|roo[t]|wor[k]|User[s])/\w",
    "a path out of the checkout": r"\.\./shar[e]d\b",
    "the tracker": r"\bissue[s]? #?\d",
    "the host of an index": r"pypi\.or[g]|pythonhoste[d]|repo1\.mave[n]|registry\.npmj[s]|maven\.or[g]",
    "who or what typed it": r"\bA[I]\b|\bLL[M]\b|[Cc]laud[e]|[Aa]nthropi[c]|[Cc]hat-?GP[T]|[Cc]opilo[t]",
    "work left undone": r"\b(?:TOD[O]|FIXM[E]|XX[X])\b|[Pp]laceholde[r] docstring",
    "an unfinished merge": r"^(?:<{7}|>{7}) ",
}

#: Generated lists of names, versions and sums: their text is not ours.
LISTS = {".lock"}


def files() -> list[Path]:
    """Return the files that are, or would be, committed."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        check=True, capture_output=True, text=True, cwd=ROOT,
    ).stdout  # fmt: skip
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def texts() -> Iterator[tuple[str, str]]:
    """Yield name and content of every text file."""
    for path in files():
        content = path.read_bytes()
        if b"\0" not in content:
            yield str(path.relative_to(ROOT)), content.decode()


def found(pattern: str, name: str, text: str) -> list[str]:
    """Return "file:line: text" for every line a pattern is found in."""
    return [
        f"{name}:{number}: {line.strip()}"
        for number, line in enumerate(text.splitlines(), 1)
        if re.search(pattern, line)
    ]


@pytest.mark.parametrize("wrong", FORBIDDEN)
def test_no_file_names(wrong: str) -> None:
    pattern = FORBIDDEN[wrong]
    lines = [
        line
        for name, text in texts()
        if Path(name).suffix not in LISTS
        for line in found(pattern, name, text)
    ]
    assert lines == []


@pytest.mark.parametrize("path", ["requirements.lock", "kafkadur/stack/kafka-jars.lock"])
def test_no_list_names_an_index(path: str) -> None:
    assert found(FORBIDDEN["the host of an index"], path, (ROOT / path).read_text()) == []


def test_links_in_documents_lead_somewhere() -> None:
    broken = [
        f"{name}: {link}"
        for name, text in texts()
        if name.endswith(".md")
        for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text)
        if not leads_inside((ROOT / name).parent / link)
    ]
    assert broken == []


def headings(page: Path) -> set[str]:
    """Return the anchors of a page, as they are made from its headings."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_anchors_in_documents_are_headings() -> None:
    broken = [
        f"{name}: {link}#{anchor}"
        for name, text in texts()
        if name.endswith(".md")
        for link, anchor in re.findall(r"\]\(([^)#:\s]*)#([^)\s]+)\)", text)
        if anchor not in headings((ROOT / name).parent / link if link else ROOT / name)
    ]
    assert broken == []


def test_every_document_is_linked() -> None:
    """From the README, or from a document that is linked itself; decisions by their folder."""
    pages = {name: text for name, text in texts() if name.endswith(".md")}
    linked, found = {"README.md"}, ["README.md", "CONTRIBUTING.md"]
    while found:
        page = found.pop()
        for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", pages.get(page, "")):
            target = ((ROOT / page).parent / link).resolve()
            if target.is_relative_to(ROOT) and (name := str(target.relative_to(ROOT))) not in linked:
                linked.add(name)
                found.append(name)
    orphans = [name for name in pages if not {name, str(Path(name).parent)} & linked]
    assert orphans == []


def leads_inside(path: Path) -> bool:
    """Say whether a path exists and lies in the checkout."""
    return path.exists() and path.resolve().is_relative_to(ROOT)


def test_every_python_file_says_what_lives_in_it() -> None:
    silent = [
        name for name, text in texts() if name.endswith(".py") and not re.match(r'(?:#.*\n)*r?"""\S', text)
    ]
    assert silent == []


def test_texts_of_sources_and_specifications_name_files_that_exist() -> None:
    """A file name in backticks or after "Modelled:" is one of the checkout."""
    names = {path.name for path in files()} | {"name.lua"}
    missing = [
        f"{name}: {file}"
        for name, text in texts()
        if name.startswith(("kafkadur/", "coordinators/", "sharing/", "spark/", "docs/internals/"))
        for file in re.findall(r"(?<![\w.])(?:[\w+.-]+/)*([\w+-]+\.(?:py|lua|lark|tla))\b(?!\()", text)
        if file not in names
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ("a folder of some machine", "see /ho" + "me/someone/x"),
        ("the tracker", "as iss" + "ue 7 says"),
        ("the host of an index", "https://py" + "pi.org/simple"),
        ("work left undone", "# TO" + "DO later"),
        ("an unfinished merge", "<<<" + "<<<< ours"),
    ],
)
def test_what_is_forbidden_is_found(wrong: str, line: str) -> None:
    assert found(FORBIDDEN[wrong], "file", f"first\n{line}\n") == [f"file:2: {line}"]
