"""Options of the whole test suite, and how several processes share it."""

import gc
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

gc.disable()  # until the tests are collected: imports make few cycles

# A shell lets what it runs in the background ignore Ctrl-C, and nohup that a terminal hangs up;
# processes pass that on.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# A child of a process that speaks gRPC may die before it becomes another program: gRPC's threads
# start again in it, and find their files closed (grpc/grpc#43055). Spark starts its JVM so.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

# How long an example takes says how busy the machine is, not whether a law holds.
busy = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("suture", busy)
settings.register_profile("quick", busy, max_examples=20)  # for make check
settings.load_profile("suture")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register what `pytest` can be told here."""
    parser.addoption(
        "--rewrite-golden",
        action="store_true",
        help="write what the code says into tests/golden; commit only what you can explain",
    )
    parser.addoption(
        "--known-skips",
        action="store_true",
        help="fail for a skip that tests/support/packaging/known_skips.py does not have",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Look at skips where that is asked for; of several processes, the one that hears of all."""
    if config.getoption("--known-skips") and not hasattr(config, "workerinput"):
        from tests.support.packaging.known_skips import KnownSkips

        config.pluginmanager.register(KnownSkips())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return how many processes `-n auto` starts."""
    from tests.support.workers import worker_count

    return worker_count(config.args)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Hand out whole scopes, the longest first."""
    from tests.support.workers import scheduler

    return scheduler(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest first where several processes share the suite."""
    if hasattr(config, "workerinput"):
        from tests.support.workers import turn_of

        items.sort(key=lambda item: turn_of(item.nodeid))


def pytest_collection_finish() -> None:
    """Take what was imported out of every later garbage collection."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """The one Spark session of all tests that verify, on two cores."""
    from tests.support.verification.java import skip_without_java
    from tests.support.verification.object_store import give_credentials

    skip_without_java()
    from spark_verify.session import open_session

    give_credentials()  # of the object store: Spark's workers have the environment of its start
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_LOCAL_DIRS", str(tmp_path_factory.mktemp("spark-local")))
        session = open_session(row_count=0, master="local[2]")
        yield session
        session.stop()


@pytest.fixture
def suture(cluster: object, capsys: pytest.CaptureFixture[str]) -> object:
    """The command line of the test's own `cluster`."""
    from tests.support.command_line import CommandLine

    return CommandLine(cluster.scm.address, capsys)  # type: ignore[attr-defined]
