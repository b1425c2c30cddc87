"""The stack of a test run, which tests stay together on one pytest worker, and which types are tried when.

Applications connect to Valkey as a user with the documented minimum (`kafkadur acl redis`): were it too
small, tests would fail. Tests that play the administrator use `stack.admin_redis`.
"""

import gc
import os
import re
import signal
import zlib
from collections import defaultdict
from collections.abc import Iterator

import hypothesis
import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from kafkadur.stack import Stack
from tests.one_stack import shared_stack

#: A type of subscriptions in the parameters of a test.
ANY_TYPE = re.compile("shared|exclusive|priority|serial|key-ordered")

# Brokers and Sparks of tests live for seconds: what an optimizing compiler costs them it never brings in.
os.environ.setdefault("KAFKADUR_BROKER_OPTS", "-XX:TieredStopAtLevel=1")
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
# The lines that a worker runs are counted (`make coverage`), not those of the processes that tests start.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.pop("COVERAGE_PROCESS_START", None)
# A shell that starts pytest in the background has it ignore Ctrl-C; processes that tests start must not.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes depends on what else the machine does, and says nothing about its result.
hypothesis.settings.register_profile("kafkadur", deadline=None)
hypothesis.settings.load_profile("kafkadur")

#: Files and folders whose tests share a Spark or a stack of their own: the tests of one run on one worker.
TOGETHER = (
    "tests/integration/coordinators/test_broker_restarts.py",
    "tests/integration/coordinators/test_definitions.py",
    "tests/integration/coordinators/test_two_servers.py",
    "tests/end_to_end/deploy/test_composed.py",
    "tests/end_to_end/examples/test_examples.py",
    "tests/end_to_end/gateway/",
    "tests/integration/faults/test_auto_creation.py",
    "tests/integration/gateway/test_cut_off.py",
    "tests/integration/faults/test_brokers.py",
    "tests/integration/faults/test_cluster.py",
    "tests/integration/faults/test_replica.py",
    "tests/integration/faults/test_sentinel.py",
    "tests/end_to_end/histories/test_histories.py",
    "tests/end_to_end/page/test_page.py",
    "tests/integration/rules/test_distributed.py",
    "tests/integration/security/",
    "tests/end_to_end/spark/",
    "tests/integration/subscriptions/test_broker_restarts.py",
    "tests/integration/subscriptions/test_faults.py",
    "tests/integration/subscriptions/test_levels.py",
    "tests/integration/subscriptions/test_reclaiming.py",
    "tests/integration/transactions/test_crashes.py",
    "tests/end_to_end/upgrade/test_upgrade.py",
)

#: Fixtures that every worker may have for itself, because they cost milliseconds.
CHEAP = {"kafkadur_admin", "kafkadur_stack", "raw_producer", "valkey", "certificates"}


@pytest.fixture(scope="session")
def kafkadur_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Provide a running stack, one broker and one Valkey, for the whole test run."""
    folder = tmp_path_factory.getbasetemp()
    with shared_stack(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) as stack:
        yield stack


class Scheduler(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no annotations for its users
    """Gives tests to workers one by one; those that share an expensive fixture all to one worker."""

    def _split_scope(self, nodeid: str) -> str:
        return together(nodeid) or nodeid

    def remove_node(self, node: WorkerController) -> str | None:
        """Give the unfinished tests of a worker to others, except the first: the worker crashed in it.

        xdist would run that test again, which may crash the next worker.
        """
        units: dict[str, dict[str, bool]] = self.assigned_work[node]
        left = [(unit, test) for unit in units.values() for test, finished in unit.items() if not finished]
        crashed = None
        if left:
            unit, crashed = left[0]
            unit[crashed] = True
        super().remove_node(node)
        return crashed

    def _reschedule(self, node: WorkerController) -> None:
        """Give a worker tests until it has two: a worker begins a test only when it knows the next one.

        xdist gives it one unit. All tests of that unit may be finished, if it is from a worker that crashed.
        """
        super()._reschedule(node)
        while self.workqueue and not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            self._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduler:
    """Distribute the tests of a run with several workers."""
    return Scheduler(config, log)


class FailuresAtOnce:
    """Names each failed test at once: all tests take a quarter of an hour and more."""

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print the name of a failed test, and the first line of its error."""
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            reason = "" if crash is None else f": {crash.message.splitlines()[0]}"
            self._reporter.write_line(f"\nFAILED {report.nodeid}{reason}")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Report failures at once where the results of all workers come together."""
    if not hasattr(session.config, "workerinput"):
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if isinstance(reporter, pytest.TerminalReporter):
            session.config.pluginmanager.register(FailuresAtOnce(reporter), "kafkadur-failures-at-once")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as long what only `make test-all` tries, and check that expensive fixtures are made once."""
    tests = [item for item in items if isinstance(item, pytest.Function)]
    for test in spared(tests):
        test.add_marker(pytest.mark.long)
    scattered = {test.nodeid.partition("::")[0] for test in tests if shares(test)}
    if missing := sorted(file for file in scattered if together(file) is None):
        raise pytest.UsageError(f"add to TOGETHER in tests/conftest.py: {', '.join(missing)}")


def pytest_collection_finish() -> None:
    """Have the garbage collector leave out the tests, which live as long as their process."""
    gc.collect()
    gc.freeze()


def together(place: str) -> str | None:
    """Return the entry of `TOGETHER` that a file or test belongs to."""
    return next((entry for entry in TOGETHER if place.startswith(entry)), None)


def shares(test: pytest.Function) -> bool:
    """Say whether a test shares an expensive fixture with others of its file or folder."""
    known = test._fixtureinfo.name2fixturedefs  # noqa: SLF001 - pytest has no public way to ask for scopes
    return any(
        found[-1].baseid and found[-1].scope != "function"
        for name, found in known.items()
        if name not in CHEAP
    )


def spared(tests: list[pytest.Function]) -> list[pytest.Function]:
    """Return the tests that repeat another one on real servers with another type of subscription.

    One type of each test is left; which one differs from test to test, so that together they try all types.
    """
    alike: defaultdict[str, list[pytest.Function]] = defaultdict(list)
    for test in tests:
        name, _, parameters = test.nodeid.partition("[")
        others = ANY_TYPE.sub("*", parameters)
        on_servers = {"kafkadur_stack", "own_stack"} & set(test.fixturenames)
        if others != parameters and on_servers and test.get_closest_marker("long") is None:
            alike[f"{name}[{others}"].append(test)
    return [
        test
        for name, repeated in alike.items()
        for number, test in enumerate(repeated)
        if number != zlib.crc32(name.encode()) % len(repeated)
    ]
