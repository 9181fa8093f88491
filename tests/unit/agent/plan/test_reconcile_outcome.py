"""What became of a reconcile: nothing, unless it is said."""

from agent.plan.reconcile_outcome import PeerOutcome, PeerState, ReconcileResult, ReconcileVerdict
from merkle.replica import ContainerId


def test_a_peer_that_was_only_asked_cost_nothing() -> None:
    """
    No bytes of trees or data, no chunk.
    """
    peer = PeerOutcome("dn2", PeerState.EQUAL)

    assert ("", 0, 0, 0) == (peer.message, peer.tree_bytes, peer.data_bytes, peer.chunk_count)


def test_a_reconcile_with_nothing_to_do_moved_nothing() -> None:
    """
    Counts, bytes and time are those of what was done.
    """
    result = ReconcileResult(ContainerId(7), ReconcileVerdict.NOTHING_TO_DO)

    assert (0, 0, 0, 0) == (
        result.chunk_count,
        result.fetched_bytes,
        result.tree_fetched_bytes,
        result.duration_ms,
    )
