"""How many containers are how, as they change."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from merkle.replica import ReplicaState
from scm.administration.restore_recovery import InspectedContainer
from scm.api import health_totals
from scm.api.health_totals import Flag, HealthCounts, KeyNeeds, flags_of, has_missing_blocks
from scm.cluster.nodes import NodeManager
from scm.state.clock import ScmClock
from scm.state.entities import Container, ContainerState, Key, KeyBlock, OpState, Replica
from scm.state.state_metadata import RestoreRecord
from tests.support.control.scm_world import (
    ScmWorld,
    container,
    pass_time,
    replica,
    with_whole_replicas,
)

NODES = ("a", "b", "c")
NONE = HealthCounts(*[0] * 12)


def whole() -> list[Replica]:
    """Return three equal replicas."""
    return [replica(node) for node in NODES]


def bad(state: ReplicaState) -> list[Replica]:
    """Return three replicas in one state."""
    return [replica(node, state) for node in NODES]


@pytest.mark.parametrize(
    ("held", "replicas", "expected"),
    [
        (container(), whole(), Flag(0)),
        (container(ContainerState.QUASI_CLOSED), whole(), Flag(0)),
        (container(), [*whole()[:2], replica("c", ReplicaState.UNHEALTHY)], Flag.UNHEALTHY),
        (container(), [*whole()[:2], replica("c", root=8)], Flag.DIFFER),
        (container(), [*whole()[:2], replica("c", root=None)], Flag.UNKNOWN),
        (container(), whole()[:2], Flag.FEW_REPLICAS),
        (container(replication_factor=2), whole()[:2], Flag(0)),
        (container(), [], Flag.FEW_REPLICAS | Flag.UNKNOWN | Flag.LOST),
        (container(), bad(ReplicaState.UNHEALTHY), Flag.UNHEALTHY | Flag.LOST),
        (
            container(),
            [replace(r, finding_count=1) for r in whole()],
            Flag.UNHEALTHY | Flag.LOST,
        ),
        (
            container(),
            [replace(r, load_error="gone") for r in whole()],
            Flag.UNHEALTHY | Flag.LOST,
        ),
        (
            container(),
            [*whole()[:2], replace(replica("c"), is_contradictory=True)],
            Flag.CONTRADICT,
        ),
        (container(ContainerState.OPEN), [], Flag.OPEN),
        (container(ContainerState.CLOSING), whole()[:1], Flag.OPEN),
        (container(ContainerState.DELETING), whole()[:1], Flag.GONE),
        (container(ContainerState.DELETED), [], Flag.GONE),
        (None, whole(), Flag.FOREIGN),
        (None, whole()[:1], Flag.FOREIGN | Flag.FEW_REPLICAS),
    ],
)
def test_a_container_is_what_its_replicas_show(
    held: Container | None, replicas: list[Replica], expected: Flag
) -> None:
    """Each trouble of a closed container is seen; an open or deleted one has none."""
    assert expected == flags_of(held, replicas)


@pytest.mark.parametrize(
    ("replicas", "needed", "expected"),
    [
        # Three replicas of four blocks, the last of commit 5, and two deleted blocks.
        ("4 4 4", KeyNeeds(block_count=4, bcsid=5, promised_count=6), False),
        ("4 4 4", KeyNeeds(block_count=5), True),
        ("4 5 4", KeyNeeds(block_count=5), False),  # one has it: they differ, and are reconciled
        ("4 4 4", KeyNeeds(bcsid=6), True),
        ("4 4 4", KeyNeeds(block_count=4, promised_count=5), True),  # one was deleted unasked
        ("5! 4 4", KeyNeeds(block_count=5), True),  # it cannot be loaded
        ("4? 4 4", KeyNeeds(block_count=5), False),  # it has no tree yet: it may be open
        ("4- 4 4", KeyNeeds(block_count=4, promised_count=5), False),  # it has no deleted blocks
        ("3- 4 4", KeyNeeds(block_count=4, promised_count=5), True),  # nor has it what is needed
        ("4!? 4 4", KeyNeeds(block_count=5), True),
        ("4! 4!", KeyNeeds(block_count=5), False),  # lost, which is another flag
        ("", KeyNeeds(block_count=5), False),
        ("0 0 0", KeyNeeds(block_count=1), True),
        ("0 0 0", KeyNeeds(), False),
    ],
)
def test_a_container_lacks_what_no_replica_can_have(
    replicas: str, needed: KeyNeeds, expected: bool
) -> None:
    """Blocks, the last commit, or more blocks than were promised beside the deleted ones."""
    held = []
    for node, word in zip(NODES, replicas.split(), strict=False):
        one = replica(node, root=None if "?" in word else 7, load_error="x" * ("!" in word))
        tree = one.tree and replace(one.tree, tombstone_count=0 if "-" in word else 2)
        held.append(replace(one, block_count=int(word.rstrip("!?-")), tree=tree))

    flags = flags_of(container(), held, needed)

    assert expected is has_missing_blocks(held, needed)
    assert expected is bool(flags & Flag.LACKING)
    assert not flags_of(None, held, needed) & Flag.LACKING
    assert not flags_of(container(ContainerState.OPEN), held, needed) & Flag.LACKING


def test_shard_with_most_blocks_shows_the_block_count() -> None:
    """A short block is not in every shard, but in the first and in those of parity."""
    coded = replace(container(replication_factor=3), scheme="rs-2-1-1024k")
    shards = [replica(n, replica_index=i, root=i) for i, n in enumerate(NODES, start=1)]
    held = [replace(shards[0], block_count=2), shards[1], replace(shards[2], block_count=2)]

    assert Flag(0) == flags_of(coded, held, KeyNeeds(block_count=2))
    assert Flag.LACKING == flags_of(coded, held, KeyNeeds(block_count=3))


def test_container_needs_one_shard_of_each_index() -> None:
    """Two copies of one shard do not replace another index. Different roots are normal."""
    coded = replace(container(replication_factor=3), scheme="rs-2-1-1024k")
    shards = [replica(n, replica_index=i, root=i) for i, n in enumerate(NODES, start=1)]
    twins = [*shards[:2], replica("c", replica_index=2, root=2)]

    assert Flag(0) == flags_of(coded, shards)
    assert Flag.FEW_REPLICAS == flags_of(coded, twins)
    lost = [shards[0], *(replace(shard, state=ReplicaState.UNHEALTHY) for shard in shards[1:])]
    assert Flag.UNHEALTHY | Flag.LOST == flags_of(coded, lost)


def totals(world: ScmWorld) -> health_totals.HealthTotals:
    """Return totals that have counted nothing yet."""
    nodes = NodeManager(world.state, ScmClock(), world.options)
    return health_totals.HealthTotals(world.state, nodes)


@pytest.fixture
def world(tmp_path: Path) -> ScmWorld:
    """Return a cluster of three nodes, each with a whole replica of container 1."""
    return with_whole_replicas(tmp_path, *NODES)


def test_counts_follow_every_change(world: ScmWorld) -> None:
    """A reported fault is counted at once, and the repaired container is whole again."""
    all_well = replace(NONE, all=1, whole=1)
    assert all_well == world.control.queries.count_containers()

    world.beat("b", replica("b", ReplicaState.UNHEALTHY))
    assert replace(NONE, all=1, faulty=1, unhealthy=1) == world.control.queries.count_containers()

    world.beat("c", replica("c", root=9))
    worse = replace(NONE, all=1, faulty=1, unhealthy=1, differ=1)
    assert worse == world.control.queries.count_containers()

    world.beat("b", replica("b"))
    world.beat("c", replica("c"))
    assert all_well == world.control.queries.count_containers()
    world.state.close()


def test_rolled_back_change_leaves_the_counts_unchanged(world: ScmWorld) -> None:
    """This holds also if the counts were updated in between."""
    counted = totals(world)
    counted.recompute_some()
    before = counted.counts()

    def fail() -> None:
        with world.state.change() as change:
            change.remove(world.state.replicas, (1, "a"))
            assert counted.recompute_some()
            assert before != counted.counts()
            raise InterruptedError

    with pytest.raises(InterruptedError):
        fail()

    assert counted.recompute_some()
    assert before == counted.counts()
    world.state.close()


def test_a_container_that_nobody_made_is_shown_until_its_last_replica_goes(
    world: ScmWorld,
) -> None:
    """A replica of a foreign container is something to look at; with it goes the container."""
    world.beat("a", replica("a", container_id=77))
    seen = world.control.queries.count_containers()

    world.beat("a", replica("a", ReplicaState.DELETED, container_id=77))

    assert replace(NONE, all=2, whole=1, faulty=1, few_replicas=1, stray=1) == seen
    assert replace(NONE, all=1, whole=1) == world.control.queries.count_containers()
    world.state.close()


def test_after_a_restart_all_is_counted_a_part_at_a_time(
    world: ScmWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No turn counts more than its part, and an answer waits for all parts."""
    monkeypatch.setattr(health_totals, "COUNTED_MAX", 2)
    with world.state.change() as change:
        for container_id in range(2, 6):
            change.put(world.state.containers, container(container_id=container_id))
    world.state.close()
    world.start()
    parts: Callable[[], bool] = health_totals.HealthTotals(
        world.state, NodeManager(world.state, ScmClock(), world.options)
    ).recompute_some

    assert [False, False, True] == [parts() for _ in range(3)]
    world.state.close()
    world.start()
    expected = replace(NONE, all=5, whole=1, faulty=4, few_replicas=4, unknown=4, lost=4)
    assert expected == world.control.queries.count_containers()
    world.state.close()


