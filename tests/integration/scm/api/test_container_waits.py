"""Why a container is not healthy: the same reasons in `explain`, the report and the page."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from scm.api.http_pages import HttpStatus
from scm.state.entities import CommandKind, OutcomeState
from scm.state.options import ScmOptions
from suture.runtime.call_thread_pool import CallThreadPool
from suture.runtime.exit_codes import ExitCode
from suture.runtime.loop import WorkerLoops
from tests.support.command_line import CommandLine
from tests.support.control.scm_world import ScmWorld, confirm, outcome, pass_time

OPTIONS = ScmOptions(heal_after_ms=0, check_interval_ms=1_000, exclude_failure_count=0)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """A control plane without datanodes."""
    with ScmWorld(tmp_path / "state", OPTIONS).running() as made:
        yield made


@pytest.fixture
def suture(world: ScmWorld, capsys: pytest.CaptureFixture[str]) -> Iterator[CommandLine]:
    """The command line, at a server in front of the control plane."""
    with world.served() as address:
        yield CommandLine(address, capsys)


def with_lost_replica(world: ScmWorld, *nodes: str) -> str:
    """Let one of three datanodes with container 1 report that its replica is gone; return it."""
    world.join(*nodes)
    confirm(world, *nodes)
    world.made_closed()
    lost = sorted(r.datanode_id for r in world.state.replicas.of(1))[0]
    world.beat(lost, full=True)
    return lost


def reasons(world: ScmWorld, suture: CommandLine) -> list[str]:
    """Return the reasons in the report, which `explain` and the page must repeat."""
    [wait] = suture.json_any("scm", "report")["waits"]
    explained = suture.json_any("explain", "1")["container"]["wait"]
    watched = HttpStatus(world.control, CallThreadPool(2, 4), WorkerLoops(), lambda: True)
    page = watched.page({}).body.decode()
    text = suture("explain", "1", code=ExitCode.TO_DO)

    assert wait == explained
    assert (1, "UNDER_REPLICATED") == (wait["container_id"], wait["condition"])
    assert 0 < wait["since_ms"] <= world.clock.now_ms()
    assert [True] * len(wait["reasons"]) == [reason in text for reason in wait["reasons"]]
    assert [True] * len(wait["reasons"]) == [reason in page for reason in wait["reasons"]]
    return [str(reason) for reason in wait["reasons"]]


def test_missing_datanode_is_the_reason_without_a_target(
    world: ScmWorld, suture: CommandLine
) -> None:
    lost = with_lost_replica(world, "dn1", "dn2", "dn3")
    alive = [node for node in ("dn1", "dn2", "dn3") if node != lost]
    world.clock.advance_s(61)
    pass_time(world, 2, *alive)

    assert ["no target: 2 datanodes take replicas, 3 needed"] == reasons(world, suture)
    watched = HttpStatus(world.control, CallThreadPool(2, 4), WorkerLoops(), lambda: True)
    metrics = watched.metrics().body.decode()
    assert re.search(r'suture_scm_waiting_containers\{reason="no_target"\} 1\.0', metrics)


def test_pending_copy_is_a_reason_before_and_after_it_is_sent(
    world: ScmWorld, suture: CommandLine
) -> None:
    with_lost_replica(world, "dn1", "dn2", "dn3")
    world.control.tick()
    [command] = world.state.commands.values()
    what = f"replicate on {command.datanode_id} to {command.target_id}"
    queued = reasons(world, suture)
    world.call(command.datanode_id)
    world.clock.advance_s(5)
    under_way = reasons(world, suture)

    assert [f"limited: {what} waits for earlier commands of the datanode"] == queued
    assert [f"under way: {what}, sent 5 s ago"] == under_way


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (("scm", "pause", "--kind", "copies"), "; copies are paused until resumed"),
        (("scm", "hold", "1"), "held: container, asked by an operator"),
        (("scm", "safemode", "--enter", "--yes"), "held by safe mode: entered by an operator"),
    ],
)
def test_order_of_an_operator_is_a_reason(
    world: ScmWorld, suture: CommandLine, order: tuple[str, ...], expected: str
) -> None:
    with_lost_replica(world, "dn1", "dn2", "dn3")
    world.control.tick()
    suture(*order, code=ExitCode.TO_DO if "safemode" in order else ExitCode.OK)

    found = [reason for reason in reasons(world, suture) if expected in reason]

    assert 1 == len(found)


def test_failed_copy_is_counted_and_delays_the_next_one(
    world: ScmWorld, suture: CommandLine
) -> None:
    with_lost_replica(world, "dn1", "dn2", "dn3")
    world.control.tick()
    [command] = world.state.commands.values()
    [(sent, _peers)] = world.call(command.datanode_id).commands
    world.beat(command.datanode_id, outcomes=(outcome(sent, OutcomeState.FAILED, code="BUSY"),))
    world.control.tick()

    assert "waits before another replicate, because the last one failed" in reasons(world, suture)
    assert world.control.commands.is_cooling(CommandKind.REPLICATE, 1)
    assert 1 == suture.json_any("explain", "1")["container"]["wait"]["try_count"]


def test_healthy_container_waits_for_nothing(world: ScmWorld, suture: CommandLine) -> None:
    world.join("dn1", "dn2", "dn3")
    confirm(world, "dn1", "dn2", "dn3")
    world.made_closed()
    pass_time(world, 2, "dn1", "dn2", "dn3")

    assert world.control.waits.of(1) is None
    assert [] == suture.json_any("scm", "report")["waits"]
    assert "wait" not in suture.json_any("explain", "1")["container"]
