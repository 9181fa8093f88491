"""Quasi-closed containers come to an end: by themselves where nothing is lost, else by force."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from merkle.replica import ReplicaState
from scm.replication.reconcile.plan_check import PlanRow
from scm.state.entities import CommandKind, Container, ContainerState
from scm.state.options import ScmOptions
from suture.runtime.exit_codes import ExitCode
from tests.support.command_line import CommandLine
from tests.support.control.scm_world import ScmWorld, confirm, key, replica

NODES = ("dn1", "dn2", "dn3", "dn4")
WAIT_S = 60
STEP_S = 5
OPTIONS = ScmOptions(
    check_interval_ms=WAIT_S * 1000,
    stale_after_ms=20_000,
    dead_after_ms=40_000,
    close_retry_ms=1_000,
)
Q, C, U, OPEN = (
    ReplicaState.QUASI_CLOSED,
    ReplicaState.CLOSED,
    ReplicaState.UNHEALTHY,
    ReplicaState.OPEN,
)


class Audit:
    """An audit log in memory."""

    path = None

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, object]]] = []

    def record(self, action: str, result: str, **facts: object) -> None:
        """Keep a line."""
        self.lines.append((action, result, facts))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """Four nodes, of which three hold a container; states follow the calls closely."""
    with ScmWorld(tmp_path, OPTIONS, audit=Audit()).running() as made:
        made.join(*NODES)
        yield made


def now(world: ScmWorld, container_id: int = 1) -> Container:
    """Return a container as it is."""
    found = world.state.containers.get(container_id)
    assert found is not None
    return found


def spare(*chosen: str) -> str:
    """Return the node that holds nothing of container 1."""
    (node,) = set(NODES) - set(chosen)
    return node


def write(world: ScmWorld, *, acknowledged: int, seen: int) -> tuple[str, ...]:
    """Write container 1: so many commits acknowledged, so many reported by its first node.

    Returns its nodes, the one with most first.
    """
    blocks = world.control.clients.allocate("a", [1] * seen)
    nodes = tuple(endpoint.datanode_id for endpoint in blocks[0].replicas)
    for node in nodes:
        count = seen if node == nodes[0] else acknowledged
        world.beat(node, replica(node, OPEN, bcsid=count, root=None))
    for i in range(acknowledged):
        named = key(f"key{i + 1}", [blocks[i]], [1])
        world.control.clients.commit("a", [named], may_replace=False, failed=())
    world.control.clients.finish("a", close=True)
    for node in nodes:
        world.execute(node, world.call(node))  # it will come back to them
    return nodes


def lose_disk(world: ScmWorld, *, acknowledged: int = 5, seen: int = 6) -> tuple[str, ...]:
    """Let the disk with the highest commit die, and the others close behind it."""
    first, *others = nodes = write(world, acknowledged=acknowledged, seen=seen)
    world.beat(first, full=True)  # the node lives; its replica went with the disk
    for node in others:
        world.beat(node, replica(node, Q, bcsid=min(acknowledged, seen - 1)), full=True)
    confirm(world, *NODES)
    assert (ContainerState.QUASI_CLOSED, seen) == (now(world).state, now(world).sequence_id)
    return nodes


def obey(world: ScmWorld, *nodes: str) -> None:
    """Let nodes close what they are told to close."""
    for node in nodes:
        answer = world.call(node)
        for command, _named in answer.commands:
            held = world.state.replicas.get((command.container_id, node))
            if command.kind is CommandKind.CLOSE and held is not None and held.state in {OPEN, Q}:
                is_whole = command.force or held.bcsid >= command.bcsid
                world.beat(node, replace(held, state=C if is_whole else Q))
        if answer.commands:
            world.execute(node, answer)


def run(world: ScmWorld, seconds: int, *alive: str) -> None:
    """Let time pass; these nodes call, and close what they are told."""
    for _ in range(seconds // STEP_S):
        world.clock.advance_s(STEP_S)
        obey(world, *alive)
        world.control.tick()


class TestByItself:
    def test_lost_unacknowledged_commit_does_not_delay_the_close(self, world: ScmWorld) -> None:
        """Two of three origins are there, and have all commits that were acknowledged to a
        client.
        """
        _first, *others = lose_disk(world)

        run(world, WAIT_S + 10, *NODES)

        assert (ContainerState.CLOSED, 5) == (now(world).state, now(world).sequence_id)
        assert all(world.state.replicas.get((1, node)).state is C for node in others)  # type: ignore[union-attr]

    def test_an_acknowledged_commit_that_nobody_has_is_never_given_up_unasked(
        self, world: ScmWorld
    ) -> None:
        """The commit is kept, however long the wait."""
        lose_disk(world, acknowledged=6)

        run(world, 3 * WAIT_S, *NODES)

        assert (ContainerState.QUASI_CLOSED, 6) == (now(world).state, now(world).sequence_id)

    def test_close_waits_while_the_third_origin_is_stale(self, world: ScmWorld) -> None:
        """A stale node still counts, and a dead one does not."""
        first, *others = write(world, acknowledged=5, seen=6)
        for node in others:
            world.beat(node, replica(node, Q, bcsid=5))
        confirm(world, *NODES)

        run(world, WAIT_S + 30, *others, spare(first, *others))  # stale from 20 s, dead from 40 s
        waiting = now(world).state
        run(world, 30, *others, spare(first, *others))

        assert first not in {r.datanode_id for r in world.state.replicas.of(1) if r.state is C}
        assert ContainerState.QUASI_CLOSED is waiting
        assert (ContainerState.CLOSED, 5) == (now(world).state, now(world).sequence_id)

    def test_single_origin_is_not_enough_to_close(self, world: ScmWorld) -> None:
        """Two of three origins are needed, because the remaining one may have missed commits of
        both others.
        """
        first, second, _third = lose_disk(world)
        world.beat(second, full=True)

        run(world, 3 * WAIT_S, *NODES)

        assert first not in {r.datanode_id for r in world.state.replicas.of(1)}
        assert ContainerState.QUASI_CLOSED is now(world).state

    def test_single_origin_with_the_last_known_commit_needs_a_forced_close(
        self, world: ScmWorld
    ) -> None:
        """An operator closes it, and is shown that nothing is given up."""
        first, *others = write(world, acknowledged=5, seen=5)
        world.beat(first, replica(first, Q, bcsid=5), full=True)
        for node in others:
            world.beat(node, full=True)
        confirm(world, *NODES)

        run(world, 3 * WAIT_S, *NODES)
        waiting = now(world)
        (refused,) = world.control.closures.close_containers([1])
        (given,) = world.control.closures.close_containers([1], force=True)
        obey(world, *NODES)

        assert (ContainerState.QUASI_CLOSED, 5) == (waiting.state, waiting.sequence_id)
        assert ("QUASI_CLOSED_STUCK", ()) == (refused.code, refused.command_ids)
        assert "only 1 of 3 origins are seen; --force" in refused.message
        assert ("OK", 1, 0) == (given.code, len(given.command_ids), given.given_up_count)
        assert ContainerState.CLOSED is now(world).state

    def test_a_damaged_replica_with_more_commits_holds_up_those_with_the_known_ones(
        self, world: ScmWorld
    ) -> None:
        """Until a person closes it: what it has more is kept."""
        first, *others = write(world, acknowledged=5, seen=5)
        for node in others:
            world.beat(node, replica(node, Q, bcsid=5), full=True)
        world.beat(first, replica(first, U, bcsid=6), full=True)
        confirm(world, *NODES)

        run(world, 3 * WAIT_S, *NODES)
        (refused,) = world.control.closures.close_containers([1])

        assert ContainerState.QUASI_CLOSED is now(world).state
        assert f"the damaged replica on {first} has more commits" in refused.message

    def test_returned_replica_with_more_commits_is_kept(self, world: ScmWorld) -> None:
        """The returned replica is neither deleted nor closed as if it were equal."""
        first, *others = lose_disk(world)
        run(world, WAIT_S + 10, *NODES)
        back = replica(first, Q, bcsid=6, root=8)
        for node in (*others, spare(first, *others)):
            world.beat(node, replica(node, C, bcsid=5))
        world.beat(first, back, full=True)
        confirm(world, *NODES)

        run(world, 3 * WAIT_S, *NODES)

        held = world.state.replicas.get((1, first))
        assert held is not None
        assert (Q, 6) == (held.state, held.bcsid)
        assert CommandKind.DELETE not in {c.kind for c in world.state.commands.values()}


class TestByAPerson:
    def test_without_force_it_says_why_it_orders_nothing(self, world: ScmWorld) -> None:
        """Acknowledged commits are at stake."""
        lose_disk(world, acknowledged=6)

        (decision,) = world.control.closures.close_containers([1])

        assert ("QUASI_CLOSED_STUCK", ()) == (decision.code, decision.command_ids)
        assert "1 of them acknowledged" in decision.message
        assert "--force" in decision.message
        assert ContainerState.QUASI_CLOSED is now(world).state

    def test_without_force_it_closes_what_is_proven(self, world: ScmWorld) -> None:
        """An operator's request does not wait for the timeout of the automatic close."""
        _first, *others = lose_disk(world)

        (decision,) = world.control.closures.close_containers([1])

        assert ("OK", 2) == (decision.code, len(decision.command_ids))
        assert "2 of 3 origins" in decision.message
        obey(world, *others)
        assert (ContainerState.CLOSED, 5) == (now(world).state, now(world).sequence_id)

    def test_force_shows_what_is_given_up_and_then_does_it(self, world: ScmWorld) -> None:
        """Blocks with their keys, and those that no key needs; only in the same world."""
        _first, *others = lose_disk(world, acknowledged=6, seen=8)
        second, third = others
        world.beat(third, replica(third, Q, bcsid=4))
        world.beat(second, replica(second, Q, bcsid=4))

        (shown,) = world.control.closures.close_containers([1], force=True, dry_run=True)
        before = now(world)
        (given,) = world.control.closures.close_containers([1], worlds=[shown.world], force=True)

        assert (ContainerState.QUASI_CLOSED, 8) == (before.state, before.sequence_id)
        assert [(8, ""), (7, ""), (6, "key6"), (5, "key5")][::-1] == [
            (lost.bcsid, lost.key) for lost in shown.given_up
        ]
        assert (4, 2) == (shown.given_up_count, shown.acknowledged_count)
        assert shown.given_up == given.given_up
        assert ("OK", 2) == (given.code, len(given.command_ids))
        obey(world, *others)
        assert (ContainerState.CLOSED, 4) == (now(world).state, now(world).sequence_id)
        assert isinstance(world.audit, Audit)
        (line,) = [line for line in world.audit.lines if line[0] == "close container"]
        assert (1, 4, 8, ["key5", "key6"]) == tuple(
            line[2][name] for name in ("container_id", "bcsid", "given_up_to", "keys")
        )

    def test_a_world_that_changed_since_it_was_shown_refuses(self, world: ScmWorld) -> None:
        """A disk that came back may have what would be given up."""
        first, *_others = lose_disk(world, acknowledged=6)
        (shown,) = world.control.closures.close_containers([1], force=True, dry_run=True)
        world.beat(first, replica(first, U, bcsid=6))

        (refused,) = world.control.closures.close_containers([1], worlds=[shown.world], force=True)

        assert "STALE_PLAN" == refused.code
        assert ContainerState.QUASI_CLOSED is now(world).state

    def test_forced_close_names_and_keeps_replicas_with_more_commits(self, world: ScmWorld) -> None:
        """The damaged replica with the last commit stays, although four replicas are more than
        three.
        """
        first, second, third = write(world, acknowledged=6, seen=6)
        world.beat(first, replica(first, U, bcsid=6, root=8), full=True)
        for node in (second, third, spare(first, second, third)):
            origin = node if node in (second, third) else second
            held = replace(replica(node, Q, bcsid=5), origin_datanode_id=origin)
            world.beat(node, held, full=True)

        (decision,) = world.control.closures.close_containers([1], force=True)
        run(world, 3 * WAIT_S, *NODES)

        assert f"{first} is UNHEALTHY at commit 6" in decision.message
        assert ContainerState.CLOSED is now(world).state
        assert [] == [c for c in world.state.commands.values() if c.kind is CommandKind.DELETE]
        held_still = world.state.replicas.get((1, first))
        assert held_still is not None
        assert (U, 6) == (held_still.state, held_still.bcsid)

    def test_damaged_ones_alone_are_closed_by_force(self, world: ScmWorld) -> None:
        """Nothing better will come; what they have can be read as far as it can."""
        nodes = write(world, acknowledged=5, seen=5)
        for node in nodes:
            world.beat(node, replica(node, U, bcsid=5), full=True)
        assert ContainerState.QUASI_CLOSED is now(world).state

        (decision,) = world.control.closures.close_containers([1], force=True)

        assert ("OK", 0) == (decision.code, decision.given_up_count)
        assert ContainerState.CLOSED is now(world).state

    def test_without_any_replica_there_is_nothing_to_close(self, world: ScmWorld) -> None:
        """A forced close needs a replica."""
        for node in lose_disk(world):
            world.beat(node, full=True)

        (decision,) = world.control.closures.close_containers([1], force=True)

        assert "NO_REPLICAS_FOUND" == decision.code
        assert "suture scm mark-lost" in decision.message
        assert ContainerState.QUASI_CLOSED is now(world).state

    def test_forced_close_works_for_a_container_closed_before_disk_loss(
        self, world: ScmWorld
    ) -> None:
        """One replica closed with all commits, and its disk died before the others caught up."""
        first, *others = write(world, acknowledged=6, seen=6)
        world.beat(first, replica(first, C, bcsid=6), full=True)
        for node in others:
            world.beat(node, replica(node, Q, bcsid=5), full=True)
        assert (ContainerState.CLOSED, 6) == (now(world).state, now(world).sequence_id)
        world.beat(first, full=True)

        (refused,) = world.control.closures.close_containers([1])
        (given,) = world.control.closures.close_containers([1], force=True)
        obey(world, *others)

        assert "QUASI_CLOSED_STUCK" == refused.code
        assert ("OK", 1, 1) == (given.code, given.given_up_count, given.acknowledged_count)
        assert (ContainerState.CLOSED, 5) == (now(world).state, now(world).sequence_id)
        assert all(world.state.replicas.get((1, node)).state is C for node in others)  # type: ignore[union-attr]

    def test_force_is_not_needed_where_a_replica_has_everything(self, world: ScmWorld) -> None:
        """The decision says so, and the commands are the same as without it."""
        nodes = write(world, acknowledged=5, seen=5)

        (decision,) = world.control.closures.close_containers([1], force=True)

        assert ("OK", 3, 0) == (decision.code, len(decision.command_ids), decision.given_up_count)
        obey(world, *nodes)
        assert (ContainerState.CLOSED, 5) == (now(world).state, now(world).sequence_id)

    def test_a_closed_one_says_that_it_is(self, world: ScmWorld) -> None:
        """Nothing is ordered, and the reason is given."""
        made = world.made_closed()

        (decision,) = world.control.closures.close_containers([made.container_id])

        assert ("OK", ()) == (decision.code, decision.command_ids)
        assert "all its replicas are CLOSED" in decision.message


