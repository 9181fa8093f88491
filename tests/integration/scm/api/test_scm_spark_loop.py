"""The loop with Spark, with a small program in Spark's place that writes what Spark would."""

import json
import os
import sys
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import pyarrow
import pyarrow.parquet
import pytest

from agent.cli.change.node_commands import report_text
from merkle.replica import ReplicaState
from scm.api.spark_loop import PAUSE_S_MIN, RUNS_KEPT, SparkLoop
from scm.state.entities import CommandKind
from scm.state.options import ScmOptions
from suture.runtime.loop import ProgressMarker, WorkerLoop
from suture.wire.mapping import plan_file
from suture.wire.v1 import scm_pb2
from tests.support.control.scm_world import ScmWorld, replica

PROGRAM = """
import json, pathlib, shutil, sys
snapshot, out = pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[4])
run = out / ("run_id=" + snapshot.name)
run.mkdir()
for table in pathlib.Path(sys.argv[1]).iterdir():
    shutil.copytree(table, out / table.name / run.name / "attempt=")
manifest = json.loads((snapshot / "manifest.json").read_text())
ids = {"snapshot_id": manifest["snapshot_id"], "run_id": "r", "result_version": 3}
(run / "manifest.json").write_text(json.dumps(ids))
(run / "_SUCCESS").touch()
(out / "arguments.json").write_text(json.dumps(sys.argv[5:]))
nodes = [word.split("=")[1] for word in sys.argv[8:]]
answer = {"path": str(run), "snapshot_id": manifest["snapshot_id"], "changed_nodes": nodes}
print(json.dumps(answer))
sys.exit(2)
"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """Four nodes, a container with two replicas that differ."""
    options = ScmOptions(stale_after_ms=1_000_000, dead_after_ms=2_000_000)
    with ScmWorld(tmp_path / "scm", options).running() as made:
        made.join("dn1", "dn2", "dn3", "dn4")
        made.made_closed(roots=(7, 7, 8))
        made.control.tick()
        yield made


def plan(directory: Path, world: ScmWorld) -> Path:
    """Write a plan: reconcile container 1, and delete a replica that is not to be deleted."""
    seen = [
        {
            "datanode_id": r.datanode_id,
            "state": str(r.state),
            "root": None if r.tree is None else r.tree.root,
        }
        for r in world.state.replicas.of(1)
    ]
    row = {"container_id": 1, "action": "reconcile", "reason": "roots differ", "expires_at_ms": 0}
    wrong = {
        **row,
        "action": "delete",
        "priority": 0,
        "sources": [],
        "targets": [seen[0]["datanode_id"]],
        "copies": 0,
        "is_forced": True,
    }
    scan = {**wrong, "action": "scan", "is_forced": False}
    reconcile = row | {"priority": 1, "replicas": seen}
    for name, rows in (("reconcile_plan", [reconcile]), ("plan", [wrong, scan])):
        (directory / name).mkdir(parents=True)
        table = pyarrow.Table.from_pylist(rows)
        pyarrow.parquet.write_table(table, directory / name / "part-0.parquet")
    return directory


REPORT = """\
Container Summary Report generated at 1970-01-01T00:00:01Z
==========================================================

Container State Summary
OPEN: 1
CLOSING: 0
QUASI_CLOSED: 0
CLOSED: 6
DELETING: 0
DELETED: 0
replicas RECOVERING: 2

Container Health Summary
UNDER_REPLICATED: 2
MIS_REPLICATED: 0
OVER_REPLICATED: 0
MISSING: 0
MISSING_UNDER_REPLICATED: 0
UNHEALTHY: 0
UNHEALTHY_UNDER_REPLICATED: 0
UNHEALTHY_OVER_REPLICATED: 0
EMPTY: 0
OPEN_UNHEALTHY: 0
QUASI_CLOSED_STUCK: 0
NEW_IN_A_LATER_SCM: 1
none of these: 4 of 7

First 2 UNDER_REPLICATED containers:
4, 7

First 1 NEW_IN_A_LATER_SCM containers:
9

