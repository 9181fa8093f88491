"""Stores of one datanode on real directories, with the replicas that a test needs."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from agent.store.index.facts import ScanCommit
from agent.store.options import StoreOptions
from agent.store.recovery.fsck import fsck
from agent.store.replica_store import ReplicaStore
from merkle.checksum import window_checksums
from merkle.replica import (
    Bcsid,
    BlockData,
    BlockId,
    ChecksumType,
    ChunkInfo,
    ContainerId,
    ReplicaState,
)
from merkle.tree import Tree
from merkle.tree_building import build_from_rows
from scanner.finding import DamageFault, ScanFinding, Verdict
from scanner.scan_outcome import ScanOutcome

MEMORY = Path("/dev/shm")  # noqa: S108 - only private directories are made in it
MEMORY_FREE_MIN_BYTES = 2 * 1024**3  # a container may have 64 MiB: too much for this directory
CLUSTER = "CID-test"
DATANODE = "dn-test"
NOW_MS = 1_700_000_000_000
CHUNK_BYTES = 10_000
WINDOW_BYTES = 4096


def options_of_test(**changes: object) -> StoreOptions:
    """Return store options for small disks, with a clock that does not advance. `changes` override
    them."""
    values: dict[str, object] = {
        "reserve_bytes": 0,
        "lmdb_map_bytes": 64 * 1024**2,
        "now_ms": lambda: NOW_MS,
    }
    return StoreOptions(**{**values, **changes})  # type: ignore[arg-type]


@contextmanager
def private_directory() -> Iterator[Path]:
    """Yield a temporary directory, in memory if /dev/shm has enough free space, otherwise on
    disk."""
    has_room = (
        os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= MEMORY_FREE_MIN_BYTES
    )
    parent = MEMORY if has_room else None
    with tempfile.TemporaryDirectory(prefix="suture-test-", dir=parent) as directory:
        yield Path(directory)


def open_store(
    path: Path, *, volume_count: int = 1, options: StoreOptions | None = None
) -> ReplicaStore:
    """Open and return the store of a datanode with the volumes `path`/v0, `path`/v1, ..."""
    path.mkdir(exist_ok=True)
    return ReplicaStore.open(
        [path / f"v{number}" for number in range(volume_count)],
        cluster_id=CLUSTER,
        datanode_id=DATANODE,
        options=options or options_of_test(),
    )


def commit_scan(
    store: ReplicaStore,
    container_id: ContainerId,
    *,
    tree: Tree,
    findings: Sequence[ScanFinding],
    complete: bool,
    base_generation: int | None = None,
) -> ScanCommit:
    """Commit the result of a scan. The scan was complete if `complete`, otherwise stopped. It began
    at `base_generation` of the tree, or now if that is None."""
    base = store.begin_scan(container_id)
    if base_generation is not None:
        base = replace(base, generation=base_generation)
    stopped_because = "" if complete else "stopped"
    outcome = ScanOutcome(tree, tuple(findings), len(findings), 1, 0, 0, stopped_because)
    return store.commit_scan(base, outcome)


def content(seed: object, length_bytes: int = CHUNK_BYTES) -> bytes:
    """Return bytes that depend only on the seed."""
    return hashlib.shake_128(str(seed).encode()).digest(length_bytes)


def chunk_of(
    data: bytes,
    offset: int = 0,
    checksum_type: ChecksumType = ChecksumType.CRC32C,
    bytes_per_checksum: int = WINDOW_BYTES,
) -> ChunkInfo:
    """Return the description that a writer of `data` makes."""
    checksums = window_checksums(checksum_type, bytes_per_checksum, data)
    return ChunkInfo(offset, len(data), checksum_type, bytes_per_checksum, checksums)


def bare_chunk(data: bytes, offset: int = 0) -> ChunkInfo:
    """Return a description of `data` without checksums, which the store then computes."""
    return ChunkInfo(offset, len(data), None, 0, b"")  # type: ignore[arg-type]


def write_block(
    store: ReplicaStore,
    container_id: int,
    block_id: int,
    *,
    chunk_count: int = 2,
    bcsid: int = 1,
    chunk_bytes: int = CHUNK_BYTES,
) -> BlockData:
    """Write and commit a block of `chunk_count` chunks. Its id determines its content."""
    chunks: list[ChunkInfo] = []
    for number in range(chunk_count):
        data = content((block_id, number), chunk_bytes)
        chunk = chunk_of(data, number * chunk_bytes)
        store.writer(ContainerId(container_id)).write_chunk(BlockId(block_id), chunk, data)
        chunks.append(chunk)
    block = BlockData(BlockId(block_id), Bcsid(bcsid), tuple(chunks), (("key", f"k{block_id}"),))
    store.writer(ContainerId(container_id)).put_block(block)
    return block


def closed_replica(
    store: ReplicaStore,
    container_id: int = 1,
    *,
    block_ids: Sequence[int] = (1, 2, 3),
    chunk_count: int = 2,
) -> dict[int, BlockData]:
    """Create, fill and close a replica; return its blocks."""
    store.create_container(ContainerId(container_id))
    blocks = {
        block_id: write_block(
            store, container_id, block_id, chunk_count=chunk_count, bcsid=number + 1
        )
        for number, block_id in enumerate(block_ids)
    }
    facts = store.close_container(ContainerId(container_id), bcsid=len(blocks))
    assert ReplicaState.CLOSED is facts.state
    return blocks


def metadata_tree(store: ReplicaStore, container_id: int = 1) -> Tree:
    """Return the tree that a scan of an undamaged replica builds."""
    one = ContainerId(container_id)
    return build_from_rows(
        store.view(one).block_rows(),
        store.view(one).tombstones(),
        algorithm=store.view(one).tree().algorithm,
    )


def damage(
    container_id: int = 1,
    block_id: int = -1,
    offset: int = -1,
    *,
    fault: DamageFault = DamageFault.CHUNK_CHECKSUM,
    verdict: Verdict = Verdict.CORRUPT,
) -> ScanFinding:
    """Return a finding as a scan would report it."""
    return ScanFinding(
        container_id=ContainerId(container_id),
        verdict=verdict,
        fault=fault,
        block_id=BlockId(block_id),
        offset=offset,
        length_bytes=CHUNK_BYTES if offset >= 0 else -1,
        found_at_ms=NOW_MS,
        evidence="planted by a test",
    )


def quarantined(path: Path) -> dict[tuple[int, int], bytes]:
    """Return the bytes in quarantine, by block and offset."""
    directory = path / "v0" / "hdds" / CLUSTER / "quarantine"
    found = {}
    for note_path in directory.glob("*.json"):
        note = json.loads(note_path.read_text())
        data = note_path.with_suffix(".bytes").read_bytes()
        assert len(data) == note["length_bytes"]
        if "parts" not in note:
            found[note["block_id"], note["offset"]] = data
        for block_id, offset, length_bytes, start in note.get("parts", ()):
            found[block_id, offset] = data[start : start + length_bytes]
    return found


def flip_bit(path: Path, offset: int) -> None:
    """Flip one bit of a file, bypassing the store."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(bytes(data))


def lose_replica_row(store: ReplicaStore, *, all_rows: bool = False) -> None:
    """Remove the row of container 1 from the index; with `all_rows`, all rows about the
    container."""
    index = store.volume_set.places[ContainerId(1)].index
    if all_rows:
        index.write(lambda rows: rows.delete_container(ContainerId(1)))
    else:
        index.write(lambda rows: rows._txn.delete((1).to_bytes(8), db=rows._dbs.replicas))


def reopened(store: ReplicaStore, path: Path, volume_count: int = 1) -> ReplicaStore:
    """Close a store, and open it again as after a restart; return the new store."""
    store.close()
    return open_store(path, volume_count=volume_count)


def check_clean(store: ReplicaStore, path: Path) -> None:
    """Close a store. Fail if fsck finds a problem on its first volume."""
    store.close()
    assert () == fsck(path / "v0", read_data=True).problems


def state_of(store: ReplicaStore, container_id: ContainerId) -> object:
    """Return the facts, rows and files of a replica, which a refused request must not change."""
    files = {path.name: path.read_bytes() for path in store.paths(container_id).chunks.iterdir()}
    return store.replica(container_id), store.view(container_id).blocks(), files
