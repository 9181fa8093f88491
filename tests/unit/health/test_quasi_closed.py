"""When a quasi-closed container may be closed by force, and what of it may be the last."""

from dataclasses import replace

import numpy as np
import pytest

from health.judge import judge
from health.rules import Rules
from tests.support.verification.judged import cut, judged
from tests.support.verification.snapshots import container, gather


@pytest.mark.parametrize(("acknowledged", "is_stuck"), [(None, False), (10, False), (11, True)])
def test_an_acknowledged_commit_is_waited_for(acknowledged: int | None, is_stuck: bool) -> None:
    """All origins are there with commit 10, and commit 11 was acknowledged to a client."""
    replicas = "Q@10^a Q@10^b Q@10^c"
    rows = container(1, "R QUASI_CLOSED 11", replicas, acknowledged_bcsid=acknowledged)

    found = judged([rows])[1]

    assert is_stuck is found.opinion.stuck
    assert is_stuck is ("close" not in {row.action for row in found.plan})


def test_a_replica_that_cannot_be_loaded_is_no_origin_and_its_commits_count() -> None:
    """The replica may have the reported commits, and cannot be read."""
    rows = gather(
        [
            container(1, "R QUASI_CLOSED 10", "Q@10 Q@10"),
            container(2, "R QUASI_CLOSED 10", "Q@10 U@10"),
            container(3, "R QUASI_CLOSED 10", "Q@10 Q@10 Q@11"),
        ]
    )
    lost = {("dn-1-1"), ("dn-2-1"), ("dn-3-2")}
    rows.replicas[:] = [
        replace(r, load_error="no descriptor" if r.datanode_id in lost else None)
        for r in rows.replicas
    ]
    sound = container(4, "R QUASI_CLOSED 10", "Q@10 U@10")

    found = judged([gather([rows, sound])])

    assert [True, True, True, False] == [found[i].opinion.stuck for i in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [
        ("Q@9x3 U@10/d", [3]),
        ("Q@9x3 U@10", []),  # in service it stays anyway
        ("Q@9x3 U@9/d", []),  # no last commit is in it
        ("Q@9x3 Q@10/d", []),  # it is good: it is copied like any other
        ("Q@9x3 U!@10/d", []),
        ("Q@9x3 U@10?s/d", []),  # it cannot be copied now
        ("Q@9^bx3 U@10^a/d U@10^a", []),  # its origin has another one that stays
        ("Q@9^bx3 U@10^a/d U@10^c/d", [3, 4]),  # each has writes of its own
        ("U@10/d U@9", []),  # none is whole: all that is left is copied
    ],
)
def test_a_bad_replica_is_vulnerable_if_it_alone_has_what_it_has(
    replicas: str, expected: list[int]
) -> None:
    """The bad replica has the last commit, its node leaves, and the others are good but behind."""
    batch = cut(gather([container(0, "R QUASI_CLOSED 10", replicas)])).batch

    found = judge(batch, Rules()).counts.quasi

    rows = np.flatnonzero(found.is_vulnerable)
    names = [batch.nodes.names[node] for node in batch.replicas.node[rows].tolist()]
    assert expected == sorted(int(name.rsplit("-", 1)[1]) for name in names)
    assert [bool(expected)] == found.has_vulnerable.tolist()