Verification
rows of the plan: OK: 3, STALE_PLAN: 1"""


class Beats(ProgressMarker):
    """A pulse that is counted."""

    count = 0

    def mark(self) -> None:
        """Count."""
        self.count += 1
        super().mark()


def loop(
    world: ScmWorld,
    tmp_path: Path,
    program: str,
    *,
    deadline_s: float = 300.0,
    pulse: ProgressMarker | None = None,
) -> SparkLoop:
    """Build the loop around a program."""
    (tmp_path / "program.py").write_text(program)
    command = [sys.executable, str(tmp_path / "program.py")]
    if program == PROGRAM:
        command.append(str(plan(tmp_path / "plan", world)))
    (tmp_path / "runs").mkdir()
    return SparkLoop(
        world.control,
        command,
        tmp_path / "runs",
        interval_s=300.0,
        deadline_s=deadline_s,
        pulse=pulse or ProgressMarker(),
    )


def test_a_round_orders_what_the_plan_says_and_the_rules_confirm(
    world: ScmWorld, tmp_path: Path
) -> None:
    """The report has the number of refused rows and the reasons. Scans are scheduled by the
    datanodes.
    """
    loop(world, tmp_path, PROGRAM).verify_once(["dn3"])

    report = world.control.queries.report()
    assert {"OK": 1, "STALE_PLAN": 1} == report.verified.decisions
    assert {CommandKind.RECONCILE} == {c.kind for c in world.state.commands.values()}
    arguments = json.loads((tmp_path / "runs" / "arguments.json").read_text())
    assert ["--json", "--keep-runs", str(RUNS_KEPT), "--changed-node=dn3"] == arguments


def test_a_mass_of_scans_costs_a_round_no_memory(
    world: ScmWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a growing cluster the plan may list millions of scans, which the control plane does not
    need. Its own verification killed it for its memory in each round. The rows that it needs
    come in bounded calls, each row once.
    """
    monkeypatch.setattr(plan_file, "ROWS_PER_PAGE", 2)
    made = loop(world, tmp_path, PROGRAM)
    file = tmp_path / "plan" / "plan" / "part-0.parquet"
    wrong, scan = pyarrow.parquet.read_table(file).to_pylist()
    rows = pyarrow.Table.from_pylist([wrong, *[scan] * 20_000, wrong, wrong])
    pyarrow.parquet.write_table(rows, file)

    tracemalloc.start()
    try:
        made.verify_once()
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    verified = world.control.queries.report().verified
    assert ("", {"OK": 1, "STALE_PLAN": 3}) == (verified.error, verified.decisions)
    assert peak_bytes < 6 * 1024**2, peak_bytes


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('manifest["snapshot_id"], "changed', '"another", "changed', "the run of snapshot another"),
        ('"changed_nodes": nodes', '"changed_nodes": ["dn1"]', "on dn1, not on dn3"),
    ],
)
def test_a_run_of_something_else_is_not_applied(
    world: ScmWorld, tmp_path: Path, old: str, new: str, words: str
) -> None:
    """A result for another snapshot or other nodes does not answer the request."""
    made = loop(world, tmp_path, PROGRAM)
    program = tmp_path / "program.py"
    assert old in PROGRAM
    program.write_text(PROGRAM.replace(old, new))

    made.verify_once(["dn3"])

    assert words in world.control.queries.report().verified.error
    assert 0 == len(world.state.commands)


def test_a_program_that_fails_changes_nothing_and_is_reported(
    world: ScmWorld, tmp_path: Path
) -> None:
    """The next round is another try."""
    loop(world, tmp_path, "import sys; print('no java'); sys.exit(1)").verify_once()

    report = world.control.queries.report()
    assert "no java" in report.verified.error
    assert 0 == len(world.state.commands)


def test_last_stderr_lines_of_a_failed_program_are_reported_and_kept(
    world: ScmWorld, tmp_path: Path
) -> None:
    """On stderr Java prints why it did not start."""
    words = "import sys; print('one', 'two: no java', sep='\\n', file=sys.stderr); sys.exit(1)"
    made = loop(world, tmp_path, words)

    made.verify_once()

    assert "one | two: no java" in world.control.queries.report().verified.error
    assert "one\ntwo: no java\n" == made.log.read_text()


