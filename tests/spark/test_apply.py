"""Plans that `suture-verify` made of a real snapshot, handed over by `suture scm apply-plan`.

The control plane is real, behind a real server; only its datanodes are words in a test. Whoever is
asked sits at a real terminal.
"""

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agent.cli.change import apply as module
from agent.cli.inspect.scm_commands import scan_decision
from agent.cli.main import run
from scm.state.entities import CommandKind, Replica
from scm.state.options import ScmOptions
from spark_verify.pipeline import VerifyRequest, verify
from suture.runtime.exit_codes import ExitCode
from suture.wire.mapping import plan_file
from suture.wire.v1 import scm_pb2
from tests.support.command_line import CommandLine
from tests.support.control.scm_world import ScmWorld, replica
from tests.support.terminal import Terminal
from tests.support.verification.object_store import object_store, put

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.usefixtures("spark")]

NODES = ("dn1", "dn2", "dn3", "dn4")
OPTIONS = ScmOptions(stale_after_ms=1_000_000, dead_after_ms=2_000_000)
SURPLUS, SHORT, DIFFERENT = 1, 2, 3  # containers


@dataclass(frozen=True, slots=True)
class Stage:
    """A served control plane, and what it has ordered."""

    world: ScmWorld
    address: str

    def ordered(self) -> list[tuple[int, str]]:
        """Return what waits for datanodes, as container and kind."""
        commands = self.world.state.commands.values()
        return sorted((command.container_id, str(command.kind)) for command in commands)

    def change(self, *, findings: int) -> None:
        """Let one datanode report of the container that is short what a scan found."""
        held = self.world.state.replicas.of(SHORT)[0]
        self.world.beat(held.datanode_id, replace(held, finding_count=findings))


def build(world: ScmWorld) -> None:
    """Make three containers: of four replicas, of two, and of three that differ."""
    world.join(*NODES)
    for roots in ((7, 7, 7), (7, 7, 7), (7, 7, 8)):
        world.made_closed(roots=roots)
    held = {number: world.state.replicas.of(number) for number in (SURPLUS, SHORT, DIFFERENT)}
    now: dict[str, list[Replica]] = {
        node: [r for replicas in held.values() for r in replicas if r.datanode_id == node]
        for node in NODES
    }
    [spare] = set(NODES) - {r.datanode_id for r in held[SURPLUS]}
    one = held[SURPLUS][0]
    now[spare].append(replica(spare, container_id=SURPLUS, bcsid=one.bcsid))
    now[held[SHORT][0].datanode_id].remove(held[SHORT][0])
    for node in NODES:
        world.beat(node, *now[node], full=True)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of what the job makes of these containers."""
    path = tmp_path_factory.mktemp("plan")
    with ScmWorld(path / "scm", OPTIONS).running() as world:
        build(world)
        snapshot = world.control.queries.export_snapshot().path
    return verify(VerifyRequest(str(snapshot), path / "out")).directory


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """The same containers again, served, out of safe mode; nothing is decided by itself."""
    with ScmWorld(tmp_path / "scm", OPTIONS).running() as world, world.served() as address:
        build(world)
        world.control.safe_mode.leave()
        yield Stage(world, address)


@pytest.fixture
def suture(stage: Stage, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Return the command line."""
    return CommandLine(stage.address, capsys)


ALL = [
    (SURPLUS, "delete"),
    (SHORT, "replicate"),
    (DIFFERENT, "reconcile"),
    (DIFFERENT, "reconcile"),
    (DIFFERENT, "reconcile"),
]


def test_a_dry_run_shows_bytes_minutes_and_copies_of_every_row(
    suture: CommandLine, stage: Stage, plan: Path
) -> None:
    """The rows are a delete, a copy and a reconcile. No command is sent."""
    shown = {
        d["container_id"]: d
        for d in suture.json("scm", "apply-plan", str(plan), "--dry-run")["decisions"]
    }

    told = {
        number: (
            {order["type"] for order in decision["orders"]},
            decision["copies_before"],
            decision["copies_after"],
        )
        for number, decision in shown.items()
    }
    assert ({"delete"}, 4, 3) == told[SURPLUS]
    assert ({"replicate"}, 2, 3) == told[SHORT]
    assert ({"reconcile"}, 0, 3) == told[DIFFERENT]
    orders = [order for decision in shown.values() for order in decision["orders"]]
    assert {1_000} == {order["bytes"] for order in orders}
    assert [] == stage.ordered()


