"""`suture scm mark-lost` and `remove-node`: what is lost is shown, given up, and not waited for."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from merkle.replica import ReplicaState
from scm.administration.node_removal import RemovalLoss
from scm.api.calls.control import ControlPlane
from scm.state.entities import CommandKind, ContainerState, PendingCommand
from scm.state.options import ScmOptions
from spark_verify.options import VerifyOptions
from spark_verify.pipeline import VerifyRequest, verify
from suture.errors import Code, RefusedError, UnavailableError
from suture.observe.audit import AuditLog
from suture.runtime.exit_codes import ExitCode
from tests.support.command_line import CommandLine
from tests.support.control.scm_world import ScmWorld, confirm, pass_time, replica
from tests.support.control.unwritable import unwritable
from tests.support.heard import logged

NODES = ("dn1", "dn2", "dn3", "dn4")
OPTIONS = ScmOptions(
    stale_after_ms=5_000, dead_after_ms=10_000, close_retry_ms=1_000, check_interval_ms=1_000
)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """Four nodes of which those that had the only container are dead."""
    audit = AuditLog(tmp_path / "audit.log")
    with ScmWorld(tmp_path / "state", OPTIONS, audit=audit).running() as made:
        made.join(*NODES)
        confirm(made, *NODES)
        made.made_closed()
        pass_time(made, 12, *left(made))
        yield made
    audit.close()


@pytest.fixture
def suture(world: ScmWorld, capsys: pytest.CaptureFixture[str]) -> Iterator[CommandLine]:
    """The command line, at a server in front of the same control plane."""
    with world.served() as address:
        yield CommandLine(address, capsys)


def held(world: ScmWorld) -> list[str]:
    """Return who had the container, by the books."""
    return [r.datanode_id for r in world.state.replicas.of(1)]


def left(world: ScmWorld) -> list[str]:
    """Return the other nodes."""
    return sorted(set(NODES) - set(held(world)))


def key_name(world: ScmWorld) -> str:
    """Return the only key."""
    (only,) = world.state.keys.values()
    return only.name


def give_up(control: ControlPlane) -> str:
    """Forget the container; return the decision's code."""
    (fate,) = control.forgetting.forget([1], worlds=(), is_dry_run=False)
    return fate.code


def test_forget_shows_keys_asks_and_records_the_loss(world: ScmWorld, suture: CommandLine) -> None:
    """The dry run lists the keys by name. Afterwards `ls` and `get` report the keys as lost,
    with the reason.
    """
    name = key_name(world)
    shown = suture("scm", "mark-lost", "1", "--dry-run")
    before = world.state.containers.get(1)
    suture("scm", "mark-lost", "1", code=ExitCode.FAILED)  # nobody can be asked
    done = suture("scm", "mark-lost", "1", "--yes")
    listed = suture.json("ls")["keys"]
    suture("get", name, "--output", str(world.path / "out"), code=ExitCode.FAILED)
    container = suture.json("scm", "containers", "1")
    log = [json.loads(line) for line in (world.path.parent / "audit.log").read_text().splitlines()]

    assert f"lost with container 1: {name}" in shown
    assert before is not None
    assert "OK" in done
    assert [[1]] == [key["lost_container_ids"] for key in listed]
    assert "LOST" in suture("ls")
    assert "MARKED_LOST" == container["state"]
    noted = [line for line in log if line["action"] == "container forgotten"]
    assert [(1, 1)] == [(line["container_id"], line["key_count"]) for line in noted]


def test_forget_drops_pending_delete_transactions(world: ScmWorld) -> None:
    """Deletes that were not acknowledged are dropped, and later deletes of the keys create none."""
    world.control.deletions.delete_keys([key_name(world)], dry_run=False)
    owed = len(world.state.transactions)
    code = give_up(world.control)
    pass_time(world, 2, *left(world))

    assert (1, "OK", 0) == (owed, code, len(world.state.transactions))
    assert {} == world.control.queries.report().conditions


def test_a_lost_key_is_removed_or_stored_again(world: ScmWorld) -> None:
    """Blocks of the key that appear later are not deleted."""
    name = key_name(world)
    give_up(world.control)
    with pytest.raises(RefusedError) as caught:
        world.control.clients.lookup(name)
    (deletion,) = world.control.deletions.delete_keys([name], dry_run=False)

    assert caught.value.code is Code.KEY_LOST
    assert "lost: its data was in container 1" in str(caught.value)
    assert ("OK", ()) == (deletion.code, deletion.transaction_ids)


