"""Erasure-coded containers in the control plane: over data and parity nodes, never copied."""

from collections.abc import Iterator
from dataclasses import replace as facts_replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from merkle.checksum import Algorithm
from merkle.replica import ReplicaState
from merkle.tree_summary import TreeSummary
from scm.administration.decommission import OpStateRequest
from scm.api.call_values import DatanodeAddress, HeartbeatAnswer
from scm.api.responses import heartbeat_response
from scm.replication.reconcile.plan_check import ContainerDecision, PlanRow
from scm.state.entities import (
    CommandKind,
    ContainerState,
    DeleteTransaction,
    NodeHealthState,
    OpState,
)
from scm.state.starts import ReportedStart
from suture.errors import RefusedError, UnavailableError
from tests.support.control.coded_world import MIB, NODES, OPTIONS, SCHEME, closed, orders, spoil
from tests.support.control.judged_case import lost, read_from
from tests.support.control.judged_container import JudgedContainer, JudgedReplica
from tests.support.control.scm_world import ScmWorld, container, key, replica, summary


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """Six nodes, containers of 10 MiB."""
    with ScmWorld(tmp_path, OPTIONS).running() as made:
        made.join(*NODES)
        yield made


def test_a_group_goes_to_as_many_nodes_as_it_has_shards(world: ScmWorld) -> None:
    """
    Five different nodes, in one order for all groups of the container: the order is the index.
    """
    blocks = world.control.clients.allocate("a", [1, 2], scheme=SCHEME)

    nodes = [endpoint.datanode_id for endpoint in blocks[0].replicas]
    assert 5 == len(set(nodes))
    assert nodes == [endpoint.datanode_id for endpoint in blocks[1].replicas]
    assert blocks[0].container_id == blocks[1].container_id


def test_groups_and_whole_blocks_never_share_a_container(world: ScmWorld) -> None:
    """A session that writes both ways has two containers, and the other kind does not take over
    a released one.
    """
    whole = world.control.clients.allocate("a", [1])[0]
    coded = world.control.clients.allocate("a", [1], scheme=SCHEME)[0]
    world.control.clients.commit("a", [], may_replace=False, failed=())

    assert whole.container_id != coded.container_id
    assert 3 == len(whole.replicas)


def test_a_container_holds_as_much_data_as_its_data_shards(world: ScmWorld) -> None:
    """
    Three shards of 10 MiB hold a group of 30 MiB, and no larger one.
    """
    world.control.clients.allocate("a", [30 * MIB], scheme=SCHEME)

    with pytest.raises(RefusedError, match="a container has at most"):
        world.control.clients.allocate("a", [30 * MIB + 1], scheme=SCHEME)


def test_too_few_nodes_are_refused(world: ScmWorld) -> None:
    """
    A code with more shards than there are nodes cannot be allocated, and nothing is promised.
    """
    with pytest.raises(UnavailableError, match="9 datanodes"):
        world.control.clients.allocate("a", [1], scheme="rs-6-3-1024k")


def test_the_code_survives_a_restart_and_is_exported(world: ScmWorld) -> None:
    """
    The snapshot calls it EC with its data and parity, after a restart, too.
    """
    world.control.clients.allocate("a", [1], scheme=SCHEME)
    world.restart()

    exported = world.control.queries.export_snapshot()

    [row] = pq.read_table(exported.path / "containers").to_pylist()
    assert ("EC", 5, 3, 2) == (
        row["replication_type"],
        row["replication_factor"],
        row["ec_data"],
        row["ec_parity"],
    )