LASTS_S = 20
HANGING = f"""
import os, pathlib, sys, time
here = pathlib.Path(__file__).parent
(here / "pid").write_text(str(os.getpid()))
time.sleep({LASTS_S})
(here / "ended").touch()
"""


def test_a_program_that_hangs_is_ended_at_the_deadline(world: ScmWorld, tmp_path: Path) -> None:
    """Then the next round is another try; nothing of it is left, and it did not end by itself."""
    made = loop(world, tmp_path, HANGING, deadline_s=2)

    made.verify_once()

    assert "did not end in 2 s and was killed" in world.control.queries.report().verified.error
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    assert not (tmp_path / "ended").exists()


def test_a_stop_ends_the_program_and_begins_no_other(world: ScmWorld, tmp_path: Path) -> None:
    """The process that stops waits for no Spark, and leaves none behind."""
    made = loop(world, tmp_path, HANGING)
    round_ = Thread(target=made.verify_once)
    round_.start()
    deadline_s = time.monotonic() + 60
    while not (tmp_path / "pid").exists():
        assert time.monotonic() < deadline_s, "it does not begin"
        Event().wait(0.01)

    made.stop()
    round_.join(60)
    first = world.control.queries.report().verified.error
    (tmp_path / "pid").unlink()
    made.verify_once()

    assert "ended with -15" in first
    assert not (tmp_path / "ended").exists()
    assert "stopped" in world.control.queries.report().verified.error
    assert not (tmp_path / "pid").exists()


def test_spark_loop_beats_while_the_program_runs(world: ScmWorld, tmp_path: Path) -> None:
    """A Spark job of an hour is not a worker that hangs."""
    pulse = Beats()
    made = loop(world, tmp_path, HANGING, deadline_s=2, pulse=pulse)

    made.verify_once()

    assert pulse.count >= 2


def test_nodes_that_change_keep_it_busy_twice_a_minute_at_most(
    world: ScmWorld, tmp_path: Path
) -> None:
    """Nodes that change meanwhile are verified after the pause, and only those."""
    made = loop(world, tmp_path, PROGRAM)
    told = tmp_path / "runs" / "arguments.json"
    made._ran_at_s = time.monotonic() - PAUSE_S_MIN + 10
    made.step()
    early = told.exists()
    made._ran_at_s = time.monotonic() - PAUSE_S_MIN
    made.step()

    assert not early
    nodes = [f"--changed-node=dn{number}" for number in range(1, 5)]
    assert ["--json", "--keep-runs", str(RUNS_KEPT), *nodes] == json.loads(told.read_text())


@pytest.mark.parametrize("waited_s", [PAUSE_S_MIN, 1e9], ids=["of a node", "of all"])
@pytest.mark.parametrize("failing", ["raise SystemExit(1)", "print('null')"])
def test_changed_nodes_are_verified_after_a_failed_round(
    world: ScmWorld, tmp_path: Path, failing: str, waited_s: float
) -> None:
    """Otherwise the containers of a dead node would wait for a whole interval because a disk was
    full for a minute. A program that fails each time is started at most once per pause.
    """
    made = loop(world, tmp_path, PROGRAM)
    program, told = tmp_path / "program.py", tmp_path / "runs" / "arguments.json"
    program.write_text(failing)
    made._ran_at_s = time.monotonic() - waited_s
    WorkerLoop(made).run_step()
    program.write_text(PROGRAM)

    made._ran_at_s = time.monotonic() - PAUSE_S_MIN
    made.step()
    early = told.exists()
    made._ran_at_s = time.monotonic() - 2 * PAUSE_S_MIN
    made.step()

    assert not early
    nodes = [f"--changed-node=dn{number}" for number in range(1, 5)]
    assert ["--json", "--keep-runs", str(RUNS_KEPT), *nodes] == json.loads(told.read_text())
    assert [] == world.control.pop_changed_nodes()


