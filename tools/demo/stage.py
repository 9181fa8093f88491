"""The common base of the demo's parts: the cluster, a client, and the command line."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from suture.client.cluster_client import ClusterClient
from suture.errors import Code, UnavailableError
from suture.wire.clients.block_peer import Endpoint
from suture.wire.clients.peer import Peer
from suture.wire.v1 import container_pb2, scm_pb2
from tools.demo.cluster import Cluster

WAIT_S: Final = 120.0
POLL_S: Final = 0.1
COMMAND_TIMEOUT_S: Final = 120.0
REPLICAS: Final = 3
LISTED_MAX: Final = 1000
HEALTHY: Final = "HEALTHY"

Place = tuple[str, int]
"""A datanode and a container, which identify a replica."""


@dataclass(slots=True)
class Stage:
    """A running cluster with a client. `addresses` and `indexes` have the address and the process
    number of each datanode, by id."""

    cluster: Cluster
    client: ClusterClient
    addresses: dict[str, str] = field(default_factory=dict)
    indexes: dict[str, int] = field(default_factory=dict)  # number of the process

    def learn_addresses(self) -> None:
        """Wait until all datanodes have registered, and record their addresses and process
        numbers."""
        by_address = {process.address: i for i, process in enumerate(self.cluster.nodes)}

        def registered() -> bool:
            self.addresses = {node.datanode_id: node.address for node in self.nodes()}
            return len(self.addresses) == len(self.cluster.nodes)

        wait_until(registered, "all datanodes register")
        self.indexes = {d: by_address[address] for d, address in self.addresses.items()}

    def nodes(self) -> list[scm_pb2.NodeInfo]:
        """Return the SCM's facts about the datanodes."""
        return list(self.client.scm.list_nodes(scm_pb2.ListNodesRequest()).nodes)

    def peer(self, datanode_id: str) -> Peer:
        """Return the connection to a datanode."""
        return self.client.peer(Endpoint(datanode_id, self.addresses[datanode_id]))

    def is_heard(self, datanode_id: str) -> bool:
        """Return True if the SCM lists a datanode as healthy and the datanode answers this
        process."""
        healthy = {node.datanode_id for node in self.nodes() if node.health == HEALTHY}
        if datanode_id not in healthy:
            return False
        try:
            self.peer(datanode_id).status()
        except UnavailableError:
            return False
        return True

    def infos_of(self, container_ids: Collection[int]) -> list[scm_pb2.ContainerInfo]:
        """Return the SCM's facts about some containers."""
        request = scm_pb2.ListContainerInfosRequest(start_container_id=1, count=LISTED_MAX)
        answer = self.client.scm.list_container_infos(request)
        return [info for info in answer.containers if info.container_id in container_ids]

    def outcomes_of(self, command_ids: Sequence[int]) -> list[scm_pb2.Outcome]:
        """Wait until all commands have an outcome; return the outcomes."""
        outcomes: list[scm_pb2.Outcome] = []

        def answered() -> bool:
            request = scm_pb2.ListOutcomesRequest(command_ids=command_ids, count=len(command_ids))
            answer = self.client.scm.list_outcomes(request)
            outcomes[:] = answer.outcomes
            return not answer.pending_command_ids

        wait_until(answered, "all commands end")
        return outcomes

    def suture(self, *arguments: str) -> Any:  # any JSON that the command prints
        """Run `suture --json` as an operator does; return the printed document.

        Raise UnavailableError if the command printed no JSON. Its exit code is ignored, because it
        may only report that something needs attention.
        """
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "agent.cli.start",
                *arguments,
                "--scm",
                self.cluster.scm.address,
                "--json",
            ],
            capture_output=True,
            check=False,
            timeout=COMMAND_TIMEOUT_S,
        )
        try:
            return json.loads(done.stdout)
        except ValueError:
            raise UnavailableError(
                Code.UNAVAILABLE,
                f"suture {' '.join(arguments)} ended with {done.returncode}: "
                f"{done.stderr.decode(errors='replace')[-500:]}",
            ) from None


def is_whole(info: scm_pb2.ContainerInfo) -> bool:
    """Return True if a container has three CLOSED replicas with one root."""
    return are_equal([item.replica for item in info.replicas])


def are_equal(replicas: Sequence[container_pb2.ReplicaReport]) -> bool:
    """Return True if these are three CLOSED replicas with one root."""
    roots = {r.tree.root if r.HasField("tree") else None for r in replicas}
    states = {r.state for r in replicas}
    return (
        len(replicas) == REPLICAS
        and states == {container_pb2.CLOSED}
        and len(roots) == 1
        and None not in roots
    )


def are_known(
    scanned: Mapping[Place, container_pb2.ReplicaReport], infos: Sequence[scm_pb2.ContainerInfo]
) -> bool:
    """Return True if the SCM's records of all replicas have the state and root of their last scans.
    Otherwise, a root that is reported after the snapshot would make the plan stale."""
    known = {
        (one.datanode.datanode_id, info.container_id): _standing(one.replica)
        for info in infos
        for one in info.replicas
    }
    return all(known.get(place) == _standing(report) for place, report in scanned.items())


def _standing(report: container_pb2.ReplicaReport) -> tuple[int, int | None]:
    return report.state, report.tree.root if report.HasField("tree") else None


def wait_until(condition: Callable[[], bool], what: str, wait_s: float = WAIT_S) -> None:
    """Poll `condition` until it is true. Raise UnavailableError if it does not become true within
    `wait_s`; `what` describes it."""
    deadline_s = time.monotonic() + wait_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise UnavailableError(Code.UNAVAILABLE, f"waited {wait_s:.0f} s in vain until {what}")
        time.sleep(POLL_S)
