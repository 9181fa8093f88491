"""Sets of indexes of the widest code that is taken."""

from health.ec_replication import INDEX_MAX
from health.words import HealthState
from suture.wire.mapping.codec import REPLICA_INDEX_MAX
from tests.support.verification.judged import judged
from tests.support.verification.snapshots import container

WHOLE = " ".join(f"C#{index}" for index in range(1, 33))


def test_the_last_index_of_the_widest_code_counts() -> None:
    """
    Twenty shards of data and twelve of parity; what one container has is not its neighbour's.
    """
    lines = (WHOLE, WHOLE.removesuffix(" C#32"), f"{WHOLE} C#32")

    found = judged([container(i, "EC20-12 CLOSED", words) for i, words in enumerate(lines)])

    assert 32 == INDEX_MAX == REPLICA_INDEX_MAX
    assert [
        HealthState.HEALTHY.name,
        HealthState.UNDER_REPLICATED.name,
        HealthState.OVER_REPLICATED.name,
    ] == [found[i].opinion.state for i in range(3)]
