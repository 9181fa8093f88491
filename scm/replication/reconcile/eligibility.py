"""Decides whether a container may be reconciled, and which of its replicas take part. No I/O.

The checks are in Ozone's order. `health.reconcile_eligibility` makes the same checks for millions
of containers, with the same words. This module checks one container when a command is sent, and
also returns the replicas that take part. A test compares both.

Two rules differ from Ozone's. First, a peer must be reachable and have a tree. A container without
such a peer is rejected, because the command would have no effect and only occupy the queue. Second,
a replica that cannot take part (OPEN, CLOSING, RECOVERING, not loadable) is left out and does not
prevent the reconcile of the others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from merkle.replica import TREE_STATES
from scm.state.entities import Container, ContainerState, Replica

ELIGIBLE_STATES: Final = frozenset({ContainerState.CLOSED, ContainerState.QUASI_CLOSED})


class Eligibility(StrEnum):
    """The result of the check whether a container may be reconciled.

    The first eight words are Ozone's.
    """

    OK = "OK"
    CONTAINER_NOT_FOUND = "CONTAINER_NOT_FOUND"
    INELIGIBLE_CONTAINER_STATE = "INELIGIBLE_CONTAINER_STATE"
    NO_REPLICAS_FOUND = "NO_REPLICAS_FOUND"
    INELIGIBLE_REPLICA_STATES = "INELIGIBLE_REPLICA_STATES"
    INELIGIBLE_REPLICATION_TYPE = "INELIGIBLE_REPLICATION_TYPE"
    NOT_ENOUGH_REQUIRED_NODES = "NOT_ENOUGH_REQUIRED_NODES"
    NO_REACHABLE_PEER = "NO_REACHABLE_PEER"


@dataclass(frozen=True, slots=True)
class Participants:
    """The datanodes that reconcile (`targets`), and the datanodes that they read from (`peers`).

    A target never reads from itself.
    """

    eligibility: Eligibility
    message: str
    targets: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()

    def peers_of(self, datanode_id: str) -> tuple[str, ...]:
        """Return the peers from which a datanode reads. The datanode itself is not included."""
        return tuple(peer for peer in self.peers if peer != datanode_id)


def judge(
    container: Container | None,
    replicas: Sequence[Replica],
    is_reachable: Callable[[str], bool],
) -> Participants:
    """Check whether a container may be reconciled now. Return the result and the participants."""
    if container is None:
        return Participants(Eligibility.CONTAINER_NOT_FOUND, "no such container")
    if container.state not in ELIGIBLE_STATES:
        return Participants(
            Eligibility.INELIGIBLE_CONTAINER_STATE,
            f"container is {container.state}, must be CLOSED or QUASI_CLOSED",
        )
    if not replicas:
        return Participants(Eligibility.NO_REPLICAS_FOUND, "no datanode reports a replica")
    able = [replica for replica in replicas if replica.state in TREE_STATES]
    if not able:
        states = ", ".join(f"{replica.datanode_id} is {replica.state}" for replica in replicas)
        return Participants(Eligibility.INELIGIBLE_REPLICA_STATES, f"replica on {states}")
    if not container.scheme and any(replica.replica_index for replica in able):
        return Participants(
            Eligibility.INELIGIBLE_REPLICATION_TYPE,
            "container is erasure-coded, and its code is not known here",
        )
    if container.replication_factor < 2:
        return Participants(
            Eligibility.NOT_ENOUGH_REQUIRED_NODES,
            f"replication factor is {container.replication_factor}",
        )
    return _with_peers(able, is_reachable)


def _with_peers(replicas: Sequence[Replica], is_reachable: Callable[[str], bool]) -> Participants:
    able = [r for r in replicas if not r.load_error and is_reachable(r.datanode_id)]
    peers = tuple(replica.datanode_id for replica in able if replica.tree is not None)
    targets = tuple(replica.datanode_id for replica in able if set(peers) - {replica.datanode_id})
    if not targets:
        return Participants(
            Eligibility.NO_REACHABLE_PEER,
            f"{len(replicas)} replicas, {len(peers)} on reachable nodes with a tree: "
            "nobody has a peer",
        )
    return Participants(Eligibility.OK, "", targets, peers)