class TestPlans:
    def test_a_close_row_for_all_origins_is_executed(self, world: ScmWorld) -> None:
        """The plan names the replicas with the highest commit; the container is behind none."""
        nodes = write(world, acknowledged=5, seen=6)
        world.beat(nodes[0], replica(nodes[0], Q, bcsid=5), full=True)  # the disk gave less back
        for node in nodes[1:]:
            world.beat(node, replica(node, Q, bcsid=5), full=True)
        confirm(world, *NODES)
        assert ContainerState.QUASI_CLOSED is now(world).state
        row = PlanRow(1, (), "all origins seen", "close", targets=nodes, is_forced=True)

        (shown,) = world.control.plans.apply_plan([row], dry_run=True)
        (done,) = world.control.plans.apply_plan([row], dry_run=False)

        assert ("OK", 3) == (shown.code, len(shown.commands))
        assert ("OK", 3) == (done.code, len(done.command_ids))
        obey(world, *nodes)
        assert (ContainerState.CLOSED, 5) == (now(world).state, now(world).sequence_id)

    def test_a_close_row_of_which_a_part_is_right_does_that_part(self, world: ScmWorld) -> None:
        """One replica has closed since. The others get their commands, and it is named."""
        nodes = write(world, acknowledged=5, seen=5)
        world.beat(nodes[0], replica(nodes[0], C, bcsid=5))
        row = PlanRow(1, (), "container is closing", "close", targets=nodes)

        (decision,) = world.control.plans.apply_plan([row], dry_run=False)
        unneeded = world.control.plans.apply_plan([replace(row, targets=nodes[:1])], dry_run=False)

        assert ("OK", 2) == (decision.code, len(decision.command_ids))
        assert nodes[0] in decision.message
        assert ["STALE_PLAN"] == [one.code for one in unneeded]

    def test_a_row_that_would_close_what_differs_waits_for_the_repair(
        self, world: ScmWorld
    ) -> None:
        """The commit id alone does not prove the data; this is not a stale plan."""
        made = world.made_closed()
        node = world.state.replicas.of(1)[0].datanode_id
        world.beat(node, replica(node, Q, bcsid=made.sequence_id, root=9))
        row = PlanRow(1, (), "quasi-closed at the final BCSID", "close", targets=(node,))

        (decision,) = world.control.plans.apply_plan([row], dry_run=False)

        assert "AWAITS_REPAIR" == decision.code


