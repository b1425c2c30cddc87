"""Flame graphs: from what py-spy and perf write to pictures."""

from pathlib import Path

from benchmarks.flames import Frame, draw, of_perf, of_py_spy

PY_SPY = """\
_run_code (<frozen runpy>:88);<module> (flames.py:9);receive (/far/subscription.py:112);take (queue.py:3) 30
<module> (flames.py:9);receive (/far/subscription.py:115) 10
run (threading.py:900);rd_kafka_poll (librdkafka.so.1) 50
<module> (flames.py:2);_find_and_load (<frozen importlib._bootstrap>:1176);x (y.py:1) 99
"""

PERF = """\
valkey-server
\t    7f01 luaV_execute+0x12
\t    7f02 main

valkey-server
\t    7f01 luaV_execute
\t    7f02 main

valkey-server
\t    7f03 [unknown]
"""


def flat(root: Frame) -> dict[str, tuple[int, int, int]]:
    """Samples, samples to the left and depth of each frame."""
    return {frame.name: (frame.samples, left, depth) for frame, left, depth in root.rows()}


def test_stacks_of_py_spy() -> None:
    assert flat(of_py_spy(PY_SPY)) == {
        "Python": (90, 0, 0),
        "subscription.receive": (40, 0, 1),
        "queue.take": (30, 0, 2),
        "threading.run": (50, 40, 1),
        "librdkafka.rd_kafka_poll": (50, 40, 2),
    }


def test_stacks_of_perf() -> None:
    assert flat(of_perf(PERF)) == {
        "Redis": (2, 0, 0),
        "main": (2, 0, 1),
        "luaV_execute": (2, 0, 2),
    }


def test_the_picture_names_frames_and_leaves_out_narrow_ones(tmp_path: Path) -> None:
    root = Frame("all threads")
    root.add(["subscription.receive", "queue.take"], 900)
    root.add(["a.narrow_one"], 1)
    first, second = tmp_path / "first.svg", tmp_path / "second.svg"
    draw(root, "A picture", first)
    draw(root, "A picture", second)
    text = first.read_text(encoding="utf-8")
    assert text == second.read_text(encoding="utf-8")
    assert all(name in text for name in ("A picture", "all threads", "subscription.receive", "queue.take"))
    assert "narrow_one" not in text
