"""`make docs`: the documentation as a site, in build/docs. A warning is an error.

The documents link to files of the checkout, so that they work wherever the checkout is browsed. Sphinx gets a
copy of them in which every file that is linked to is a page, and every README has a table of contents of the
pages that it links to.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.places import ROOT

DOCS = ROOT / "docs"
SOURCE = ROOT / "build" / "docs-source"
SITE = ROOT / "build" / "docs"

#: A link of Markdown to a file: what is before the path, the path, and its anchor.
_LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)\s]*)?\))")
#: Documents outside of docs/, and their pages.
_DOCUMENTS = {ROOT / "CHANGELOG.md": "changes.md", ROOT / "CONTRIBUTING.md": "contributing.md"}
#: The language of a file, for colours, by the end of its name.
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".ipynb": "json"}
#: The ends of names of files that are pages or pictures of the documents.
_PARTS = {".md", ".png", ".svg"}


def page_of(path: Path) -> str:
    """Return the path of the page for a file or folder of the checkout, below the site's source."""
    if path in _DOCUMENTS:
        return _DOCUMENTS[path]
    if path == DOCS / "decisions":
        return "decisions/README.md"
    if path.is_relative_to(DOCS) and path.suffix in _PARTS:
        return str(path.relative_to(DOCS))
    return f"files/{path.relative_to(ROOT)}.md"


def linked(text: str, folder: Path) -> Iterator[Path]:
    """Yield the files and folders of the checkout that a document in `folder` links to, in order."""
    for _, link, _ in _LINK.findall(text):
        path = (folder / link).resolve()
        if path.exists() and path.is_relative_to(ROOT):
            yield path


def rewritten(text: str, folder: Path, page: str) -> str:
    """Return the text of a document in `folder`, whose page is `page`, with links between pages."""

    def replace(match: re.Match[str]) -> str:
        path = (folder / match[2]).resolve()
        if not path.exists() or not path.is_relative_to(ROOT):
            return match[0]
        return f"{match[1]}{os.path.relpath(page_of(path), Path(page).parent)}{match[3]}"

    return _LINK.sub(replace, text)


def contents(text: str, folder: Path) -> str:
    """Return the tables of contents of a README: one for each row of its table, or one for all links."""
    rows = re.findall(r"^\| ([^|]+) \| (.*\]\(.*) \|$", text, re.MULTILINE)
    by_title = {title: list(linked(cell, folder)) for title, cell in rows if "](" not in title}
    parts = by_title or {"": list(linked(text, folder))}
    return "".join(
        "\n```{toctree}\n:hidden:\n"
        + (f":caption: {title}\n" if title else "")
        + "".join(f"\n{os.path.relpath(page_of(path), folder.relative_to(DOCS))}" for path in pages)
        + "\n```\n"
        for title, pages in parts.items()
    )


def shown(path: Path) -> str:
    """Return the page of a file or folder that is no document."""
    head = f"---\norphan: true\nnosearch: true\n---\n# {path.relative_to(ROOT)}\n\n"
    if path.is_dir():
        files = sorted(str(each.relative_to(path)) for each in path.rglob("*") if each.is_file())
        return head + "".join(f"- `{each}`\n" for each in files)
    text = path.read_text(encoding="utf-8").rstrip()
    return f"{head}`````{_LANGUAGES.get(path.suffix, 'text')}\n{text}\n`````\n"


def decisions() -> str:
    """Return the page that lists all decisions."""
    pages = sorted((DOCS / "decisions").glob("[0-9]*.md"))
    titles = {page: page.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ") for page in pages}
    lines = [f"- [{title}]({page.name})" for page, title in titles.items()]
    return "\n".join(["# Decisions", "", *lines, ""])


def stage() -> int:
    """Write the source of the site; return the number of its pages."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    texts = {path: path.read_text(encoding="utf-8") for path in (*DOCS.rglob("*.md"), *_DOCUMENTS)}
    pages = {page_of(path): rewritten(text, path.parent, page_of(path)) for path, text in texts.items()}
    folder = DOCS / "decisions"
    pages["decisions/README.md"] = decisions() + contents(decisions(), folder)
    for path, text in texts.items():
        if path.name == "README.md" and path.parent in (DOCS, DOCS / "reference" / "api"):
            pages[page_of(path)] += contents(text, path.parent)
        for target in linked(text, path.parent):
            page = page_of(target)
            if page.startswith("files/") and page not in pages:
                pages[page] = shown(target)
    for page, text in pages.items():
        place = SOURCE / page
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    for picture in (*DOCS.rglob("*.png"), *DOCS.rglob("*.svg")):
        shutil.copy(picture, SOURCE / picture.relative_to(DOCS))
    return len(pages)


def main() -> int:
    """Build the site; return the exit status."""
    from sphinx.cmd.build import build_main  # noqa: PLC0415 - the functions above need no Sphinx

    print(f"docs: {stage()} pages", flush=True)
    shutil.rmtree(SITE, ignore_errors=True)
    options = ["--fail-on-warning", "--keep-going", "--quiet", "--jobs", "auto"]
    status = build_main(
        [*options, "-b", "html", "-c", str(DOCS), "-d", str(SOURCE / ".doctrees"), str(SOURCE), str(SITE)]
    )
    if status == 0:
        shutil.copy(SITE / "README.html", SITE / "index.html")
        print(f"docs: {SITE.relative_to(ROOT) / 'index.html'}")
    return status


if __name__ == "__main__":
    sys.exit(main())