class TestOrigins:
    """Rows about a container of which nobody knows yet which origin has the last commit."""

    def stuck(self, world: ScmWorld) -> tuple[str, ...]:
        """Leave two origins at other commits, the last one lost."""
        nodes = lose_disk(world, acknowledged=6)
        for node, bcsid in zip(nodes[1:], (5, 4), strict=True):
            world.beat(node, replica(node, Q, bcsid=bcsid, root=bcsid))
        return nodes

    def test_an_origin_that_lacks_copies_is_copied(self, world: ScmWorld) -> None:
        """The origin is copied although its commit is not the highest, and the command is sent
        in its turn.
        """
        _first, best, other = self.stuck(world)
        row = PlanRow(1, (), "stuck, origin", "replicate", sources=(other,), copies=1)

        (decision,) = world.control.plans.apply_plan([row], dry_run=False)
        sent = [c for c, _named in world.call(other).commands if c.kind is CommandKind.REPLICATE]

        assert "OK" == decision.code
        assert [1] == [c.container_id for c in sent]
        assert best not in {c.target_id for c in sent}

    def test_origin_with_all_copies_is_not_copied_again(self, world: ScmWorld) -> None:
        """The plan row was correct when it was made."""
        first, best, other = self.stuck(world)
        world.join("dn5")
        for node in (spare(first, best, other), "dn5"):
            held = replace(replica(node, Q, bcsid=5, root=5), origin_datanode_id=best)
            world.beat(node, held, full=True)
        row = PlanRow(1, (), "stuck, origin", "replicate", sources=(best,), copies=1)

        (decision,) = world.control.plans.apply_plan([row], dry_run=False)

        assert "STALE_PLAN" == decision.code

    def test_surplus_replica_of_an_origin_is_removed_if_equal_ones_stay(
        self, world: ScmWorld
    ) -> None:
        """The only replica of another origin and a replica that differs stay. One is removed at
        a time, the same one whoever plans.
        """
        first, best, other = self.stuck(world)
        world.join("dn5", "dn6", "dn7")
        world.beat("dn7", replace(replica("dn7", Q, bcsid=4, root=4), origin_datanode_id=other))
        copies = (spare(first, best, other), "dn5", "dn6")
        for node in copies:
            held = replace(replica(node, Q, bcsid=5, root=5), origin_datanode_id=best)
            world.beat(node, held, full=True)

        def told(node: str, *, dry_run: bool = True) -> str:
            row = PlanRow(1, (), "too many", "delete", targets=(node,), is_forced=True)
            return world.control.plans.apply_plan([row], dry_run=dry_run)[0].code

        before = {node: told(node) for node in (best, other, *copies)}
        world.beat("dn5", replace(replica("dn5", Q, bcsid=5, root=9), origin_datanode_id=best))
        differing = {node: told(node) for node in (best, "dn5")}
        world.beat("dn5", replace(replica("dn5", Q, bcsid=5, root=5), origin_datanode_id=best))
        [spare_one] = [node for node, code in before.items() if code == "OK"]
        done = told(spare_one, dry_run=False)
        (command,) = [c for c, _ in world.call(spare_one).commands if c.kind is CommandKind.DELETE]

        assert spare_one in {best, *copies}
        assert {"OK", "STALE_PLAN"} == set(before.values())
        assert {"STALE_PLAN"} == set(differing.values())
        assert ("OK", 1) == (done, command.container_id)


