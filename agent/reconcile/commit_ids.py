"""Rules for the commit ids (BCSID) that a replica may take over from its peers.

The commit id of a replica states that the replica has all blocks committed up to that id.
Therefore, a replica may take over a commit id only from a healthy peer, and only if it has all data
of that peer. Ozone 2.2 takes over the commit id of a peer even if blocks are missing. Its replica
then claims blocks that no replica has (HDDS-15542).
"""

from collections.abc import Iterable, Mapping
from typing import Final

from agent.plan.actions import PeerId
from merkle.replica import ContainerId, ReplicaState
from suture.errors import SutureError
from suture.wire.clients.replica_peer import ReplicaPeer
from suture.wire.mapping import codec

TRUSTED_STATES: Final = frozenset({ReplicaState.CLOSED, ReplicaState.QUASI_CLOSED})
"""States in which a peer's commit id means that the peer has all blocks up to this id."""


def highest_claim(
    peers: Mapping[PeerId, ReplicaPeer], container_id: ContainerId, equal_peers: Iterable[PeerId]
) -> tuple[PeerId, int]:
    """Return the healthy peer with the highest commit id among `equal_peers`, and this commit id.

    If no peer is healthy, the commit id is 0.
    """
    claimed = {peer_id: _claimed(peers[peer_id], container_id) for peer_id in equal_peers}
    lender = max(claimed, key=claimed.__getitem__, default="")
    return lender, claimed.get(lender, 0)


def highest_lent(
    peers: Mapping[PeerId, ReplicaPeer],
    container_id: ContainerId,
    lent: Mapping[PeerId, int],
    *,
    own: int,
) -> int:
    """Return the highest commit id in `lent` that the local replica may take over.

    `lent` has a commit id of each peer. `own` is the commit id that the replica has now. The
    replica may take over the commit id of a peer if it is above `own`, and if the replica of the
    peer is CLOSED or QUASI_CLOSED and has at least this commit id. Return `own` if there is no such
    commit id.
    """
    trusted = [
        bcsid
        for peer_id, bcsid in lent.items()
        if bcsid > own and _may_lend(peers[peer_id], container_id, bcsid)
    ]
    return max(trusted, default=own)


def _claimed(peer: ReplicaPeer, container_id: ContainerId) -> int:
    """Return the commit id of the replica of a peer.

    Return 0 if the replica is neither CLOSED nor QUASI_CLOSED, if it has findings, or if the peer
    does not answer.
    """
    try:
        report = peer.replica(container_id)
        state = codec.parse_state(report.state, "answer.replica.state")
        bcsid = codec.parse_bcsid(report.bcsid, "answer.replica.bcsid")
    except SutureError:
        return 0
    return 0 if state not in TRUSTED_STATES or report.finding_count else bcsid


def _may_lend(peer: ReplicaPeer, container_id: ContainerId, bcsid: int) -> bool:
    try:
        report = peer.replica(container_id)
        state = codec.parse_state(report.state, "answer.replica.state")
    except SutureError:
        return False  # a peer that does not answer proves nothing
    return state in TRUSTED_STATES and bcsid <= report.bcsid