class TestLostShards:
    def test_are_rebuilt_by_one_command_and_never_copied(self, world: ScmWorld) -> None:
        """
        Four of five shards: one command to the node that has none, naming four sources by index.
        """
        nodes, container_id = closed(world, lost=[2])
        [(command, named)] = orders(world)

        assert (2, command.datanode_id) == command.shards[0]
        assert {1, 3, 4, 5} == {index for index, _ in command.sources}
        assert all(nodes[index - 1] == node for index, node in command.sources)
        assert [node for _, node in command.shards + command.sources] == named
        kinds = {other.kind for other in world.state.commands.values()}
        assert {CommandKind.RECONSTRUCT} == kinds - {
            CommandKind.CLOSE,
            CommandKind.DELETE_BLOCKS,
        }  # never committed
        assert container_id == command.container_id

    def test_are_not_ordered_twice_because_of_a_restart(self, world: ScmWorld) -> None:
        """The running command of a datanode counts, and is sent again unchanged."""
        nodes, container_id = closed(world, lost=[2])
        [(command, named)] = orders(world)
        world.restart()
        adds_before = world.state.commands.add_count
        world.join(*NODES)
        for node in NODES:
            shards = [r for r in world.state.replicas.of(container_id) if r.datanode_id == node]
            world.beat(node, *shards, full=True)

        [(again, named_again)] = orders(world)

        assert 1 == adds_before == world.state.commands.add_count
        assert (command.command_id, command.shards) == (again.command_id, again.shards)
        assert named == named_again
        assert nodes[1] not in {r.datanode_id for r in world.state.replicas.of(container_id)}

    def test_two_are_rebuilt_by_one_command(self, tmp_path: Path) -> None:
        """The command names both targets, and the shard that each of them makes."""
        with ScmWorld(tmp_path, OPTIONS).running() as world:
            world.join(*NODES, "dn7")
            closed(world, lost=[1, 4])
            [(command, named)] = orders(world)

            endpoints = [DatanodeAddress(node, f"{node}:9859") for node in named]
            answer = HeartbeatAnswer(is_known=True, commands=((command, tuple(endpoints)),))
            [message] = heartbeat_response(answer, ReportedStart("start", 1, 1), now_ms=1).commands

            assert [1, 4] == [shard.replica_index for shard in message.reconstruct.targets]
            assert [2, 3, 5] == [shard.replica_index for shard in message.reconstruct.sources]
            assert ("rs", 3, 2, MIB) == (
                message.reconstruct.scheme.codec,
                message.reconstruct.scheme.data,
                message.reconstruct.scheme.parity,
                message.reconstruct.scheme.cell_bytes,
            )

    def test_more_than_the_parity_are_not_ordered(self, world: ScmWorld) -> None:
        """
        With two of three needed shards left nothing can be computed, and nothing is ordered.
        """
        closed(world, lost=[1, 2, 3])

        assert [] == orders(world)

    def test_are_ordered_once(self, world: ScmWorld) -> None:
        """
        While a command is under way no second one is made.
        """
        closed(world, lost=[5])
        first = orders(world)

        assert 1 == len(first)
        assert [] == orders(world)