def test_a_defect_is_noted_and_does_not_end_the_rounds(world: ScmWorld, tmp_path: Path) -> None:
    """The loop counts the unexpected error and continues."""
    made = loop(world, tmp_path, 'print(\'{"snapshot_id": 5, "changed_nodes": null}\')')
    around = WorkerLoop(made)
    made._ran_at_s = -1e9  # long ago: it is due

    wait_s = around.run_step()

    assert wait_s is not None
    assert wait_s > 0
    assert world.control.queries.report().verified.error


def test_w62_a_node_that_changed_is_verified_at_once_but_not_while_copies_wait(
    world: ScmWorld,
) -> None:
    """With something in the queues the notice is ignored."""
    assert ["dn1", "dn2", "dn3", "dn4"] == world.control.pop_changed_nodes()
    assert [] == world.control.pop_changed_nodes()
    for node in ("dn2", "dn3", "dn4"):  # two copies lack, and there is no node for them
        world.beat(node, full=True)
        world.control.nodes._live.pop(node)
    world.control.tick()

    assert [] == world.control.pop_changed_nodes()


def test_a_node_that_changed_is_not_waited_with_for_what_cannot_be_had(world: ScmWorld) -> None:
    """Copies for which there is no node wait for ever; after a round through all containers the
    verification looks at what the node's silence did to the others."""
    world.control.pop_changed_nodes()
    for node in ("dn2", "dn3", "dn4"):
        world.beat(node, full=True)
        world.control.nodes._live.pop(node)
    told = []
    for _ in range(3):
        world.control.tick()
        told.append(world.control.pop_changed_nodes())
        world.clock.advance_s(world.options.check_interval_ms / 1000 / 2)
    waiting = set(world.control.manager.under)

    assert waiting
    assert [[], [], ["dn2", "dn3", "dn4"]] == told


def test_the_report_counts_what_is_not_well(world: ScmWorld) -> None:
    """Samples name the first; the time is that of the last whole round."""
    before = world.control.queries.report()
    world.beat("dn1", full=True)
    world.beat("dn2", full=True)
    world.beat("dn3", full=True)
    world.beat("dn4", full=True)
    world.control.tick()

    report = world.control.queries.report()
    assert {} == before.conditions
    assert {"MISSING": (1, (1,))} == report.conditions
    assert 1 == sum(report.states.values())
    assert report.generated_at_ms == world.clock.now_ms()


def test_a_container_that_nothing_can_close_is_reported_as_stuck(world: ScmWorld) -> None:
    """None of its replicas has all that was committed; and an open one is no news."""
    blocks = world.write("a", "behind", 10)
    number = blocks[0].container_id
    world.control.clients.finish("a", close=True)
    for endpoint in blocks[0].replicas:
        node = endpoint.datanode_id
        late = replica(node, ReplicaState.QUASI_CLOSED, container_id=number, bcsid=0)
        world.beat(node, late)
    world.control.clients.allocate("b", [10])
    world.clock.advance_s(1)
    world.control.tick()

    found = world.control.queries.report().conditions

    assert (1, (number,)) == found.get("QUASI_CLOSED_STUCK")
    assert {"QUASI_CLOSED_STUCK", "MISSING"} >= set(found)


def test_the_report_has_the_sections_that_operators_know() -> None:
    """The order is states, problems with zeros, the rest, samples."""
    answer = scm_pb2.GetReportResponse(
        generated_at_ms=1_000,
        states={"CLOSED": 6, "OPEN": 1},
        conditions=[
            scm_pb2.ConditionSample(condition="UNDER_REPLICATED", count=2, container_ids=[4, 7]),
            scm_pb2.ConditionSample(condition="NEW_IN_A_LATER_SCM", count=1, container_ids=[9]),
        ],
        verified_at_ms=1,
        decisions={"OK": 3, "STALE_PLAN": 1},
        recovering_replica_count=2,
    )

    assert REPORT == report_text(answer)
