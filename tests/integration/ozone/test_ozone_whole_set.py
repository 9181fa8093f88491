"""The whole set of real volumes, where it is at hand: 16 replicas, whole and damaged."""

from collections import Counter
from pathlib import Path

import pytest

from ozone.scrub.comparison import Agreement, ChecksumDifferenceReason
from ozone.scrub.result import ContainerResult, ScrubStatus
from ozone.scrub.scrub import ScrubListener, ScrubOptions, scrub
from tests.support.faults.changes_seen import changes
from tests.support.ozone.ozone_volumes import WHOLE, needs_whole_set, snapshot, unpack


@needs_whole_set
@pytest.mark.slow
def test_every_replica_of_a_whole_cluster_is_whole_and_explained(tmp_path: Path) -> None:
    """
    Five datanodes: no finding at all, every root equal or explained, nothing touched.
    """
    unpack(WHOLE, tmp_path / "set")
    results: list[ContainerResult] = []

    for number in range(5):
        data_dir = tmp_path / "set" / f"dn{number}"
        before = snapshot(data_dir)
        wish = ScrubOptions(data_dirs=[data_dir], state_dir=tmp_path / f"state{number}")
        with changes(data_dir) as seen:
            scrub(wish, ScrubListener(lambda *_: None, lambda _: None, results.append))
        assert [] == seen
        assert before == snapshot(data_dir)

    assert 16 == len(results)
    assert {ScrubStatus.WHOLE} == {result.status for result in results}
    assert 0 == sum(result.finding_count for result in results)
    found = Counter(
        (result.comparison.agreement, tuple(result.comparison.reasons)) for result in results
    )
    assert {
        (Agreement.EQUAL, ()): 13,
        (Agreement.EXPLAINED, (ChecksumDifferenceReason.LAST_CHUNK,)): 3,
    } == found