class TestSurplus:
    def test_a_bad_shard_makes_room_where_no_other_node_has_any(self, tmp_path: Path) -> None:
        """
        Five nodes for five shards: the bad one is removed, and its shard rebuilt in its place.
        """
        with ScmWorld(tmp_path, OPTIONS).running() as world:
            world.join(*NODES[:5])
            nodes, container_id = closed(world, lost=[])
            spoil(world, nodes[3], container_id, index=4)

            removed = orders(world, CommandKind.DELETE)
            world.beat(nodes[3], full=True)
            rebuilt = orders(world)

            assert [nodes[3]] == [command.datanode_id for command, _ in removed]
            assert [((4, nodes[3]),)] == [command.shards for command, _ in rebuilt]

    def test_a_bad_shard_goes_once_another_node_has_a_whole_one(self, world: ScmWorld) -> None:
        """
        With a node to spare nothing is removed before the shard is whole there.
        """
        nodes, container_id = closed(world, lost=[])
        spoil(world, nodes[3], container_id, index=4)

        [(command, _)] = orders(world)
        before = orders(world, CommandKind.DELETE)
        [(_, spare)] = command.shards
        shard = replica(spare, container_id=container_id, bcsid=1, replica_index=4)
        world.execute(spare, world.beat(spare, shard, full=True))
        after = orders(world, CommandKind.DELETE)

        assert [] == before
        assert [nodes[3]] == [delete.datanode_id for delete, _ in after]

    def test_a_shard_that_comes_back_is_one_too_many(self, world: ScmWorld) -> None:
        """Its twin was rebuilt meanwhile. One of the two is deleted, and the container is
        reported as over-replicated.
        """
        _nodes, container_id = closed(world, lost=[])
        [spare] = set(NODES) - set(_nodes)
        world.beat(
            spare,
            replica(spare, container_id=container_id, bcsid=1, replica_index=2),
            full=True,
        )

        removed = orders(world, CommandKind.DELETE)

        assert 1 == len(removed)
        assert removed[0][0].datanode_id in {spare, _nodes[1]}

    def test_double_shard_makes_room_for_one_of_a_leaving_node(self, world: ScmWorld) -> None:
        """Every datanode has a shard, and two have the same. The shard of the leaving one cannot
        be copied until one of the two has gone.
        """
        nodes, container_id = closed(world, lost=[])
        [spare] = set(NODES) - set(nodes)
        twin = replica(spare, container_id=container_id, bcsid=1, replica_index=2)
        world.control.departure_requests.submit(
            OpStateRequest((nodes[4],), OpState.DECOMMISSIONING, is_forced=True)
        )
        world.kept[nodes[4]] = (OpState.DECOMMISSIONING, 0)
        world.beat(spare, twin, full=True)

        [(delete, _)] = orders(world, CommandKind.DELETE)
        world.execute(delete.datanode_id, world.beat(delete.datanode_id, full=True))
        [(copy, _)] = orders(world, CommandKind.REPLICATE)

        assert delete.datanode_id in {spare, nodes[1]}
        assert (nodes[4], delete.datanode_id) == (copy.datanode_id, copy.target_id)

    def test_the_last_of_an_index_is_not_removed_when_its_twin_has_gone(
        self, world: ScmWorld
    ) -> None:
        """
        Between the decision and the node's next call the other one is lost: nothing is sent.
        """
        nodes, container_id = closed(world, lost=[])
        [spare] = set(NODES) - set(nodes)
        twins = {nodes[1], spare}
        shard = replica(spare, container_id=container_id, bcsid=1, replica_index=2)
        world.beat(spare, shard, full=True)
        world.clock.advance_s(1)
        world.control.tick()
        [delete] = [c for c in world.state.commands.values() if c.kind is CommandKind.DELETE]
        [kept] = twins - {delete.datanode_id}

        world.beat(kept, full=True)
        sent = world.call(delete.datanode_id).commands

        assert [] == [command for command, _ in sent if command.kind is CommandKind.DELETE]


class TestOperators:
    def test_may_have_a_wrong_shard_removed_while_more_stay_than_reading_needs(
        self, world: ScmWorld
    ) -> None:
        """
        A shard that verify-parity names: it is removed and rebuilt; a second one stays meanwhile.
        """
        nodes, container_id = closed(world, lost=[])

        def remove(node: str) -> ContainerDecision:
            [decision] = world.control.admin.delete(
                [container_id], datanode_id=node, worlds=[], dry_run=False
            )
            return decision

        first, second = remove(nodes[2]), remove(nodes[3])

        assert ("OK", 5, 4) == (first.code, first.copies_before, first.copies_after)
        assert ("NOT_ENOUGH_REPLICAS", "fewer than 4 whole shards would stay") == (
            second.code,
            second.message,
        )
        assert [nodes[2]] == [c.datanode_id for c, _ in orders(world, CommandKind.DELETE)]


