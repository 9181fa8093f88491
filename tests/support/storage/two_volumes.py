"""One datanode with volumes a and b, and the worker that empties a volume. Tests call its steps."""

import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from agent.host.volume_evacuation import VolumeEvacuator
from agent.leases import ContainerLeases
from agent.scan.container_scan import StoreScanDeps, VerdictBreaker
from agent.store.options import StoreOptions
from agent.store.replica_store import ReplicaStore
from agent.transfer.volume_copy import VolumeCopier
from merkle.checksum import window_checksums
from merkle.replica import (
    Bcsid,
    BlockData,
    BlockId,
    ChecksumType,
    ChunkInfo,
    ContainerId,
)
from suture.runtime.loop import Idle, ProgressMarker
from tests.support.clock import FakeClock
from tests.support.storage.stored_replica import CLUSTER, DATANODE, MAP_BYTES, noise

WINDOW_BYTES = 16 * 1024
BLOCKS = 3


class Killed(BaseException):
    """Raised to simulate a SIGKILL. No product code catches it."""


@dataclass
class Host:
    """One datanode with volumes a and b, and the worker that empties a volume."""

    path: Path
    executor: ThreadPoolExecutor
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        """Open the volumes a and b."""
        self.open("a", "b")

    def open(self, *names: str) -> None:
        """Open a store on these volumes, as a start of the agent does."""
        options = StoreOptions(reserve_bytes=0, lmdb_map_bytes=MAP_BYTES)
        self.store = ReplicaStore.open(
            [self.at(name) for name in names],
            cluster_id=CLUSTER,
            datanode_id=DATANODE,
            options=options,
        )
        self.leases = ContainerLeases()
        self.tools = StoreScanDeps(
            store=self.store,
            leases=self.leases,
            guard=VerdictBreaker(),
            clock=self.clock,
        )
        mover = VolumeCopier(
            store=self.store,
            executor=self.executor,
            now_ms=self.clock.now_ms,
        )
        self.moves = VolumeEvacuator(
            self.tools, mover, stop=lambda: False, pulse=ProgressMarker(self.clock)
        )

    def at(self, name: str) -> Path:
        """Return the path of a volume."""
        path = self.path / name
        path.mkdir(exist_ok=True)
        return path

    def id_of(self, name: str) -> str:
        """Return the id of a volume."""
        return next(v.volume_id for v in self.store.volumes() if v.path == self.at(name))

    def restart(self, *names: str) -> None:
        """Close the store, and open it on these volumes (default: a and b)."""
        self.store.close()
        self.open(*(names or ("a", "b")))

    def lose_index(self, name: str) -> None:
        """Remove the index of a volume while the store is closed. At the next start, the store
        loads the replicas that have a descriptor."""
        self.store.close()
        shutil.rmtree(self.at(name) / "hdds" / CLUSTER / "db")
        self.open("a", "b")

    def write(self, container_id: int, *, closed: bool = True, count: int = BLOCKS) -> None:
        """Write a container of a few blocks."""
        number = ContainerId(container_id)
        self.store.create_container(number)
        for block_id in range(1, count + 1):
            data = content(container_id, block_id)
            sums = window_checksums(ChecksumType.CRC32C, WINDOW_BYTES, data)
            chunk = ChunkInfo(0, len(data), ChecksumType.CRC32C, WINDOW_BYTES, sums)
            self.store.writer(number).write_chunk(BlockId(block_id), chunk, data)
            self.store.writer(number).put_block(
                BlockData(BlockId(block_id), Bcsid(block_id), (chunk,))
            )
        if closed:
            self.store.close_container(number, bcsid=0, force=True)

    def fill(self, count: int = 4) -> Mapping[str, list[int]]:
        """Write containers, some on each volume; return the container ids by volume."""
        for container_id in range(1, count + 1):
            self.write(container_id)
        return {name: self.on(name) for name in ("a", "b")}

    def on(self, name: str) -> list[int]:
        """Return the containers that a volume serves."""
        volume_id = self.id_of(name)
        return [facts.container_id for facts in self.store.replicas(volume_id=volume_id)]

    def work(self, steps: int = 50) -> None:
        """Run the worker until it has nothing to do."""
        for _ in range(steps):
            if self.moves.step() == Idle():
                return
        raise AssertionError("it does not come to rest")

    def assert_whole(self, count: int = 4) -> None:
        """Assert that every byte of every container can be read and is unchanged."""
        for container_id in range(1, count + 1):
            for block_id in range(1, BLOCKS + 1):
                expected = content(container_id, block_id)
                found = self.store.view(ContainerId(container_id)).read(
                    BlockId(block_id), 0, len(expected)
                )
                assert expected == found, (container_id, block_id)


def content(container_id: int, block_id: int) -> bytes:
    """Return the bytes of a block."""
    return noise(40_000 + block_id, container_id * 100 + block_id)


@contextmanager
def filled(path: Path, count: int) -> Iterator[Host]:
    """Yield a datanode with `count` containers."""
    with ThreadPoolExecutor(8) as executor:
        made = Host(path, executor)
        made.fill(count)
        yield made
        made.store.close()