def test_a_node_that_died_before_it_wrote_anything_holds_nothing_up(world: ScmWorld) -> None:
    """The node was chosen and never reported a replica, so it is not awaited for ever."""
    blocks = world.control.clients.allocate("a", [1])
    first, *others = (endpoint.datanode_id for endpoint in blocks[0].replicas)
    for node in others:
        world.beat(node, replica(node, OPEN, bcsid=0, root=None))
    world.control.clients.finish("a", close=True)
    for node in others:
        world.beat(node, replica(node, U, bcsid=0), full=True)

    run(world, WAIT_S, *others, spare(first, *others))

    assert (ContainerState.QUASI_CLOSED, ()) == (now(world).state, now(world).pipeline)
    assert first not in now(world).pipeline


def test_open_replicas_of_a_dead_node_are_not_waited_for(world: ScmWorld) -> None:
    """The last report of a dead node keeps no container CLOSING."""
    nodes = write(world, acknowledged=5, seen=5)
    for node in nodes[1:]:
        world.beat(node, replica(node, U, bcsid=5), full=True)

    run(world, WAIT_S, *nodes[1:], spare(*nodes))

    assert ContainerState.QUASI_CLOSED is now(world).state


def test_the_command_shows_what_is_given_up_and_asks(
    world: ScmWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without force it exits with the reason. Without a terminal the answer is no, and --yes
    does it.
    """
    lose_disk(world, acknowledged=6)
    with world.served() as address:
        suture = CommandLine(address, capsys)
        refused = suture.json("scm", "close", "1", code=ExitCode.FAILED)
        shown = suture.json("scm", "close", "1", "--force", "--dry-run")["decisions"]
        table = suture("scm", "close", "1", "--force", "--dry-run")
        unasked = suture.json("scm", "close", "1", "--force", code=ExitCode.FAILED)
        before = now(world)
        done = suture.json("scm", "close", "1", "--force", "--yes")["decisions"]

    assert "QUASI_CLOSED_STUCK" == refused["decisions"][0]["code"]
    assert [{"bcsid": 6, "local_id": 6, "key": "key6"}] == shown[0]["given_up"]
    assert "key6" in table
    assert "MALFORMED_REQUEST" == unasked["error"]["code"]
    assert ContainerState.QUASI_CLOSED is before.state
    assert ("OK", 1) == (done[0]["code"], done[0]["acknowledged_count"])
    assert (ContainerState.CLOSED, 5) == (now(world).state, now(world).sequence_id)