class TestPlans:
    def test_rows_that_are_right_are_confirmed_and_others_are_stale(self, tmp_path: Path) -> None:
        """Shards are rebuilt and removed without a plan. A row about them is only confirmed or
        stale.
        """
        with ScmWorld(tmp_path, OPTIONS).running() as world:
            world.join(*NODES[:5])
            nodes, container_id = closed(world, lost=[2])
            row = PlanRow(container_id, (), "", expires_at_ms=0)
            rows = [
                facts_replace(row, action="reconstruct"),
                facts_replace(row, action="delete", targets=(nodes[0],), is_forced=True),
                facts_replace(row, action="delete", targets=(nodes[0],)),
                facts_replace(row, action="replicate", sources=(nodes[0],)),
                facts_replace(row, action="nonsense"),
            ]

            codes = [d.code for d in world.control.plans.apply_plan(rows, dry_run=False)]

            stale = "STALE_PLAN"
            assert ["OK", stale, stale, stale, "INELIGIBLE_REPLICATION_TYPE"] == codes

    def test_a_shard_to_be_mended_is_not_rebuilt_yet(self, world: ScmWorld) -> None:
        """
        Damage that a repair in place may heal awaits it, for its time.
        """
        nodes, container_id = closed(world, lost=[])
        bad = replica(
            nodes[3],
            ReplicaState.UNHEALTHY,
            container_id=container_id,
            bcsid=1,
            replica_index=4,
        )
        world.beat(nodes[3], bad, full=True)
        row = PlanRow(container_id, (), "", action="reconstruct", expires_at_ms=0)

        [decision] = world.control.plans.apply_plan([row], dry_run=False)

        assert "AWAITS_REPAIR" == decision.code
        assert [] == orders(world)


def test_a_rebuilt_shard_goes_when_its_twin_with_tombstones_is_back_and_none_owes_a_delete(
    world: ScmWorld,
) -> None:
    """While a delete of blocks is pending, it is unknown whether either has everything that the
    other has.
    """
    nodes, container_id = closed(world, lost=[])
    [spare] = set(NODES) - set(nodes)
    owed = DeleteTransaction(1, container_id, (9,), 1)
    with world.state.change() as change:
        change.put(world.state.transactions, owed)
    for node, index, tree in [
        *((node, i, summary(i)) for i, node in enumerate(nodes, start=1) if i != 2),
        (spare, 2, TreeSummary(Algorithm.XXH3_64, 21, 1, 1, 0, 0)),
        (nodes[1], 2, TreeSummary(Algorithm.XXH3_64, 22, 1, 1, 3, 9)),
    ]:
        shard = replica(node, container_id=container_id, bcsid=1, replica_index=index)
        world.beat(node, facts_replace(shard, tree=tree), full=True)

    while_owed = orders(world, CommandKind.DELETE)
    with world.state.change() as change:
        change.remove(world.state.transactions, (container_id, 1))
    after = orders(world, CommandKind.DELETE)

    assert [] == while_owed
    assert [spare] == [command.datanode_id for command, _named in after]


@pytest.mark.parametrize("state", [ContainerState.CLOSING, ContainerState.QUASI_CLOSED])
def test_a_shard_that_is_being_rebuilt_while_all_others_died_stops_no_tick(
    world: ScmWorld, state: ContainerState
) -> None:
    """The shard has no commit to close at. The container waits, and the operator gets the
    reason.
    """
    coded = facts_replace(container(state, replication_factor=5), scheme=SCHEME)
    with world.state.change() as change:
        change.put(world.state.containers, coded)
    for node in NODES:
        shards = [replica(node, ReplicaState.RECOVERING, replica_index=1)] if node == "dn1" else []
        world.beat(node, *shards, full=True)

    world.control.tick()
    [decision] = world.control.closures.close_containers([1], force=True)

    assert decision.message.endswith("nothing is ordered: dn1 is RECOVERING")


def test_an_excluded_shard_is_no_source_of_a_reconstruction() -> None:
    """The excluded shard counts as present, and no command reads it until an operator releases
    it.
    """
    coded = facts_replace(container(), scheme=SCHEME, replication_factor=5)
    placed = tuple(
        JudgedReplica(
            replica(f"dn{i}", replica_index=i), NodeHealthState.HEALTHY, OpState.IN_SERVICE, "/r1"
        )
        for i in (1, 2, 3, 4)
    )
    one_out = JudgedContainer(coded, placed, excluded=frozenset({"dn2"}))
    two_out = JudgedContainer(coded, placed, excluded=frozenset({"dn2", "dn3"}))

    assert ((5,), [1, 3, 4]) == (lost(one_out), [index for index, _node in read_from(one_out)])
    assert ((), []) == (lost(two_out), read_from(two_out))


