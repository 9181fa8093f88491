"""Creates two volumes with the same bytes: one of an Ozone datanode, and one of an agent.

Both have the same block files, by hard links, so that neither has a better place on disk. Ozone's
rows are in a RocksDB of schema V3 with a datanode's options, and its descriptors and trees are as
Ozone writes them. The agent's rows and trees are in its index. Each container has one shape:
Ozone's current client defaults, or its earlier ones.
"""

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from rocksdict import BlockBasedOptions, DBCompressionType, Options, Rdict, SliceTransform

from agent.store.index.transactions import IndexChange
from agent.store.volumes.volume import open_volume
from bench.scans.scan_world import CLUSTER, DATANODE, OPTIONS, open_store
from merkle.blockrow import encode_block
from merkle.checksum import Algorithm, block_checksum, leaf_checksum, window_checksums
from merkle.checksum_columns import container_checksum
from merkle.replica import Bcsid, BlockData, BlockId, ChecksumType, ChunkInfo, ContainerId
from ozone.disk.messages import BLOCK_DATA, CHECKSUM_INFO
from ozone.disk.rows import BLOCK_COUNT, BYTES_USED, RECORDED_ROOT
from tests.support.ozone.ozone_volumes import descriptor_text, key

KIB: Final = 1024
MIB: Final = 1024**2
FAMILIES: Final = ("block_data", "metadata", "delete_txns", "finalize_blocks", "last_chunk_info")
STORAGE: Final = "DS-bench"
FIRST_ID: Final = 117_883_640_217_600_001  # as the SCM assigns them
CHUNK_BYTES: Final = 4 * MIB
CHUNKS_PER_BLOCK: Final = 64  # a block of 256 MiB, Ozone's default
SMALL_BYTES: Final = 9_000
LARGE_SHARE: Final = 0.2  # of the volume, per container of large blocks
SMALL_SHARE: Final = 0.1
PREFIX_BYTES: Final = 9  # of a key: the container and a bar
WARM_UP: Final = ContainerId(9)
ROWS_PER_CHANGE: Final = 10_000


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a container: the checksum type, and the sizes of windows, chunks and blocks that
    its clients used. `share` is its share of the volume."""

    container_id: ContainerId
    name: str
    checksum_type: ChecksumType
    window_bytes: int
    chunk_bytes: int
    chunks_per_block: int
    share: float

    def block_count(self, volume_bytes: int) -> int:
        """Return the number of blocks for its share of the volume."""
        return max(1, int(volume_bytes * self.share) // (self.chunk_bytes * self.chunks_per_block))


def _large(number: int, kind: ChecksumType, window_bytes: int) -> Shape:
    name = f"{kind.name}, {window_bytes // KIB} KiB windows"
    return Shape(ContainerId(number), name, kind, window_bytes, CHUNK_BYTES, CHUNKS_PER_BLOCK,
                 LARGE_SHARE)  # fmt: skip


def _small(number: int, kind: ChecksumType) -> Shape:
    name = f"{kind.name}, blocks of {SMALL_BYTES} B"
    return Shape(ContainerId(number), name, kind, 16 * KIB, SMALL_BYTES, 1, SMALL_SHARE)


SHAPES: Final = (
    _large(1, ChecksumType.CRC32, 16 * KIB),
    _large(2, ChecksumType.CRC32, MIB),
    _large(3, ChecksumType.CRC32C, 16 * KIB),
    _large(4, ChecksumType.CRC32C, MIB),
    _small(5, ChecksumType.CRC32),
    _small(6, ChecksumType.CRC32C),
)
WARMING: Final = Shape(WARM_UP, "", ChecksumType.CRC32, 16 * KIB, CHUNK_BYTES, 2, 0.0)


class World:
    """The paths of the two volumes."""

    def __init__(self, root: Path) -> None:
        self.own = root / "own"
        self.ozone = root / "ozone"
        self.state = root / "state"

    @property
    def cluster(self) -> Path:
        """The directory of Ozone's cluster."""
        return self.ozone / "hdds" / CLUSTER

    @property
    def database(self) -> Path:
        """The directory of the RocksDB in Ozone's volume."""
        return self.cluster / STORAGE / "container.db"

    def container(self, container_id: ContainerId) -> Path:
        """Return the directory of a container in Ozone's volume."""
        return self.cluster / "current" / "containerDir0" / str(container_id)


def make(root: Path, volume_bytes: int) -> World:
    """Create both volumes below `root`, each with about `volume_bytes`; return their paths."""
    world = World(root)
    world.own.mkdir(parents=True)
    world.database.mkdir(parents=True)
    version = f"storageID={STORAGE}\nclusterID={CLUSTER}\ndatanodeUuid={DATANODE}\n"
    (world.ozone / "hdds" / "VERSION").write_text(version)
    database = _create(world.database)
    families = {name: database.get_column_family(name) for name in FAMILIES}
    for shape in (*SHAPES, WARMING):
        blocks = list(_write(world, shape, volume_bytes))
        _describe(world, shape, blocks, families)
        _own(world, shape, blocks)
    for family in families.values():
        family.flush()
    families.clear()
    database.close()
    os.sync()
    return world


def _create(path: Path) -> Any:
    def options() -> Any:
        found = Options(raw_mode=True)
        found.set_compression_type(DBCompressionType.snappy())
        found.set_prefix_extractor(SliceTransform.create_fixed_prefix(PREFIX_BYTES))
        tables = BlockBasedOptions()
        tables.set_bloom_filter(10, False)
        found.set_block_based_table_factory(tables)
        return found

    whole = options()
    whole.create_if_missing(True)
    whole.create_missing_column_families(True)
    return Rdict(str(path), whole, column_families={name: options() for name in FAMILIES})


