"""The cluster of the soak test: real processes on disks, with network connections that can be
cut.
"""

import json
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from suture.client.cluster_client import ClusterClient
from suture.wire.v1 import scm_pb2
from tests.support.faults.bad_line import BadLine
from tools.demo.cluster import Cluster, free_port
from tools.demo.stage import LISTED_MAX
from tools.soak.child import launched_watched
from tools.soak.disks import Disk, LoopDisk, NoLoopDevices

DISK_BYTES: Final = 640 * 1024**2
CONTAINER_BYTES: Final = 16 * 1024**2
SPARED: Final = 0  # this agent is never killed: its memory is watched all the time
AGENT_SECTIONS: Final = """[scan]
data_interval_s = "2min"
gap_min_s = "5s"
promise = "warn"
start_jitter_s = "2s"
ceiling_bytes_per_s = "40MiB/s"
"""
SCM_SETTINGS: Final = {
    "stale_after_ms": 15_000,
    "dead_after_ms": 600_000,
    "close_retry_ms": 1_000,
    "heal_after_ms": 3_000,
    "reconcile_cooldown_ms": 10_000,
}
"""Options of the SCM that shorten delays from minutes to seconds. Only the time until a datanode is
DEAD is long, so that the SCM does not replace the replicas of absent datanodes."""


@dataclass(slots=True)
class LinedCluster(Cluster):
    """A cluster in which all calls to and from each agent go through a relay that can break."""

    lines: ExitStack = field(default_factory=ExitStack)
    to_scm: dict[int, BadLine] = field(default_factory=dict)
    to_agent: dict[int, BadLine] = field(default_factory=dict)
    ports: dict[int, int] = field(default_factory=dict)

    def write_config(self, index: int, listen: str = "") -> Path:
        """Write the config file of agent `index`. Its port is the same after each restart."""
        del listen
        if index not in self.ports:
            self.ports[index] = free_port()
            here = f"127.0.0.1:{self.ports[index]}"
            self.to_agent[index] = self.lines.enter_context(BadLine(here))
            self.to_scm[index] = self.lines.enter_context(BadLine(self.scm.address))
        paths = ", ".join(json.dumps(str(path)) for path in self.volume_paths(index))
        config = self.root / f"datanode{index + 1}.toml"
        config.write_text(
            f'[node]\nlisten = "127.0.0.1:{self.ports[index]}"\n'
            f'advertise = "{self.to_agent[index].address}"\n'
            f'scm = "{self.to_scm[index].address}"\nrack = "/rack{index % 2}"\n'
            f"[storage]\nvolumes = [{paths}]\nreserve_bytes = 0\n"
            f'[observe]\nlisten = "127.0.0.1:0"\n{self.agent_sections}'
        )
        return config

    def restart_scm(self) -> None:
        """Restart the control plane at its earlier address."""
        self.scm.arguments = self.scm_arguments(self.scm.address)
        self.scm.start()


@dataclass
class Site:
    """The cluster with its disks, and a client for the control plane's facts about it."""

    cluster: LinedCluster
    disks: dict[int, list[Disk]]
    without_loops: str  # why there are no loop devices; "" if there are
    client: ClusterClient
    threads: Path  # directory of the processes' thread records
    indexes: dict[str, int] = field(default_factory=dict)  # by datanode id

    def learn(self) -> bool:
        """Map datanode ids to processes; return True if all ids are known."""
        by_address = {line.address: i for i, line in self.cluster.to_agent.items()}
        nodes = self.client.scm.list_nodes(scm_pb2.ListNodesRequest()).nodes
        self.indexes = {
            node.datanode_id: by_address[node.address]
            for node in nodes
            if node.address in by_address
        }
        return len(self.indexes) == len(self.cluster.nodes)

    def containers(self) -> list[scm_pb2.ContainerInfo]:
        """Return all containers that the control plane knows."""
        found: list[scm_pb2.ContainerInfo] = []
        start = 1
        while start:
            request = scm_pb2.ListContainerInfosRequest(start_container_id=start, count=LISTED_MAX)
            answer = self.client.scm.list_container_infos(request)
            found += answer.containers
            start = answer.next_container_id
        return found

    def close(self) -> None:
        """Stop everything, and release the disks."""
        with suppress(Exception):
            self.client.close()
        self.cluster.stop()
        self.cluster.lines.close()
        for disks in self.disks.values():
            for disk in disks:
                disk.remove()


def build(root: Path, *, agents: int, volumes: int) -> Site:
    """Create disks and start a cluster on them."""
    threads = root / "threads"
    threads.mkdir(parents=True, exist_ok=True)
    cluster = LinedCluster(
        root,
        agents=agents,
        volumes=volumes,
        container_bytes_max=CONTAINER_BYTES,
        heartbeat_interval_ms=1_000,
        agent_sections=AGENT_SECTIONS,
        scm_settings=SCM_SETTINGS,
        launch=partial(launched_watched, threads),
    )
    disks, why = made_disks(cluster, agents)
    try:
        cluster.start()
        return Site(cluster, disks, why, ClusterClient(cluster.scm.address), threads)
    except BaseException:
        cluster.stop()
        cluster.lines.close()
        for some in disks.values():
            for disk in some:
                disk.remove()
        raise


def made_disks(cluster: Cluster, agents: int) -> tuple[dict[int, list[Disk]], str]:
    """Create the disks of all agents. If mounting is impossible, return plain directories, and the
    reason."""
    made: dict[int, list[Disk]] = {}
    why = ""
    for index in range(agents):
        made[index] = []
        for number, path in enumerate(cluster.volume_paths(index)):
            disk = Disk(path)
            if not why:
                image = cluster.root / f"disk-{index}-{number}.img"
                disk = LoopDisk(path, image, DISK_BYTES)
                try:
                    disk.make()
                except NoLoopDevices as error:
                    why = str(error)
                    disk.remove()
                    disk = Disk(path)
            disk.make() if type(disk) is Disk else None
            made[index].append(disk)
    return made, why
