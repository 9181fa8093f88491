"""A divergence that repairs could not end is left alone for a day, by whatever clock."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.plan.reconcile_outcome import Result
from agent.reconcile.reconciler import FRUITLESS_MS_MAX
from tests.support.faults.bad_peers import Liar
from tests.support.storage.datanodes import Datanode, dialled
from tests.support.storage.stored_replica import CONTAINER

NOW_MS = 1_800_000_000_000
YEAR_MS = 365 * 24 * 3_600_000


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[list[Datanode]]:
    """A damaged replica, and a peer that has nothing but lies for it."""
    datanodes = [Datanode(f"dn{number}", tmp_path / f"dn{number}") for number in (1, 2)]
    for datanode in datanodes:
        datanode.replica.create(blocks=2)
    datanodes[0].replica.flip(1, 5)
    datanodes[0].scan()
    datanodes[1].serve(Liar)
    yield datanodes
    for datanode in datanodes:
        datanode.close()


@pytest.mark.parametrize(
    ("later_ms", "expected"),
    [
        (NOW_MS + FRUITLESS_MS_MAX - 1, Result.NON_CONVERGENT),
        (NOW_MS + FRUITLESS_MS_MAX, Result.PARTIAL),
        (NOW_MS - 60 * YEAR_MS, Result.PARTIAL),
    ],
)
def test_it_is_tried_again_after_a_day(
    pair: list[Datanode], monkeypatch: pytest.MonkeyPatch, later_ms: int, expected: Result
) -> None:
    """Also where the clock was sixty years ahead when it was tried, and has been set since: else
    the replica stays as it is until that year, whatever its peers can do by then."""
    reconciler = pair[0].reconciler()
    monkeypatch.setattr(reconciler, "_now_ms", lambda: NOW_MS)
    with dialled(pair[1:]) as peers:
        for _ in range(2):
            reconciler.reconcile(CONTAINER, peers)
        assert Result.NON_CONVERGENT is reconciler.reconcile(CONTAINER, peers).result

        monkeypatch.setattr(reconciler, "_now_ms", lambda: later_ms)

        assert expected is reconciler.reconcile(CONTAINER, peers).result
