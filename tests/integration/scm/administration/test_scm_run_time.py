"""`suture scm pause`, `resume`, `limit`, `config` and `safemode --enter`: work at run time."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent.host.datanode_identity import DatanodeIdentity
from agent.host.heartbeat import HeartbeatWorker, RegistrationInfo
from agent.host.outbox import Outbox
from scm.administration.run_time_control import SettingRequest
from scm.api.http_pages import HttpStatus
from scm.api.server import build_server
from scm.api.service import ScmService
from scm.state.entities import CommandKind, ControlKind, WorkKind
from scm.state.options import ScmOptions
from suture.observe.audit import AuditLog
from suture.runtime.call_thread_pool import CallThreadPool
from suture.runtime.exit_codes import ExitCode
from suture.runtime.loop import WorkerLoops
from suture.wire.clients.scm import ScmClient
from tests.support.clock import FakeClock
from tests.support.command_line import CommandLine
from tests.support.control.heard_heartbeats import Replicas
from tests.support.control.scm_world import ScmWorld, confirm, pass_time

NODES = ("dn1", "dn2", "dn3", "dn4")
RACKS = ("/r1", "/r2")
HOUR_S = 3_600
MIB = 1024**2
OPTIONS = ScmOptions(heal_after_ms=0, check_interval_ms=1_000)
RESUME = SettingRequest(ControlKind.PAUSE, (WorkKind.COPIES,), is_removal=True)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """Four nodes on two racks, three of which have a container."""
    with ScmWorld(tmp_path / "state", OPTIONS).running() as made:
        made.join(*NODES, racks=RACKS)
        confirm(made, *NODES)
        made.made_closed()
        yield made


@pytest.fixture
def suture(
    world: ScmWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator[CommandLine]:
    """The command line, at a server in front of the control plane, with an audit log."""
    audit = AuditLog(tmp_path / "audit.log")
    with ThreadPoolExecutor(4) as executor:
        built = build_server(ScmService(world.control), "127.0.0.1:0", executor, audit=audit)
        built.server.start()
        yield CommandLine(built.address, capsys)
        built.server.stop(0).wait()
    audit.close()


def lose_one(world: ScmWorld) -> None:
    """Let a node report that its replica is gone, and let the control plane order a copy."""
    lost = sorted(r.datanode_id for r in world.state.replicas.of(1))[0]
    world.beat(lost, full=True)
    pass_time(world, 3)


def sent_after(world: ScmWorld, seconds: int) -> tuple[int, list[CommandKind]]:
    """Let time pass until a node receives commands, at most `seconds`. Return the time that passed,
    and the kinds of the commands."""
    for waited_s in range(0, seconds, 10):
        received = sent(world, *NODES)
        if received:
            return waited_s, received
        world.clock.advance_s(10)
        world.control.tick()
    return seconds, []


def sent(world: ScmWorld, *nodes: str) -> list[CommandKind]:
    """Return the kinds of the commands that these nodes receive now."""
    return [command.kind for node in nodes for command, _ in world.call(node).commands]


def test_paused_copies_wait_until_they_are_resumed(world: ScmWorld, suture: CommandLine) -> None:
    said = suture("scm", "pause", "--kind", "copies")
    lose_one(world)
    held = sent(world, *NODES)
    world.restart()
    world.join(*NODES, racks=RACKS)
    confirm(world, *NODES)
    pass_time(world, 3)
    held_after_restart = sent(world, *NODES)
    world.control.run_time.change(RESUME)

    assert "copies are paused until resumed\n" == said
    assert [] == held == held_after_restart
    assert [CommandKind.REPLICATE] == sent(world, *NODES)


def test_pause_ends_after_its_time_and_keeps_commands_that_wait_longer(
    world: ScmWorld, suture: CommandLine
) -> None:
    """A command that waited for an hour is sent, although an unsent command expires earlier."""
    suture("scm", "pause", "--kind", "copies", "--for", "1h")
    lose_one(world)
    [command] = world.state.commands.values()
    waited_s, received = sent_after(world, HOUR_S + 60)

    assert [CommandKind.REPLICATE] == received
    assert HOUR_S - 10 <= waited_s <= HOUR_S
    assert command.command_id in {c.command_id for c in world.state.commands.values()}
    assert "nothing is paused or limited\n" == suture("scm", "resume")


def test_pause_on_a_rack_concerns_commands_from_and_to_its_datanodes(
    world: ScmWorld, suture: CommandLine
) -> None:
    lose_one(world)
    [command] = world.state.commands.values()
    racks = {
        node.rack
        for node in world.state.nodes.values()
        if node.datanode_id in {command.datanode_id, command.target_id}
    }
    held = {}
    for rack in RACKS:
        suture("scm", "pause", "--kind", "copies", "--rack", rack)
        held[rack] = world.control.commands.pause_of(command) is not None
        suture("scm", "resume", "--kind", "copies", "--rack", rack)

    assert {rack: rack in racks for rack in RACKS} == held
    refused = suture("scm", "pause", "--rack", "/nowhere", code=ExitCode.FAILED)
    assert "" == refused


@pytest.mark.parametrize(
    ("kind", "paused"),
    [
        ("copies", {CommandKind.REPLICATE, CommandKind.RECONSTRUCT}),
        ("deletes", {CommandKind.DELETE, CommandKind.DELETE_BLOCKS}),
        ("reconciles", {CommandKind.RECONCILE}),
    ],
)
def test_pause_holds_the_commands_of_its_kind_only(
    world: ScmWorld, suture: CommandLine, kind: str, paused: set[CommandKind]
) -> None:
    suture("scm", "pause", "--kind", kind)
    with world.state.change() as change:
        for each in CommandKind:
            world.control.commands.queue(change, each, 1, "dn1", why="a test")

    found = {
        command.kind
        for command in world.state.commands.values()
        if world.control.commands.pause_of(command) is not None
    }

    assert paused == found


def test_pause_is_shown_by_status_and_the_page_and_is_audited(
    world: ScmWorld, suture: CommandLine, tmp_path: Path
) -> None:
    suture("scm", "pause", "--kind", "reconciles")
    watched = HttpStatus(world.control, CallThreadPool(2, 4), WorkerLoops(), lambda: True)

    text = "reconciles are paused until resumed"
    assert [text] == suture.json_any("status")["containers"]["settings"]
    assert text in watched.page({}).body.decode()
    [line] = (tmp_path / "audit.log").read_text().splitlines()
    entry = json.loads(line)
    assert ("ChangeSettings", "OK", "pause") == (
        entry["action"],
        entry["result"],
        entry["control"],
    )
    assert ["reconciles"] == entry["works"]


def test_limits_reach_the_datanodes_with_a_heartbeat(world: ScmWorld, suture: CommandLine) -> None:
    """The limit of the cluster is divided among the four datanodes; the lower limit counts."""
    heard: list[tuple[int, int]] = []
    suture("scm", "limit", "copies", "--per-datanode", "50MiB/s", "--cluster", "100MiB/s")
    said = suture("scm", "limit", "reconciles", "--per-datanode", "10MiB/s")
    with ScmClient(suture.scm) as client:
        who = DatanodeIdentity("dn1", world.state.cluster_id, "1", 42)
        beat = HeartbeatWorker(
            client,
            Replicas(0),
            RegistrationInfo(who, "dn1:9859", "/r1"),
            lambda *_: None,
            FakeClock(),
            outbox=Outbox(),
            on_rates=lambda *rates: heard.append(rates),
        )
        beat.step()
        suture("scm", "limit", "copies", "--per-datanode", "none", "--cluster", "none")
        beat.step()

    assert [(25 * MIB, 10 * MIB), (0, 10 * MIB)] == heard
    assert "copies are limited to 100MiB/s in the cluster" in said
    assert "reconciles are limited to 10MiB/s per datanode" in said


def test_settings_are_printed_with_all_their_facts(world: ScmWorld, suture: CommandLine) -> None:
    now_ms = world.clock.now_ms()
    limited = suture.json("scm", "limit", "reconciles", "--windows", "01:00-02:00")
    found = suture.json("scm", "pause", "--kind", "balancing", "--rack", "/r2", "--for", "1h")
    ended = suture.json("scm", "resume", "--kind", "balancing", "--rack", "/r2")

    windows = {
        "control": "windows",
        "work": "reconciles",
        "rack": "",
        "value": "01:00-02:00",
        "since_ms": now_ms,
        "until_ms": 0,
        "text": "reconciles run only in 01:00-02:00 (UTC)",
    }
    pause = {
        "control": "pause",
        "work": "balancing",
        "rack": "/r2",
        "value": "",
        "since_ms": now_ms,
        "until_ms": now_ms + HOUR_S * 1000,
        "text": "balancing is paused on /r2 until 1970-01-01 01:16:40 UTC",
    }
    assert [windows] == limited["settings"]
    assert [pause, windows] == found["settings"]
    assert [windows] == ended["settings"]


def test_copies_are_sent_only_in_their_windows(world: ScmWorld, suture: CommandLine) -> None:
    """The window begins two minutes after the present time."""
    start_s = world.clock.now_ms() / 1000
    day = ("thu", "fri", "sat", "sun", "mon", "tue", "wed")[int(start_s // 86_400) % 7]
    minute = int(start_s // 60) % 1440 + 2
    begin = f"{minute // 60:02}:{minute % 60:02}"
    suture("scm", "limit", "copies", "--windows", f"{day} {begin}-24:00")
    lose_one(world)
    held = sent(world, *NODES)
    waited_s, received = sent_after(world, 200)

    assert [] == held
    assert [CommandKind.REPLICATE] == received
    assert 60 <= waited_s <= 120


@pytest.mark.parametrize("bad", ["5x", "mon 25:00-26:00", "mon 10:00-10:00", "someday 1-2"])
def test_invalid_limit_is_rejected(suture: CommandLine, bad: str) -> None:
    suture("scm", "limit", "copies", "--windows", bad, code=ExitCode.USAGE)
    suture("scm", "limit", "copies", "--per-datanode", bad, code=ExitCode.USAGE)
    suture("scm", "limit", "copies", code=ExitCode.USAGE)


def test_entered_safe_mode_lasts_over_a_restart_until_it_is_left(
    world: ScmWorld, suture: CommandLine
) -> None:
    said = suture("scm", "safemode", "--enter", "--yes", code=ExitCode.TO_DO)
    lose_one(world)
    held = list(world.state.commands.values())
    told = suture.json_any("status")
    world.restart()
    world.join(*NODES, racks=RACKS)
    confirm(world, *NODES)
    is_on = world.control.safe_mode.status()
    left = world.control.safe_mode.leave()
    pass_time(world, 3, *NODES)

    assert "entered by an operator" in said
    assert [] == held
    assert "safe mode: entered by an operator" in told["summary"]
    assert (False, "entered by an operator") == (is_on.is_open, is_on.reason)
    assert left.is_open
    assert not world.control.safe_mode.is_on
    assert world.state.commands.values()


def test_config_shows_the_effective_options_and_settings(suture: CommandLine) -> None:
    suture("scm", "pause", "--kind", "deletes")

    found = suture.json("scm", "config")
    shown = suture("scm", "config")

    options = {option["name"]: option for option in found["options"]}
    assert ("0s", "10s") == (
        options["heal_after_ms"]["value"],
        options["heal_after_ms"]["default_value"],
    )
    assert set(ScmOptions.model_fields) == set(options)
    assert "deletes are paused until resumed" in shown
    [row] = [line for line in shown.splitlines() if line.split()[:1] == ["heal_after_ms"]]
    assert row.split()[-1] == "changed"
