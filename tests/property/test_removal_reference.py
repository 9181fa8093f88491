"""What may be removed: `health.removal` and the plain-Python reference agree on every replica."""

import random
from dataclasses import replace
from typing import Any

from health.rules import Rules
from health.words import COUNTED_STATES
from merkle.checksum import Algorithm
from merkle.replica import ReplicaState
from merkle.tree_summary import TreeSummary
from scm.cluster.container_context import present
from scm.state.entities import ContainerState, NodeHealthState, OpState
from tests.property.test_delete_laws import drawn
from tests.support.control import judged_removals, removal_reference
from tests.support.control.judged_container import JudgedContainer, JudgedReplica
from tests.support.control.scm_world import container, replica

CASES = 400
STATES = (ContainerState.CLOSED, ContainerState.CLOSED, ContainerState.QUASI_CLOSED)
RULES = (
    Rules(),
    Rules(best_origin_copies=1, other_origin_copies=1),
    Rules(best_origin_copies=5, other_origin_copies=4),
    Rules(best_origin_copies=2, other_origin_copies=1),
)


def odd_case(draw: random.Random) -> JudgedContainer:
    """Draw a container in which every fact of each replica may be unusual."""
    is_coded, odd = draw.random() < 0.6, draw.choice((0.02, 0.1, 0.3))
    state, count = draw.choice(STATES), draw.randint(0, 9)
    placed = tuple(_placed(draw, place, state, odd, is_coded=is_coded) for place in range(count))
    names = [p.datanode_id for p in placed]

    def some(share: float) -> list[str]:
        return [name for name in names if draw.random() < share]

    factor = 5 if is_coded else draw.choice((1, 2, 3, 3))
    box = container(state, sequence_id=5, replication_factor=factor)
    return JudgedContainer(
        replace(box, scheme="rs-3-2-1024k" if is_coded else ""),
        placed,
        adds=("dn99",) if draw.random() < odd / 3 else (),
        deletes=tuple(some(odd / 2)),
        healable_holders=frozenset(some(odd)),
        excluded=frozenset(some(odd)),
        owes_deletes=draw.random() < 0.3,
    )


def _placed(
    draw: random.Random, place: int, state: ContainerState, odd: float, *, is_coded: bool
) -> JudgedReplica:
    def rarely(value: Any, *others: Any) -> Any:
        return draw.choice(others) if draw.random() < odd else value

    index = draw.randint(1, 5) if is_coded else 0
    tombstones = rarely(0, 2)
    algorithm = rarely(Algorithm.XXH3_64, Algorithm.CRC32C)
    tree = TreeSummary(algorithm, rarely(index, 8), 1, rarely(3, 2), tombstones, tombstones)
    made = replica(
        f"dn{place}",
        rarely(ReplicaState(state), *(ReplicaState(word) for word in COUNTED_STATES)),
        bcsid=rarely(5, 4, 6, 0, 7),
        replica_index=index,
        finding_count=rarely(0, 1),
    )
    blocks, origin = draw.choice((0, 3, 4)), draw.choice(("", "a", "a", "b", "c"))
    held = replace(made, tree=rarely(tree, None), block_count=blocks, origin_datanode_id=origin)
    return JudgedReplica(
        held,
        rarely(NodeHealthState.HEALTHY, *NodeHealthState),
        rarely(OpState.IN_SERVICE, *OpState),
        draw.choice(("/a", "/b", "/c")),
        is_confirmed=rarely(True, False),
    )


def ordinary(case: JudgedContainer) -> JudgedContainer:
    """Return a case as the control plane makes it: loaded, and deletes only of present replicas.

    The judge takes a replica that could not be loaded for UNHEALTHY, whatever it was before.
    """
    placed = tuple(replace(p, replica=replace(p.replica, load_error="")) for p in case.placed)
    here = {p.datanode_id for p in present(placed)}
    deletes = tuple(name for name in case.deletes if name in here)
    return replace(case, placed=placed, deletes=deletes)


def test_judge_and_reference_agree_on_what_may_be_removed() -> None:
    """Each replica of hundreds of containers is asked about, for each number that must stay."""
    draw, answers = random.Random(5), set()
    for number in range(CASES):
        case = ordinary(odd_case(draw) if number % 2 else drawn(draw))
        rules, box = draw.choice(RULES), case.container
        found = judged_removals.removals(case, rules)

        assert removal_reference.copy_count(case) == found.copy_count(box.container_id)
        assert removal_reference.giving_way(case) == judged_removals.giving_way(case)
        for p in present(case.placed):
            name, keep_count = p.datanode_id, draw.choice((1, 2, 3, 4, box.replication_factor))
            expected = removal_reference.may_delete(case, name, keep_count=keep_count, rules=rules)
            witnesses = {w.datanode_id for w in removal_reference.witnesses(case, p)}

            assert expected is found.may_remove(box.container_id, name, keep_count=keep_count)
            assert witnesses == set(found.witnesses(box.container_id, name))
            answers.add((box.state, bool(box.scheme), expected, bool(witnesses)))
    assert 12 <= len(answers), answers