def test_returned_replica_of_a_forgotten_container_is_left_alone(world: ScmWorld) -> None:
    """No command is sent for it, also after a restart of the control plane. If forget is undone,
    the container is as before.
    """
    (first, *_rest) = held(world)
    give_up(world.control)
    world.restart()
    world.join(first, *left(world))
    back = replica(first, bcsid=1)
    for _ in range(3):
        confirm(world, *left(world))
        world.beat(first, back, full=True)
        world.control.safe_mode.leave()
        pass_time(world, 2, first, *left(world))
    view = world.control.views.container(1)
    orders = len(world.state.commands)
    (fate,) = world.control.forgetting.recall([1], is_dry_run=False)

    healthy_count = sum(r.node_health == "HEALTHY" for r in view.replicas)
    assert ("MARKED_LOST", 1) == (view.state, healthy_count)
    assert 0 == orders
    assert "OK" == fate.code
    assert ContainerState.CLOSED == world.control.views.container(1).state
    world.control.clients.lookup(key_name(world))


def test_damaged_container_without_keys_can_be_forgotten(world: ScmWorld) -> None:
    """No key needs it and no replica is whole, so nothing is lost with it."""
    (first, *_rest) = held(world)
    world.join(first)
    world.beat(first, replica(first, ReplicaState.UNHEALTHY, bcsid=1), full=True)
    before = give_up(world.control)
    world.control.deletions.delete_keys([key_name(world)], dry_run=False)

    assert (Code.INELIGIBLE, "OK") == (before, give_up(world.control))


class TestNotNoted:
    """The disk of the state is full: what was answered with an error did not happen."""

    def test_a_container_that_is_not_forgotten_is_ours(self, world: ScmWorld) -> None:
        """The failed forget does not make the container one to recover."""
        with logged(), unwritable(), pytest.raises(UnavailableError):
            give_up(world.control)

        assert () == world.control.queries.to_recover().container_ids

    def test_a_container_that_is_not_taken_back_is_none(self, world: ScmWorld) -> None:
        """The failed recall leaves its replicas unknown."""
        assert "OK" == give_up(world.control)
        with logged(), unwritable(), pytest.raises(UnavailableError):
            world.control.forgetting.recall([1], is_dry_run=False)

        assert {1} == world.control.reports.unknown_container_ids

    def test_a_stranger_that_is_not_noted_is_told_when_it_is(self, world: ScmWorld) -> None:
        """The log has only durable changes."""
        (node, *_rest) = left(world)
        with logged() as said:
            with unwritable(), pytest.raises(UnavailableError):
                world.beat(node, replica(node, container_id=9))
            early = [line["event"] for line in said]
            world.beat(node, replica(node, container_id=9))

        assert "unknown_container_reported" not in early
        assert 1 == [line["event"] for line in said].count("unknown_container_reported")


class TestRefused:
    def test_a_container_that_somebody_has(self, world: ScmWorld) -> None:
        """Damaged as it may be: what can be read of it is not given up."""
        (first, *_rest) = held(world)
        world.join(first)
        world.beat(first, replica(first, ReplicaState.UNHEALTHY, bcsid=1), full=True)

        assert Code.INELIGIBLE == give_up(world.control)
        assert world.state.containers.get(1) is not None

    def test_a_world_that_changed(self, world: ScmWorld) -> None:
        """A key that was not shown is not given up."""
        (shown,) = world.control.forgetting.forget([1], worlds=(), is_dry_run=True)
        world.control.deletions.delete_keys([key_name(world)], dry_run=False)
        (fate,) = world.control.forgetting.forget([1], worlds=[shown.world], is_dry_run=False)

        assert (Code.STALE_PLAN, 1) == (fate.code, shown.key_count)
        assert world.state.containers.get(1) is not None

    def test_in_safe_mode(self, world: ScmWorld) -> None:
        """The missing replicas are not known yet."""
        world.restart()

        assert Code.SAFE_MODE == give_up(world.control)

    def test_an_open_container(self, world: ScmWorld) -> None:
        """Its writer may still be there."""
        with world.state.change() as change:
            container = world.state.containers.get(1)
            assert container is not None
            for node in held(world):
                change.remove(world.state.replicas, (1, node))
            object.__setattr__(container, "state", ContainerState.OPEN)

        assert Code.INELIGIBLE == give_up(world.control)