def _write(world: World, shape: Shape, volume_bytes: int) -> Iterator[BlockData]:
    """Write the block files of a container in Ozone's volume; yield the row of each block."""
    chunks = world.container(shape.container_id) / "chunks"
    chunks.mkdir(parents=True)
    generator = np.random.default_rng(shape.container_id)
    for index in range(shape.block_count(volume_bytes)):
        block_id = BlockId(FIRST_ID + index)
        infos = []
        with (chunks / f"{block_id}.block").open("wb") as file:
            for number in range(shape.chunks_per_block):
                data = generator.bytes(shape.chunk_bytes)
                sums = window_checksums(shape.checksum_type, shape.window_bytes, data)
                place = (number * shape.chunk_bytes, len(data))
                infos.append(ChunkInfo(*place, shape.checksum_type, shape.window_bytes, sums))
                file.write(data)
        yield BlockData(block_id, Bcsid(index + 1), tuple(infos))


def _describe(
    world: World, shape: Shape, blocks: Sequence[BlockData], families: dict[str, Any]
) -> None:
    """Write the rows, the tree and the descriptor of a container as a datanode of Ozone does."""
    number = shape.container_id
    for block in blocks:
        families["block_data"][key(number, block.block_id)] = _row(number, block)
    root, tree = _tree(number, blocks)
    used_bytes = sum(block.length_bytes for block in blocks)
    for name, value in (
        (RECORDED_ROOT, root),
        (BYTES_USED, used_bytes),
        (BLOCK_COUNT, len(blocks)),
    ):
        families["metadata"][key(number, name)] = struct.pack(">q", value)
    folder = world.container(number)
    (folder / "metadata").mkdir()
    (folder / "metadata" / f"{number}.tree").write_bytes(tree)
    fields = {
        "chunksPath": f"{folder}/chunks",
        "containerDBType": "RocksDB",
        "containerID": number,
        "containerType": "KeyValueContainer",
        "layOutVersion": 2,
        "maxSize": 5 * KIB * MIB,
        "metadata": "{}",
        "metadataPath": f"{folder}/metadata",
        "originNodeId": DATANODE,
        "schemaVersion": "'3'",
        "state": "CLOSED",
    }
    (folder / "metadata" / f"{number}.container").write_bytes(descriptor_text(fields))


def _row(container_id: ContainerId, block: BlockData) -> bytes:
    names = {"container_id": container_id, "local_id": block.block_id, "bcsid": block.bcsid}
    chunks = [
        {
            "name": f"{block.block_id}_chunk_{number}",
            "offset": chunk.offset,
            "length": chunk.length_bytes,
            "checksum_data": {
                "type": chunk.checksum_type,
                "bytes_per_checksum": chunk.bytes_per_checksum,
                "checksums": [
                    chunk.window_checksums[at : at + 4]
                    for at in range(0, len(chunk.window_checksums), 4)
                ],
            },
        }
        for number, chunk in enumerate(block.chunks, 1)
    ]
    row: bytes = BLOCK_DATA(
        block_id=names,
        metadata=[{"key": "TYPE", "value": "KEY"}],
        chunks=chunks,
        size=block.length_bytes,
    ).SerializeToString()
    return row


def _tree(container_id: ContainerId, blocks: Sequence[BlockData]) -> tuple[int, bytes]:
    """Return the root and the file of the tree that Ozone makes when the container closes."""
    trees, sums = [], []
    for block in blocks:
        leaves = [
            leaf_checksum(Algorithm.CRC32C, item.offset, item.length_bytes, item.window_checksums)
            for item in block.chunks
        ]
        sums.append(block_checksum(Algorithm.CRC32C, block.block_id, leaves))
        chunks = [
            {"offset": item.offset, "length": item.length_bytes, "checksum": leaf, "matches": True}
            for item, leaf in zip(block.chunks, leaves, strict=True)
        ]
        trees.append({"block_id": block.block_id, "checksum": sums[-1], "chunks": chunks})
    root = container_checksum(Algorithm.CRC32C, sums)
    info = CHECKSUM_INFO(container_id=container_id, tree={"checksum": root, "blocks": trees})
    return root, info.SerializeToString()


def _own(world: World, shape: Shape, blocks: Sequence[BlockData]) -> None:
    """Create the same container in the agent's volume, with hard links to the same files."""
    store = open_store(world.own)
    store.create_container(shape.container_id)
    chunks = store.paths(shape.container_id).chunks
    store.close()
    for file in (world.container(shape.container_id) / "chunks").iterdir():
        (chunks / file.name).hardlink_to(file)
    opened = open_volume(world.own, cluster_id=CLUSTER, datanode_id=DATANODE, options=OPTIONS)
    try:
        for start in range(0, len(blocks), ROWS_PER_CHANGE):
            some = blocks[start : start + ROWS_PER_CHANGE]
            opened.index.write(partial(_put, shape.container_id, some))
    finally:
        opened.close()
    os.sync()
    store = open_store(world.own)
    store.close_container(shape.container_id, bcsid=0, force=True)
    store.close()


def _put(container_id: ContainerId, blocks: Sequence[BlockData], change: IndexChange) -> None:
    for block in blocks:
        change.put_block(container_id, block.block_id, encode_block(block))