def test_between_ticks_many_portions_are_counted_with_pauses(
    world: ScmWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No query has to wait for a start, and others get the lock in between."""
    monkeypatch.setattr(health_totals, "COUNTED_MAX", 2)
    with world.state.change() as change:
        for container_id in range(2, 8):
            change.put(world.state.containers, container(container_id=container_id))
    world.restart()
    pauses: list[float] = []

    world.control.note_history(pauses.append)

    assert 0 == world.control.totals.due_count
    assert 3 == len(pauses)
    world.state.close()


def test_replicas_of_a_dead_datanode_are_not_present(world: ScmWorld) -> None:
    """The replicas count again when the datanode is back. One in maintenance is expected back."""
    before = world.control.queries.count_containers()
    pass_time(world, 61, "a", "b")
    dead = world.control.queries.count_containers()
    world.join("c")
    world.beat("c", replica("c"), full=True)
    world.control.tick()

    assert replace(NONE, all=1, faulty=1, few_replicas=1) == dead
    assert replace(NONE, all=1, whole=1) == before == world.control.queries.count_containers()
    world.state.close()


def test_replicas_of_a_datanode_in_maintenance_are_present(world: ScmWorld) -> None:
    node = world.state.nodes.get("c")
    assert node is not None
    with world.state.change() as change:
        change.put(world.state.nodes, replace(node, op_state=OpState.IN_MAINTENANCE))

    pass_time(world, 61, "a", "b")

    assert replace(NONE, all=1, whole=1) == world.control.queries.count_containers()
    world.state.close()


def needed_by(world: ScmWorld, *bcsids: int) -> None:
    """Record a key for each of these commits of container 1, of which eight were promised."""
    with world.state.change() as change:
        for bcsid in bcsids:
            block = KeyBlock(1, 100 + bcsid, bcsid, 10)
            change.put(world.state.keys, Key(f"key{bcsid}", 10, 1, (block,)))
        change.put(world.state.containers, replace(container(), allocated_bcsid=8))


def report(world: ScmWorld, *, blocks: int, bcsid: int = 5, deleted: int = 0) -> None:
    """Let all nodes report equal replicas."""
    for node in NODES:
        held = replace(replica(node, bcsid=bcsid), block_count=blocks)
        assert held.tree is not None
        world.beat(node, replace(held, tree=replace(held.tree, tombstone_count=deleted)))


LACKING = replace(NONE, all=1, faulty=1, missing_blocks=1)
WHOLE = replace(NONE, all=1, whole=1)


@pytest.mark.parametrize(
    ("blocks", "bcsid", "deleted", "expected"),
    [
        (3, 5, 0, WHOLE),
        (3, 5, 5, WHOLE),
        (4, 5, 0, WHOLE),  # the delete of one is under way
        (2, 5, 0, LACKING),
        (2, 5, 1, LACKING),
        (3, 4, 0, LACKING),
        (3, 5, 6, LACKING),
    ],
)
def test_equal_replicas_are_compared_with_what_keys_need(
    world: ScmWorld, blocks: int, bcsid: int, deleted: int, expected: HealthCounts
) -> None:
    """After each report, and after a restart; three keys need blocks, and eight were promised."""
    needed_by(world, 1, 2, 5)
    report(world, blocks=blocks, bcsid=bcsid, deleted=deleted)

    assert expected == world.control.queries.count_containers()
    world.restart()
    assert expected == world.control.queries.count_containers()
    missing_blocks = (1,) if expected == LACKING else ()
    assert missing_blocks == world.control.queries.to_recover().container_ids
    world.state.close()


def test_a_container_whose_keys_are_deleted_lacks_nothing(world: ScmWorld) -> None:
    """Each delete is seen at once, and lowers the last commit that is needed, too."""
    needed_by(world, 1, 2, 5)
    report(world, blocks=2, bcsid=4)
    before = world.control.queries.count_containers()

    world.control.deletions.delete_keys(["key5"], dry_run=False)

    assert LACKING == before
    assert WHOLE == world.control.queries.count_containers()
    world.state.close()


def test_recovered_container_is_not_counted_as_lacking(world: ScmWorld) -> None:
    """A later state allocated and deleted blocks, which is no fault after the recovery."""
    report(world, blocks=3, bcsid=9, deleted=6)
    needed_by(world, 1, 2, 5)
    with world.state.change() as change:
        change.put(world.state.containers, replace(container(sequence_id=9), allocated_bcsid=8))
    before = world.control.queries.count_containers()

    with world.state.change() as change:
        world.control.recovery.finish_deletes(change, [InspectedContainer(1, "", frozenset())])

    assert LACKING == before
    assert WHOLE == world.control.queries.count_containers()
    world.state.close()


def test_adopted_container_is_not_counted_as_lacking(
    world: ScmWorld,
) -> None:
    """The container was not created by this state, which never allocated a block in it."""
    needed_by(world, 1, 2, 5)
    report(world, blocks=3, deleted=6)
    with world.state.change() as change:
        change.put(world.state.containers, container())

    assert WHOLE == world.control.queries.count_containers()
    world.state.close()


def test_containers_of_a_restored_state_are_not_counted_as_lacking(world: ScmWorld) -> None:
    """Their deletes are not compared with the allocations of the backup."""
    needed_by(world, 1, 2, 5)
    report(world, blocks=3, deleted=6)
    with world.state.change() as change:
        change.move_counter("next_container_id", 2)
        change.begin_restore(RestoreRecord(1, 2, ()))
        change.end_restore()
        change.put(world.state.containers, replace(container(), allocated_bcsid=8))

    assert WHOLE == world.control.queries.count_containers()
    world.state.close()