def test_forget_and_remove_node_drop_pending_commands(world: ScmWorld) -> None:
    """No command is left for a removed node or a forgotten container, on whichever datanode it
    waits. The next snapshot has none.
    """
    dead, living = held(world), left(world)
    orders = [
        (CommandKind.RECONCILE, 1, dead[0], ""),
        (CommandKind.REPLICATE, 1, living[0], dead[1]),
        (CommandKind.REPLICATE, 7, living[0], dead[1]),
        (CommandKind.DELETE, 7, dead[2], ""),
        (CommandKind.RECONCILE, 1, living[0], ""),
    ]
    with world.state.change() as change:
        for number, (kind, container_id, node, target) in enumerate(orders, start=100):
            command = PendingCommand(
                number, kind, container_id, node, target_id=target, deadline_ms=1
            )
            change.put(world.state.commands, command)

    (fate,) = world.control.forgetting.forget([1], worlds=(), is_dry_run=False)
    of_seven = [one.command_id for one in world.state.commands.values()]
    decisions = world.control.parting.remove_nodes(dead, is_forced=True, is_dry_run=False)

    assert ("OK", [102, 103]) == (fate.code, of_seven)
    assert ["OK"] * 3 == [one.code for one in decisions]
    assert [] == list(world.state.commands.values())
    exported = world.control.queries.export_snapshot()
    assert 0 == exported.rows["pending_ops"]


def test_dead_nodes_are_removed_from_the_command_line(world: ScmWorld, suture: CommandLine) -> None:
    """The consequences are shown, and a removal that makes data unreadable needs --force."""
    dead, living = held(world), left(world)
    refused = suture("scm", "remove-node", *dead, "--yes", code=ExitCode.FAILED)
    done = suture("scm", "remove-node", *dead, "--yes", "--force")
    nodes = suture.json("scm", "nodes")["nodes"]

    assert "can be read from nobody else: 1" in " ".join(refused.split())
    assert 3 == done.count("OK")
    assert living == [node["datanode_id"] for node in nodes]


def test_a_removal_is_repeated_as_it_was_given(world: ScmWorld, suture: CommandLine) -> None:
    """After a lost answer or an interruption the operator repeats the command. Nodes that are
    gone are named, and the others are removed.
    """
    (first, *rest), living = held(world), left(world)
    suture("scm", "remove-node", first, "--yes", "--force")

    shown = suture("scm", "remove-node", first, *rest, "--dry-run", "--force")
    again = suture("scm", "remove-node", first, *rest, "--yes", "--force")
    once_more = suture.json("scm", "remove-node", first, *rest, "--yes")["decisions"]
    nodes = suture.json("scm", "nodes")["nodes"]

    assert [1, 1] == [" ".join(said.split()).count("removed before") for said in (shown, again)]
    assert ["OK"] * 3 == [one["code"] for one in once_more]
    assert living == [node["datanode_id"] for node in nodes]
    removed = (world.path.parent / "audit.log").read_text().count('"node removed"')
    assert 3 == removed, "what is not there is not removed again"


def test_a_removal_that_another_was_faster_with_is_none(world: ScmWorld) -> None:
    """Two operators remove one node at once. Both get an answer, and the removal is audited
    once.
    """
    (first, *_rest) = held(world)
    parting = world.control.parting
    (shown,) = parting.remove_nodes([first], is_forced=True, is_dry_run=True)
    parting.remove_nodes([first], is_forced=True, is_dry_run=False)

    late = parting._remove(shown, RemovalLoss(1, (), 0))

    assert "removed before" in late.message
    assert 1 == (world.path.parent / "audit.log").read_text().count('"node removed"')


def test_an_address_of_nobody_is_refused(world: ScmWorld, suture: CommandLine) -> None:
    """A removed node is named by its id only."""
    first, *_rest = held(world)
    suture("scm", "remove-node", "nobody:9859", first, "--yes", "--force", code=ExitCode.FAILED)

    assert first in held(world)


def test_the_report_names_the_keys_of_what_is_lost(world: ScmWorld, suture: CommandLine) -> None:
    """
    With how many there are; a container that is well names none.
    """
    names = sorted(key.name for key in world.state.keys.values())
    pass_time(world, 3, *left(world))

    at_risk = suture.json("scm", "report", code=ExitCode.TO_DO)["at_risk"]
    said = suture("scm", "report", code=ExitCode.TO_DO)

    assert (1, len(names)) == (at_risk["container_count"], at_risk["key_count"])
    assert names == [key["key"] for key in at_risk["keys"]]
    assert {1} == {number for key in at_risk["keys"] for number in key["container_ids"]}
    assert f"lost or at risk: {len(names)} key" in said
    assert names[0] in said


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_spark_report_names_keys_at_risk_from_a_snapshot(world: ScmWorld, tmp_path: Path) -> None:
    """The verification of an exported snapshot names them as well."""
    names = sorted(key.name for key in world.state.keys.values())
    pass_time(world, 3, *left(world))

    exported = world.control.queries.export_snapshot()
    request = VerifyRequest(
        str(exported.path), tmp_path / "out", options=VerifyOptions(reporting_min_percent=0)
    )
    told = verify(request).summary["keys_at_risk"]

    assert (1, len(names)) == (told["container_count"], told["key_count"])
    assert names == [key["key"] for key in told["keys"]]
    assert all(key["container_ids"] == [1] for key in told["keys"])
