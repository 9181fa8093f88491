"""When a quasi-closed container may be closed by force."""

import pytest

from tests.support.judged import judged
from tests.support.snapshots import container


@pytest.mark.parametrize(("acknowledged", "is_stuck"), [(None, False), (10, False), (11, True)])
def test_an_acknowledged_commit_is_waited_for(acknowledged: int | None, is_stuck: bool) -> None:
    """All origins are there, at 10: nobody has what a client was told is stored at 11."""
    replicas = "Q@10^a Q@10^b Q@10^c"
    rows = container(1, "R QUASI_CLOSED 11", replicas, acknowledged_bcsid=acknowledged)

    found = judged([rows])[1]

    assert is_stuck is found.opinion.stuck
    assert is_stuck is ("close" not in {row.action for row in found.plan})
