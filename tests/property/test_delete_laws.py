"""What the control plane orders deleted, its own guard lets go when the command's turn comes.

Where they disagree, an order is made and dropped again, and the container never comes to rest.
"""

import random
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from health.rules import Rules
from health.words import Action
from merkle.replica import ReplicaState
from scm.state.entities import ContainerState, NodeHealthState, OpState
from tests.support.control.judged_case import asked
from tests.support.control.judged_container import JudgedContainer, JudgedReplica
from tests.support.control.judged_removals import giving_way, may_be_removed, may_remove_shard
from tests.support.control.scm_world import container, replica, summary

QUIET = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
STATES = (ReplicaState.UNHEALTHY, ReplicaState.UNHEALTHY, ReplicaState.QUASI_CLOSED)
DRAWS = st.randoms(use_true_random=False)


def drawn(draw: random.Random) -> JudgedContainer:
    """Draw a container with some replicas too many; in a tame one little else is odd."""
    scheme = "rs-3-2-1024k" if draw.random() < 0.5 else ""
    factor = 5 if scheme else draw.choice((1, 2, 3, 3, 3))
    is_quasi = not scheme and draw.random() < 0.6
    state = ContainerState.QUASI_CLOSED if is_quasi else ContainerState.CLOSED
    usual = ReplicaState.QUASI_CLOSED if is_quasi else ReplicaState.CLOSED
    odd = draw.choice((0.01, 0.02, 0.08))
    ahead = draw.choice((0, 0, 0, 1))  # commits of all replicas beyond those of the container
    placed = [
        _placed(draw, place, usual, odd, ahead)
        for place in range(factor + draw.choice((0, 1, 1, 2, 3)))
    ]
    if scheme:
        placed = [
            replace(p, replica=replace(p.replica, replica_index=1 + i % factor))
            for i, p in enumerate(placed)
        ]
    names = [p.datanode_id for p in placed]
    box = container(state, sequence_id=5, replication_factor=factor)
    return JudgedContainer(
        replace(box, scheme=scheme),
        tuple(placed),
        deletes=tuple(_some(draw, names, odd / 4)),
        healable_holders=frozenset(_some(draw, names, odd)),
        cluster_rack_count=len({p.rack for p in placed}),
        excluded=frozenset(_some(draw, names, odd)),
        owes_deletes=draw.random() < odd,
    )


def _some(draw: random.Random, names: list[str], share: float) -> list[str]:
    return [name for name in names if draw.random() < share]


def _placed(
    draw: random.Random, place: int, usual: ReplicaState, odd: float, ahead: int
) -> JudgedReplica:
    def rarely(value: Any, *others: Any) -> Any:
        return draw.choice(others) if draw.random() < odd else value

    state = usual if draw.random() < 0.85 else draw.choice(STATES)
    root = rarely(7, 8, None)
    tree = None if root is None else summary(root, tombstones=rarely(0, 5))
    made = replica(
        f"dn{place + 1}",
        state,
        bcsid=ahead + (5 if draw.random() < 0.85 else draw.choice((4, 6))),
        finding_count=rarely(0, 1),
        load_error=rarely("", "no descriptor"),
    )
    return JudgedReplica(
        replace(made, tree=tree, origin_datanode_id=draw.choice("aab")),
        rarely(NodeHealthState.HEALTHY, NodeHealthState.STALE, NodeHealthState.DEAD),
        rarely(OpState.IN_SERVICE, *OpState),
        draw.choice(("/a", "/b", "/c")),
        is_confirmed=rarely(True, False),
    )


def planned(case: JudgedContainer, rules: Rules) -> list[str]:
    """Return the datanodes whose replica a plan deletes by force."""
    found = asked(
        case,
        best_origin_copies=rules.best_origin_copies,
        other_origin_copies=rules.other_origin_copies,
    )
    batch, actions = found.view.batch, found.actions
    rows = np.flatnonzero((actions.action == Action.DELETE) & actions.is_forced).tolist()
    lists = actions.targets
    places = [p for row in rows for p in lists.values[lists.starts[row] : lists.starts[row + 1]]]
    return [batch.nodes.names[batch.replicas.node[place]] for place in places]


def lets_go(case: JudgedContainer, datanode_id: str, *, keep_count: int, rules: Rules) -> bool:
    """Whether the last look at a delete has nothing against it; it is pending by then."""
    then = replace(case, deletes=(*case.deletes, datanode_id))
    if case.container.scheme:
        return may_remove_shard(then, datanode_id)
    return may_be_removed(then, datanode_id, keep_count=keep_count, rules=rules)


class TestAgreement:
    @settings(QUIET, max_examples=100)
    @given(draw=DRAWS)
    def test_planned_delete_is_permitted_by_the_guard(self, draw: random.Random) -> None:
        """This holds for any number of copies per origin that an operator configured."""
        case = drawn(draw)
        rules = Rules(
            best_origin_copies=draw.choice((3, 3, 1, 2, 5)),
            other_origin_copies=draw.choice((2, 2, 1, 4)),
        )

        for node in planned(case, rules):
            keep_count = case.container.replication_factor
            assert lets_go(case, node, keep_count=keep_count, rules=rules), node

    @settings(QUIET, max_examples=100)
    @given(draw=DRAWS)
    def test_replica_that_makes_room_may_be_deleted(self, draw: random.Random) -> None:
        """This concerns containers for whose missing replica no datanode has room. An excluded
        replica is never deleted.
        """
        case = drawn(draw)

        victim = giving_way(case)

        if victim is not None:
            assert lets_go(case, victim.datanode_id, keep_count=1, rules=Rules())
            assert victim.datanode_id not in case.excluded

    def test_the_draws_delete_often_enough_to_tell(self) -> None:
        """Each of the rules must delete dozens of times. Agreement would otherwise prove
        nothing.
        """
        draw, told = random.Random(1), dict.fromkeys(("shard", "origin", "copy", "room"), 0)

        for _ in range(1_500):
            case = drawn(draw)
            is_quasi = case.container.state is ContainerState.QUASI_CLOSED
            kind = "shard" if case.container.scheme else "origin" if is_quasi else "copy"
            told[kind] += len(planned(case, Rules()))
            told["room"] += giving_way(case) is not None

        assert min(told.values()) > 24, told
