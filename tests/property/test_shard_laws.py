"""Whatever shards there are, no order of ours takes the last whole one of an index, or of a group
as many as reading needs."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from merkle.replica import ReplicaState
from scm.state.entities import NodeHealthState, OpState
from tests.support.control.judged_case import victims
from tests.support.control.judged_container import JudgedContainer, JudgedReplica
from tests.support.control.judged_removals import (
    copy_count,
    giving_way,
    may_lose_shard,
    may_remove_shard,
)
from tests.support.control.removal_reference import is_whole
from tests.support.control.scm_world import container, replica, summary

DATA_COUNT, TOTAL = 3, 5
STATES = (
    ReplicaState.CLOSED,
    ReplicaState.CLOSED,
    ReplicaState.CLOSED,
    ReplicaState.UNHEALTHY,
    ReplicaState.QUASI_CLOSED,
    ReplicaState.QUASI_CLOSED,
    ReplicaState.RECOVERING,
)
OPS = (OpState.IN_SERVICE,) * 4 + (OpState.DECOMMISSIONING, OpState.IN_MAINTENANCE)
HEALTHS = (NodeHealthState.HEALTHY,) * 4 + (NodeHealthState.STALE, NodeHealthState.DEAD)


@st.composite
def groups(draw: st.DrawFn) -> JudgedContainer:
    """Draw a closed RS(3,2) container: any shards anywhere, some being deleted."""
    placed = []
    for i in range(draw(st.integers(0, 9))):
        index = draw(st.integers(1, TOTAL))
        made = replica(
            f"dn{i}",
            draw(st.sampled_from(STATES)),
            bcsid=draw(st.sampled_from((5, 5, 5, 4))),
            replica_index=index,
            finding_count=draw(st.sampled_from((0, 0, 0, 1))),
        )
        tree = draw(
            st.sampled_from((summary(index), summary(index), summary(index, tombstones=9), None))
        )
        placed.append(
            JudgedReplica(
                replace(made, tree=tree),
                draw(st.sampled_from(HEALTHS)),
                draw(st.sampled_from(OPS)),
                draw(st.sampled_from(("/a", "/b", "/c"))),
                is_confirmed=draw(st.sampled_from((True, True, True, False))),
            )
        )
    names = [p.datanode_id for p in placed]
    coded = replace(container(replication_factor=TOTAL), scheme="rs-3-2-1024k")
    deletes = draw(st.lists(st.sampled_from(names), unique=True, max_size=2)) if names else []
    return JudgedContainer(
        coded,
        tuple(placed),
        deletes=tuple(deletes),
        cluster_rack_count=3,
        owes_deletes=draw(st.booleans()),
    )


def whole_indexes(case: JudgedContainer) -> set[int]:
    """Return the indexes with a whole shard that is not being deleted."""
    return {p.replica.replica_index for p in case.placed if is_whole(case, p)}


def has_equal(case: JudgedContainer, victim: JudgedReplica) -> bool:
    """Whether a replica in service that nothing was found in holds the same, as far as it got."""
    mine = victim.replica
    return any(
        p is not victim
        and (p.health, p.op_state) == (NodeHealthState.HEALTHY, OpState.IN_SERVICE)
        and p.datanode_id not in case.deletes
        and not p.replica.finding_count
        and p.replica.state is ReplicaState.QUASI_CLOSED
        and (p.replica.replica_index, p.replica.bcsid) == (mine.replica_index, mine.bcsid)
        and p.replica.tree is not None
        and p.replica.tree == mine.tree
        for p in case.placed
    )


@given(groups())
def test_surplus_leaves_every_index_as_it_is(case: JudgedContainer) -> None:
    """All of it deleted at once, each index that had a whole shard still has one."""
    gone = [p.datanode_id for p in victims(case)]

    after = replace(case, deletes=(*case.deletes, *gone))

    assert whole_indexes(case) == whole_indexes(after)
    assert len(gone) == len(set(gone))


@given(groups())
def test_shard_deleted_to_make_room_leaves_enough_to_read(case: JudgedContainer) -> None:
    """No index loses its last whole shard by the delete."""
    victim = giving_way(case)
    if victim is None:
        return

    after = replace(case, deletes=(*case.deletes, victim.datanode_id))

    assert whole_indexes(case) == whole_indexes(after)
    has_twin = victim.replica.replica_index in whole_indexes(after) or has_equal(case, victim)
    assert copy_count(after) >= (DATA_COUNT if has_twin else DATA_COUNT + 1)


@given(groups(), st.data())
def test_a_delete_that_leaves_at_its_turn_leaves_a_whole_twin_or_was_bad(
    case: JudgedContainer, data: st.DataObject
) -> None:
    """The delete may be ordered by the replication manager, the balancer, a move between racks
    or an operator.
    """
    if not case.placed:
        return
    doomed = data.draw(st.sampled_from(case.placed))
    after = replace(case, deletes=(*case.deletes, doomed.datanode_id))

    if may_remove_shard(case, doomed.datanode_id):
        left = whole_indexes(after)
        was_whole = is_whole(case, doomed)
        assert len(left) >= DATA_COUNT
        assert not was_whole or doomed.replica.replica_index in left
    if may_lose_shard(case, doomed.datanode_id):
        assert copy_count(after) >= case.container.data_count + 1