class TestShortage:
    """Ozone's table of index sets: H healthy, U unhealthy, B unhealthy and behind in commits."""

    @pytest.mark.parametrize(
        ("replicas", "rebuilt", "sources"),
        [
            ("1H 2H 3H 4U 5U", (4, 5), [1, 2, 3]),
            ("1H 2H 3H", (4, 5), [1, 2, 3]),
            ("1H 2H 3U", (4, 5), [1, 2, 3]),
            ("1H 2U 3U", (4, 5), [1, 2, 3]),
            ("1H 2H 3B", (), []),
            ("1H 2H", (), []),
            ("1H 2H 2U", (), []),
            ("1H 2H 2U 3H", (4, 5), [1, 2, 3]),
            ("1H 2H 3H 4H 5H", (), []),
        ],
    )
    def test_by_index(self, replicas: str, rebuilt: tuple[int, ...], sources: list[int]) -> None:
        """Lost shards are rebuilt by index if enough are left. Unhealthy ones are sources only
        if too few are whole, and never one that missed a commit.
        """
        coded = facts_replace(container(), scheme=SCHEME, replication_factor=5)
        placed = [
            JudgedReplica(
                replica(
                    f"dn{number}",
                    ReplicaState.CLOSED if word[1] == "H" else ReplicaState.UNHEALTHY,
                    replica_index=int(word[0]),
                    bcsid=coded.sequence_id - (word[1] == "B"),
                ),
                NodeHealthState.HEALTHY,
                OpState.IN_SERVICE,
                "/r1",
            )
            for number, word in enumerate(replicas.split())
        ]

        given = JudgedContainer(coded, tuple(placed))

        assert (rebuilt, sources) == (lost(given), [index for index, _ in read_from(given)])


def test_a_shard_that_missed_the_last_commit_gets_it_in_place(world: ScmWorld) -> None:
    """
    A key needs what it missed, so that it cannot be closed as it is. It is reconciled before
    another one is made, and closed when it has the commit.
    """
    blocks = world.control.clients.allocate("a", [1], scheme=SCHEME)
    world.control.clients.commit("a", [key("k", blocks, [1])], may_replace=False, failed=())
    world.control.clients.finish("a", close=True)
    number = blocks[0].container_id
    nodes = [endpoint.datanode_id for endpoint in blocks[0].replicas]
    shards = [
        replica(node, container_id=number, bcsid=1, root=index, replica_index=index)
        for index, node in enumerate(nodes, start=1)
    ]
    late = facts_replace(shards[1], state=ReplicaState.QUASI_CLOSED, bcsid=0)
    for shard in (shards[0], late, *shards[2:]):
        world.execute(shard.datanode_id, world.beat(shard.datanode_id, shard, full=True))

    reconciled = [command for _ in range(3) for command, _ in orders(world, CommandKind.RECONCILE)]
    world.beat(nodes[1], facts_replace(late, bcsid=1))
    closes = [c for c in world.state.commands.of_node(nodes[1]) if c.kind is CommandKind.CLOSE]

    assert nodes[1] in {command.datanode_id for command in reconciled}
    assert {"control plane: commit id behind"} == {command.why for command in reconciled}
    assert [(1, False)] == [(close.bcsid, close.force) for close in closes]
    assert not [c for c in world.state.commands.values() if c.kind is CommandKind.RECONSTRUCT]


def test_a_spare_shard_goes_where_the_last_commit_is_on_none(world: ScmWorld) -> None:
    """The holder of that commit is gone, and no key needs it. Without it all shards are whole."""
    nodes, container_id = closed(world, lost=[])
    [spare] = set(NODES) - set(nodes)
    made = world.state.containers.get(container_id)
    assert made is not None
    with world.state.change() as change:
        change.put(world.state.containers, facts_replace(made, sequence_id=made.sequence_id + 1))
    twin = replica(spare, container_id=container_id, bcsid=1, replica_index=2)
    world.beat(spare, twin, full=True)

    deletes = orders(world, CommandKind.DELETE)

    after = world.state.containers.get(container_id)
    assert after is not None
    assert made.sequence_id == after.sequence_id
    assert 1 == len({command.datanode_id for command, _named in deletes} & {spare, nodes[1]})
