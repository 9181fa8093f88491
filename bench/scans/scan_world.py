"""Creates containers to scan on a real volume, which is then opened like any other.

Files and rows are written in bulk, bypassing the store. Through the store, with one durable write
per chunk, 50,000 blocks would take minutes. The resulting volume is the same.
"""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from agent.store.files.layout import VolumeLayout, decode_version
from agent.store.index.transactions import IndexChange
from agent.store.options import StoreOptions
from agent.store.replica_store import ReplicaStore
from agent.store.volumes.volume import open_volume
from merkle.blockrow import encode_block
from merkle.checksum import window_checksums
from merkle.replica import Bcsid, BlockData, BlockId, ChecksumType, ChunkInfo, ContainerId

CLUSTER: Final = "bench"
DATANODE: Final = "dn-bench"
WINDOW_BYTES: Final = 16 * 1024
OPTIONS: Final = StoreOptions(reserve_bytes=0, lmdb_map_bytes=256 * 1024**2)
WARM_UP: Final = ContainerId(9)  # a small one, to scan before the measurement
LIST, SUMS = "list", "sums"


@dataclass(frozen=True, slots=True)
class Shape:
    """The content of a container: `block_count` blocks of `chunk_count` chunks each."""

    block_count: int
    chunk_count: int
    chunk_bytes: int

    @property
    def length_bytes(self) -> int:
        """Bytes of all blocks."""
        return self.block_count * self.chunk_count * self.chunk_bytes


def open_store(volume: Path, datanode_id: str = DATANODE) -> ReplicaStore:
    """Open the store of one volume."""
    return ReplicaStore.open([volume], cluster_id=CLUSTER, datanode_id=datanode_id, options=OPTIONS)


def copy_volume(volume: Path, copy: Path, datanode_id: str) -> None:
    """Copy a volume with all its replicas, as a volume of another datanode."""
    shutil.copytree(volume, copy)
    path = VolumeLayout(copy, CLUSTER).version
    version = decode_version(path.read_bytes(), path)
    path.write_bytes(replace(version, datanode_id=datanode_id).encode())


def fill(volume: Path, container_id: ContainerId, shape: Shape) -> Path:
    """Create a closed container with the given shape; return the folder of its block files.

    For the C program, a list of the files and a file with the checksums of their windows are
    written beside this folder.
    """
    volume.mkdir(parents=True, exist_ok=True)
    store = open_store(volume)
    store.create_container(container_id)
    chunks = store.paths(container_id).chunks
    store.close()
    rows, sums = write_files(chunks, int(container_id), shape)
    opened = open_volume(volume, cluster_id=CLUSTER, datanode_id=DATANODE, options=OPTIONS)
    try:
        for start in range(0, len(rows), 10_000):
            opened.index.write(partial(put_rows, container_id, rows[start : start + 10_000]))
    finally:
        opened.close()
    os.sync()
    store = open_store(volume)
    store.close_container(container_id, bcsid=0, force=True)
    store.close()
    lines = (
        f"{shape.chunk_count * shape.chunk_bytes} chunks/{number}.block\n" for number, _ in rows
    )
    (chunks.parent / LIST).write_text("".join(lines))
    np.frombuffer(sums, dtype=">u4").astype("=u4").tofile(chunks.parent / SUMS)
    return chunks


def repeat(volume: Path, source: ContainerId, targets: Sequence[ContainerId]) -> None:
    """Create closed containers with the blocks of the container `source`, which share its files.
    A scan must read all of them past the page cache, but they need little disk space.
    """
    store = open_store(volume)
    rows = list(store.view(source).block_rows())
    folders = {}
    for target in targets:
        store.create_container(target)
        folders[target] = store.paths(target).chunks
    files = sorted(store.paths(source).chunks.iterdir())
    store.close()
    for folder in folders.values():
        for file in files:
            (folder / file.name).hardlink_to(file)
    opened = open_volume(volume, cluster_id=CLUSTER, datanode_id=DATANODE, options=OPTIONS)
    try:
        for target in targets:
            opened.index.write(partial(put_rows, target, rows))
    finally:
        opened.close()
    os.sync()
    store = open_store(volume)
    for target in targets:
        store.close_container(target, bcsid=0, force=True)
    store.close()


def put_rows(
    container_id: ContainerId, rows: list[tuple[BlockId, bytes]], change: IndexChange
) -> None:
    """Put block rows into the index, within the open change."""
    for row in rows:
        change.put_block(container_id, *row)


def write_files(chunks: Path, seed: int, shape: Shape) -> tuple[list[tuple[BlockId, bytes]], bytes]:
    """Write the block files; return their rows, and the checksums of all their windows."""
    generator = np.random.default_rng(seed)
    rows: list[tuple[BlockId, bytes]] = []
    all_sums = bytearray()
    for number in range(1, shape.block_count + 1):
        infos = []
        with (chunks / f"{number}.block").open("wb") as file:
            for index in range(shape.chunk_count):
                data = generator.bytes(shape.chunk_bytes)
                sums = window_checksums(ChecksumType.CRC32C, WINDOW_BYTES, data)
                offset = index * shape.chunk_bytes
                infos.append(ChunkInfo(offset, len(data), ChecksumType.CRC32C, WINDOW_BYTES, sums))
                file.write(data)
                all_sums += sums
        block = BlockData(BlockId(number), Bcsid(number), tuple(infos))
        rows.append((block.block_id, encode_block(block)))
    return rows, bytes(all_sums)