def test_the_plan_of_a_partial_run_is_called_so(
    stage: Stage, plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Before anything is done about it.
    """
    partial = shutil.copytree(plan.parent, tmp_path / "partial") / plan.name
    manifest = json.loads((partial / "manifest.json").read_text())
    (partial / "manifest.json").write_text(json.dumps(manifest | {"changed_nodes": ["dn1"]}))

    for directory, is_told in ((plan, False), (partial, True)):
        run(["scm", "apply-plan", str(directory), "--dry-run", "--scm", stage.address])
        told = "only containers with a replica on dn1 were verified" in capsys.readouterr().err
        assert is_told == told


def test_plan_of_another_result_version_is_refused(
    suture: CommandLine, plan: Path, tmp_path: Path
) -> None:
    """The error names both versions."""
    run = Path(shutil.copytree(plan, tmp_path / plan.name))
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps(manifest | {"result_version": 2}))

    answer = suture.json("scm", "apply-plan", str(run), "--dry-run", code=ExitCode.FAILED)

    assert "STALE_PLAN" == answer["error"]["code"]
    assert "result version 2, expected 3" in answer["error"]["message"]


def test_a_plan_is_taken_from_wherever_it_lies(suture: CommandLine, plan: Path) -> None:
    """
    By path, by address and from a store; an address with credentials is refused, and so is one
    where nothing is.
    """
    with object_store() as store:
        put(plan.parent, store.address("results"))
        there = store.address(f"results/{plan.name}")
        places = [str(plan), plan.as_uri(), there]
        shown = [
            suture.json("scm", "apply-plan", place, "--dry-run")["decisions"] for place in places
        ]
        missing = suture.json(
            "scm", "apply-plan", store.address("no"), "--dry-run", code=ExitCode.FAILED
        )
    keys = suture.json(
        "scm", "apply-plan", "s3://key:secret@bucket/x", "--dry-run", code=ExitCode.FAILED
    )

    assert 3 == len(shown[0])
    assert shown[0] == shown[1] == shown[2]
    assert "has no _SUCCESS" in missing["error"]["message"]
    assert "with credentials" in keys["error"]["message"]


def test_deleting_plan_without_a_terminal_is_refused(
    suture: CommandLine, stage: Stage, plan: Path
) -> None:
    """Without a terminal and without --yes, the whole plan is refused."""
    answer = suture.json("scm", "apply-plan", str(plan), code=ExitCode.FAILED)

    assert "--yes" in answer["error"]["hint"]
    assert [] == stage.ordered()


@pytest.mark.parametrize(("word", "code"), [("n", ExitCode.FAILED), ("y", ExitCode.OK)])
def test_answer_to_the_confirmation_decides_about_the_plan(
    word: str, code: ExitCode, stage: Stage, plan: Path
) -> None:
    """All rows are on the screen before the question. A no sends no command, and a yes sends the
    shown ones.
    """
    with Terminal(["scm", "apply-plan", str(plan), "--scm", stage.address]) as terminal:
        assert "the plan deletes 1 replica and does 2 other things" in terminal.shown
        for row in (r"delete on dn\d", r"replicate dn\d to dn\d", r"reconcile on dn\d"):
            assert re.search(row + r" 1000 B 0\.0 \d -> \d", terminal.shown), terminal.shown
        assert code == terminal.answer(word), terminal.shown
    assert (ALL if word == "y" else []) == stage.ordered()


def test_a_world_that_changed_while_somebody_thought_aborts_all(stage: Stage, plan: Path) -> None:
    """
    The change is about a container of which nothing is deleted: nothing at all is done.
    """
    with Terminal(["scm", "apply-plan", str(plan), "--scm", stage.address]) as terminal:
        stage.change(findings=1)

        assert ExitCode.FAILED == terminal.answer("y")

    assert 3 == terminal.shown.count("STALE_PLAN"), terminal.shown
    assert f"since this was shown changed {SHORT}" in terminal.shown
    assert [] == stage.ordered()


def test_shown_plan_is_applied_once_and_only_to_an_unchanged_world(
    suture: CommandLine, stage: Stage, plan: Path, tmp_path: Path
) -> None:
    """For programs, the output of the dry run takes the place of the screen."""
    shown = suture.json("scm", "apply-plan", str(plan), "--dry-run")["decisions"]
    (tmp_path / "shown").write_text(json.dumps({"schema": 1, "decisions": shown}))
    (tmp_path / "short").write_text(json.dumps({"schema": 1, "decisions": shown[1:]}))
    apply = ("scm", "apply-plan", str(plan), "--yes", "--expect")

    other = suture.json(*apply, str(tmp_path / "short"), code=ExitCode.FAILED)
    stage.change(findings=1)
    changed = suture.json(*apply, str(tmp_path / "shown"), code=ExitCode.FAILED)["decisions"]
    before = stage.ordered()
    stage.change(findings=0)
    given = suture.json(*apply, str(tmp_path / "shown"))["decisions"]
    late = suture.json(*apply, str(tmp_path / "shown"), code=ExitCode.FAILED)["decisions"]

    assert "MALFORMED_REQUEST" == other["error"]["code"]
    assert ["STALE_PLAN"] * 3 == [decision["code"] for decision in changed]
    assert [] == before
    assert ["OK"] * 3 == [decision["code"] for decision in given]
    assert ["STALE_PLAN"] * 3 == [decision["code"] for decision in late]
    assert ALL == stage.ordered()


def test_a_plan_of_several_calls_is_looked_at_whole_before_the_first(
    suture: CommandLine,
    stage: Stage,
    plan: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The changed container is in the second call. The first call is not made, and no row counts
    as done.
    """
    monkeypatch.setattr(module, "PLAN_ROWS", 1)
    shown = suture.json("scm", "apply-plan", str(plan), "--dry-run")["decisions"]
    (tmp_path / "shown").write_text(json.dumps({"schema": 1, "decisions": shown}))
    apply = ("scm", "apply-plan", str(plan), "--yes", "--expect", str(tmp_path / "shown"))
    stage.change(findings=1)

    changed = suture.json(*apply, code=ExitCode.FAILED)["decisions"]
    before = stage.ordered()
    stage.change(findings=0)
    given = suture.json(*apply)["decisions"]

    assert {"STALE_PLAN"} == {decision["code"] for decision in changed}
    assert [] == before
    assert ["OK"] * 3 == [decision["code"] for decision in given]
    assert ALL == stage.ordered()


def test_without_a_question_each_row_stands_for_itself(
    suture: CommandLine, stage: Stage, plan: Path
) -> None:
    """
    The victim has gone since the snapshot: its row is refused by name, the others are done.
    """
    [victim] = [
        order["datanode_id"]
        for decision in suture.json("scm", "apply-plan", str(plan), "--dry-run")["decisions"]
        for order in decision["orders"]
        if order["type"] == CommandKind.DELETE
    ]
    mine = [r for r in stage.world.state.replicas.values() if r.datanode_id == victim]
    stage.world.beat(victim, *[r for r in mine if r.container_id != SURPLUS], full=True)

    given = suture.json("scm", "apply-plan", str(plan), "--yes", code=ExitCode.FAILED)["decisions"]

    codes = {decision["container_id"]: decision["code"] for decision in given}
    assert {SURPLUS: "STALE_PLAN", SHORT: "OK", DIFFERENT: "OK"} == codes
    assert ALL[1:] == stage.ordered()


def with_scans(plan: Path, directory: Path) -> Path:
    """Return the same run with a scan of each replica of two containers in its plan."""
    run = Path(shutil.copytree(plan.parent, directory / "scans")) / plan.name
    (path,) = (run.parent / "plan" / plan.name).glob("attempt=*/part-*.parquet")
    table = pq.read_table(path, partitioning=None)
    scan = table.slice(0, 1).to_pylist()[0] | {"action": "scan", "priority": 9, "sources": []}
    rows = [
        scan | {"container_id": container_id, "targets": [node]}
        for container_id in (SHORT, DIFFERENT)
        for node in NODES
    ]
    pq.write_table(
        pa.Table.from_pylist(rows, schema=table.schema), path.with_name("part-9.parquet")
    )
    return run


class Made:
    """Counts the rows that were made for scans; for the rest it is the module of the messages."""

    def __init__(self) -> None:
        self.scans: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(scm_pb2, name)

    def PlanRow(self, **fields: Any) -> scm_pb2.PlanRow:
        self.scans.extend([fields["container_id"]] * (fields["action"] == "scan"))
        return scm_pb2.PlanRow(**fields)


def test_scans_are_made_when_they_are_asked_for_and_one_at_a_time(
    suture: CommandLine, plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A plan may have a million: not one is made for a plan that is refused as a whole, and of one
    that is looked at no more than have been asked for.
    """
    run, made, decided = with_scans(plan, tmp_path), Made(), list[int]()

    def deciding(*arguments: Any, **options: Any) -> scm_pb2.ContainerDecision:
        decided.append(len(made.scans))
        return scan_decision(*arguments, **options)

    monkeypatch.setattr(plan_file, "scm_pb2", made)
    monkeypatch.setattr(plan_file, "ROWS_PER_PAGE", 3)
    monkeypatch.setattr(module, "scan_decision", deciding)

    suture.json("scm", "apply-plan", str(run), code=ExitCode.FAILED)  # there is nobody to ask
    refused = list(made.scans)
    shown = suture.json("scm", "apply-plan", str(run), "--dry-run", code=ExitCode.FAILED)[
        "decisions"
    ]

    assert refused == []
    assert decided == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [SHORT] * 4 + [DIFFERENT] * 4 == [row["container_id"] for row in shown[3:]]
    assert {"OK", "STALE_PLAN"} == {row["code"] for row in shown[3:]}


def test_a_plan_whose_scans_cannot_be_read_is_refused_before_anything_is_ordered(
    suture: CommandLine, stage: Stage, plan: Path, tmp_path: Path
) -> None:
    """Scans come last and have files of their own. A damaged file is found before any command is
    sent.
    """
    run = with_scans(plan, tmp_path)
    (path,) = (run.parent / "plan" / run.name).glob("attempt=*/part-9.parquet")
    whole = path.read_bytes()
    group = pq.ParquetFile(path).metadata.row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    pages = {column.path_in_schema.partition(".")[0]: column for column in columns}
    for place in (pages["targets"].data_page_offset, pages["container_id"].data_page_offset):
        path.write_bytes(whole[:place] + bytes(8) + whole[place + 8 :])

        answer = suture.json("scm", "apply-plan", str(run), "--yes", code=ExitCode.FAILED)

        assert "cannot read the plan" in answer["error"]["message"]
        assert [] == stage.ordered()


def test_scans_that_were_shown_are_those_that_are_done(
    suture: CommandLine,
    stage: Stage,
    plan: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This holds for rows and scans. Rows that would not be executed are left out, and another
    plan is refused.
    """
    run = with_scans(plan, tmp_path)
    shown = suture.json("scm", "apply-plan", str(run), "--dry-run", code=ExitCode.FAILED)[
        "decisions"
    ]
    (tmp_path / "shown").write_text(json.dumps({"schema": 1, "decisions": shown}))
    (tmp_path / "short").write_text(json.dumps({"schema": 1, "decisions": shown[:-1]}))
    apply = ("scm", "apply-plan", str(run), "--yes", "--expect")
    asked = list[int]()

    def deciding(_: Any, row: scm_pb2.PlanRow, *, dry_run: bool) -> scm_pb2.ContainerDecision:
        assert not dry_run
        asked.append(row.container_id)
        return scm_pb2.ContainerDecision(container_id=row.container_id, code="OK")

    monkeypatch.setattr(module, "scan_decision", deciding)

    other = suture.json(*apply, str(tmp_path / "short"), code=ExitCode.FAILED)
    given = suture.json(*apply, str(tmp_path / "shown"))["decisions"]

    wanted = [row["container_id"] for row in shown if row["code"] == "OK"]
    assert "MALFORMED_REQUEST" == other["error"]["code"]
    assert wanted == [row["container_id"] for row in given]
    assert wanted[3:] == asked
    assert ALL == stage.ordered()
