"""The examples of the pages on the Python API run, on real servers."""

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from kafkadur.stack import Stack
from kafkadur.testing.pytest_plugin import TopicFactory

API = Path(__file__).resolve().parents[3] / "docs" / "reference" / "api"
#: Pages whose examples start servers or Spark of their own; other tests start these.
ELSEWHERE = {"servers", "spark"}
TOPICS = ("orders", "bookings", "failed")


def code_of(page: Path) -> str:
    return "\n".join(re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE))


@pytest.mark.parametrize(
    "page",
    sorted(page for page in API.glob("*.md") if page.stem not in ELSEWHERE),
    ids=lambda page: page.stem,
)
async def test_examples_run(
    page: Path,
    kafkadur_stack: Stack,
    kafkadur_topic: TopicFactory,
    kafkadur_namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KAFKADUR_KAFKA", kafkadur_stack.kafka)
    monkeypatch.setenv("KAFKADUR_REDIS", kafkadur_stack.redis)
    monkeypatch.setenv("KAFKADUR_NAMESPACE", kafkadur_namespace)
    monkeypatch.setenv("KAFKADUR_JOURNAL_PARTITIONS", "1")  # 64 are created in a second
    code = code_of(page)
    assert code
    for topic in TOPICS:
        if f'"{topic}"' in code:
            code = code.replace(f'"{topic}"', f'"{kafkadur_topic(partitions=3)}"')
    compiled = compile(code, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    names: dict[str, Any] = {"__name__": "example"}
    running = eval(compiled, names)
    if inspect.isawaitable(running):
        await running
    for name in ("connection", "subscription"):
        if name in names and inspect.iscoroutinefunction(names[name].close):
            await names[name].close()  # the page leaves it open; closing again does nothing
