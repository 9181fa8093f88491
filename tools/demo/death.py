"""The demo's dead datanode: one agent is killed, is absent for a while, and returns.

While it is absent, `suture status` reports it, reads continue, and its replicas are copied to other
datanodes. When it has returned, surplus replicas are removed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from suture.client.file_pieces import SourceFile
from suture.errors import UnavailableError
from suture.wire.v1 import scm_pb2
from tools.demo.liar import smallest_of
from tools.demo.readback import Checksums, fetch_through_keys, source_checksums
from tools.demo.stage import HEALTHY, REPLICAS, Stage, are_equal, is_whole, wait_until

PREFIX: Final = "late/"
OPEN: Final = "OPEN"
TIMES: Final = {
    "stale_after_ms": 6_000,
    "dead_after_ms": 20_000,
    "close_retry_ms": 250,
    "heal_after_ms": 2_000,
    "reconcile_cooldown_ms": 1_000,  # what healed by itself is damaged again, and planned at once
}
"""Options of the demo's SCM that shorten delays from minutes to seconds."""


@dataclass(slots=True)
class Death:
    """The datanode that died, and what happened to its containers."""

    datanode_id: str = ""
    open_id: int = 0  # container that was open when the datanode died
    containers: list[int] = field(default_factory=list)  # containers with a copy on this datanode
    checksums: Checksums = field(default_factory=dict)
    headline: str = ""  # of `suture status`, while it is dead
    made_count: int = 0  # replicas made elsewhere
    made_bytes: int = 0
    removed_count: int = 0  # after its return


def store(death: Death, stage: Stage, sources: Sequence[SourceFile]) -> None:
    """Store some of the sources again, in a container that remains open."""
    wanted = smallest_of(sources, PREFIX)
    stored, [death.open_id, *_] = stage.client.put(wanted, lanes=1, close=False)
    death.checksums = source_checksums(wanted, stored)


def kill(death: Death, stage: Stage, container_ids: Sequence[int]) -> Iterator[str]:
    """Kill a datanode that has a replica of the open container; yield the deviations from the
    expected state."""
    [info] = stage.infos_of([death.open_id])
    if info.state != OPEN:
        yield f"container {death.open_id} is {info.state}, not open"
    held = {
        item.datanode.datanode_id: containers_on(stage, item.datanode.datanode_id, container_ids)
        for item in info.replicas
    }
    death.datanode_id = max(held, key=lambda datanode_id: len(held[datanode_id]))
    death.containers = [*held[death.datanode_id], death.open_id]
    stage.cluster.nodes[stage.indexes[death.datanode_id]].kill()


def containers_on(stage: Stage, datanode_id: str, container_ids: Sequence[int]) -> list[int]:
    """Return the containers of `container_ids` that have a replica on a datanode."""
    return [
        info.container_id
        for info in stage.infos_of(container_ids)
        if datanode_id in {item.datanode.datanode_id for item in info.replicas}
    ]


def outlive(death: Death, stage: Stage, checksums: Checksums) -> Iterator[str]:
    """Read files while the datanode is dead, and wait until other datanodes have enough replicas;
    yield the deviations from the expected state."""
    yield from fetch_through_keys(stage.client, checksums)
    yield from fetch_through_keys(stage.client, death.checksums)

    def is_dead() -> bool:
        return {node.datanode_id: node.health for node in stage.nodes()}[
            death.datanode_id
        ] == "DEAD"

    wait_until(is_dead, "the control plane gives the datanode up")
    answer = stage.suture("status")
    death.headline = str(answer["summary"])
    if answer["healthy"] or "not answer" not in death.headline:
        yield f"suture status does not say that a datanode is dead: {death.headline}"
    if len(stage.cluster.nodes) <= REPLICAS:
        return  # no other datanode is left to copy to
    wait_until(
        lambda: all(is_whole_without(death, info) for info in stage.infos_of(death.containers)),
        "all replicas of the dead datanode are made elsewhere",
    )
    death.made_count = len(death.containers)
    death.made_bytes = sum(info.used_bytes for info in stage.infos_of(death.containers))
    yield from fetch_through_keys(stage.client, checksums)


def is_whole_without(death: Death, info: scm_pb2.ContainerInfo) -> bool:
    """Return True if the live datanodes have three equal replicas."""
    alive = [
        item.replica
        for item in info.replicas
        if item.node_health == HEALTHY and item.datanode.datanode_id != death.datanode_id
    ]
    return are_equal(alive)


def come_back(death: Death, stage: Stage) -> Iterator[str]:
    """Restart the datanode with all its data, and wait until no replica is surplus; yield the
    deviations from the expected state."""
    index = stage.indexes[death.datanode_id]
    on_disk = sum(count_on_disk(stage, container_id) for container_id in death.containers)
    stage.cluster.start_again(index)
    wait_until(lambda: stage.is_heard(death.datanode_id), "the dead datanode is back")

    def is_settled() -> bool:
        return all(
            is_whole(info) and count_on_disk(stage, info.container_id) == REPLICAS
            for info in stage.infos_of(death.containers)
        )

    try:
        wait_until(is_settled, "what is there once too often is removed")
    except UnavailableError as error:
        yield str(error)
    left = sum(count_on_disk(stage, container_id) for container_id in death.containers)
    death.removed_count = on_disk - left


def count_on_disk(stage: Stage, container_id: int) -> int:
    """Return how many replicas of a container are on the disks of all datanodes, dead or alive."""
    return sum(
        1
        for index in range(len(stage.cluster.nodes))
        for volume in stage.cluster.volume_paths(index)
        for _ in volume.glob(f"hdds/*/current/containerDir*/{container_id}")
    )
