"""Several processes can share the suite: what must stay together does, whatever is added."""

import ast
import subprocess
import sys
from pathlib import Path

from tests.support.workers import FIRST, TOGETHER, WORKERS, scope_of, turn_of, worker_count

ROOT = Path(__file__).resolve().parents[2]
FORKS = """
import subprocess
from concurrent.futures import ThreadPoolExecutor

import grpc

server = grpc.server(ThreadPoolExecutor(2))
channel = grpc.insecure_channel(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
server.start()
grpc.channel_ready_future(channel).result(60)
for _ in range(200):
    subprocess.run(["true"], preexec_fn=lambda: None, check=True)
"""


def marks(function: ast.FunctionDef) -> str:
    """Return the text of a function's decorators."""
    return " ".join(ast.unparse(decorator) for decorator in function.decorator_list)


def session_fixtures(conftest: Path) -> set[str]:
    """Return the names of the fixtures that live as long as the process."""
    functions = [
        node for node in ast.parse(conftest.read_text()).body if isinstance(node, ast.FunctionDef)
    ]
    return {function.name for function in functions if "scope='session'" in marks(function)}


def uses(path: Path, fixture: str) -> bool:
    """Return whether a file's tests use that fixture, and it has none of that name itself."""
    tree = ast.parse(path.read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    given = [one for one in functions if one.name.startswith("test") or "fixture" in marks(one)]
    own = {one.name for one in given if "fixture" in marks(one)}
    asked = {argument.arg for one in given for argument in one.args.args}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    named = {
        ast.literal_eval(name)
        for call in calls
        if ast.unparse(call.func) == "pytest.mark.usefixtures"
        for name in call.args
    }
    return fixture not in own and fixture in asked | named


def test_files_that_share_what_is_costly_share_a_process() -> None:
    """
    A session's fixture is made once per process: the files that use one are one scope.
    """
    users = {
        (fixture, path.relative_to(ROOT).as_posix())
        for conftest in sorted(ROOT.glob("tests/**/conftest.py"))
        for fixture in session_fixtures(conftest)
        for path in conftest.parent.rglob("test_*.py")
        if uses(path, fixture)
    }

    scopes = {(fixture, scope_of(path)) for fixture, path in users}
    assert {("spark", "one Spark session")} == scopes
    assert {path for _, path in users} == {path for paths in TOGETHER.values() for path in paths}


def test_a_process_that_speaks_grpc_starts_others() -> None:
    """The rule holds for every way to start a process. Spark's JVM is started by a fork of the
    process that ran the tests before it.
    """
    done = subprocess.run(
        [sys.executable, "-c", FORKS], capture_output=True, text=True, check=False
    )

    assert 0 == done.returncode, done.stderr[-2000:]


def test_other_files_stay_whole() -> None:
    """
    The tests of one file never run in two processes, of whatever class or parameter they are.
    """
    one = scope_of("tests/unit/agent/plan/test_reconcile_plan.py::TestLaws::test_a[x::y]")

    assert "tests/unit/agent/plan/test_reconcile_plan.py" == one
    assert one == scope_of("tests/unit/agent/plan/test_reconcile_plan.py::test_b")
    assert one != scope_of("tests/unit/agent/plan/test_tasks.py::test_b")


def test_the_longest_start_first() -> None:
    """Tests of several minutes must not start when the other processes are idle."""
    latest_first = (
        "unit/x",
        "property/x",
        "integration/x",
        "fault/x",
        "integration/test_demo",
        "spark/test_generated",
    )

    turns = [turn_of(f"tests/{file}.py::test_a") for file in latest_first]

    assert sorted(set(turns), reverse=True) == turns
    assert all((ROOT / first).exists() for first in FIRST if first.startswith("tests"))


def test_named_files_run_in_one_process() -> None:
    """A run of named files gets one process, and the whole suite several."""
    assert 0 == worker_count(["tests/packaging/test_workers.py::test_a", "tests/conftest.py"])
    assert WORKERS == worker_count(["tests"]) == worker_count(["tests/conftest.py", "tests/unit"])
