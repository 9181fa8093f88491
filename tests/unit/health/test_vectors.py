"""The published vectors, all judged in one batch for each set of rules."""

from health.rules import Rules
from tests.support.verification.judged import judged
from tests.support.verification.snapshots import container
from tests.support.verification.vectors import Told, by_rules, rack_count, told, vectors, world

Found = tuple[str, Told, tuple[int, int] | None]


def test_the_judge_finds_what_the_vectors_say() -> None:
    """
    Containers, replicas, ops and rules in; states, queue, flags, class, eligibility and need out.
    """
    found: list[Found] = []
    expected: list[Found] = []

    for own, group in by_rules(vectors()).items():
        rows = world(group)
        rules = Rules(rack_count=rack_count(rows), **dict(own))
        for i, one in judged([rows], rules=rules).items():
            vector = group[i - 1]
            need = None if vector.need is None else (one.need, one.need_after)
            found.append((vector.name, told(one.opinion), need))
            expected.append((vector.name, vector.told, vector.need))

    assert expected == found
    assert len(vectors()) == len(found)


def test_origin_may_lack_copies_while_another_has_too_many() -> None:
    """A new best origin appears. Its two missing replicas come before the surplus one."""
    rows = judged(
        [container(1, "R QUASI_CLOSED 21", "Q@10^ax3 Q@20^c", acknowledged_bcsid=21)]
    )  # W67

    assert [(row.action, row.sources, row.copies) for row in rows[1].plan] == [
        ("replicate", ("dn-1-3",), 2)
    ]
    assert {"UNDER_REPLICATED", "OVER_REPLICATED"} <= rows[1].opinion.flags
