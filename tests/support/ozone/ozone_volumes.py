"""Volumes of Ozone for tests: real ones, and volumes that the tests write as Ozone writes them.

`golden` unpacks volumes that Ozone 2.2.0 wrote:

    dn0-damaged   schema V3: two containers whose files were damaged, after Ozone's own scan; the
                  directory of a third one was removed, and its rows exist
    dn4           schema V3: two shards of erasure-coded keys, intact
    v2            schema V2: one container scanned by Ozone, one not, one open; no erasure code
    *.jsonl       rows and trees of all 16 replicas of that cluster, before and after Ozone's scan

`OF_1_4` is a volume of Ozone 1.4.1: schema V3, container 1, intact, without trees.

`MadeVolume` writes rows with the RocksDB library and computes every checksum itself.
"""

import base64
import hashlib
import json
import os
import struct
import tarfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import zstandard
from rocksdict import BlockBasedOptions, Options, Rdict

from ozone.disk.database import ContainerDatabase, DatabaseView
from ozone.disk.messages import BLOCK_DATA, CHECKSUM_INFO, DELETED_BLOCKS

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = ROOT / "tests" / "golden" / "ozone" / "volumes.tar.zst"
OF_1_4 = ROOT / "tests" / "golden" / "ozone" / "volume-1.4.1-v3.tar.zst"
WHOLE = Path(
    os.environ.get("SUTURE_OZONE_GOLDEN", ROOT.parent / "shared" / "ozone" / "golden.tar.zst")
)
FAMILIES = ("block_data", "metadata", "delete_txns", "finalize_blocks", "last_chunk_info")
WINDOW_BYTES = 16 * 1024
CLUSTER = "CID-made"
STORAGE = "DS-made"
CRC32, NONE = 2, 1  # Ozone's numbers

needs_whole_set = pytest.mark.skipif(
    not WHOLE.is_file(),
    reason="the whole set of real volumes is not here: SUTURE_OZONE_GOLDEN names it",
)


def unpack(archive: Path, target: Path) -> Path:
    """Unpack a set of volumes; return its directory."""
    with archive.open("rb") as packed:
        stream = zstandard.ZstdDecompressor().stream_reader(packed)
        with stream, tarfile.open(fileobj=stream, mode="r|") as files:
            files.extractall(target, filter="data")
    return target


def golden(target: Path) -> Path:
    """Unpack the small set of volumes below `target`; return its directory."""
    return unpack(GOLDEN, target)


def golden_table(name: str) -> list[dict[str, Any]]:
    """Return the lines of a table of the small set, without unpacking the set to disk."""
    with GOLDEN.open("rb") as packed:
        stream = zstandard.ZstdDecompressor().stream_reader(packed)
        with stream, tarfile.open(fileobj=stream, mode="r|") as files:
            for member in files:
                if Path(member.name).name == name:
                    found = files.extractfile(member)
                    assert found is not None
                    return [json.loads(line) for line in found.read().splitlines()]
    raise FileNotFoundError(name)


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of the table in a JSON Lines file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def snapshot(root: Path) -> dict[str, tuple[int, int, int, int, str]]:
    """Return mode, size, links, time of change and checksum of everything below `root`."""
    facts = {}
    for path in sorted([root, *root.rglob("*")]):
        status = path.lstat()
        checksum = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        facts[str(path.relative_to(root))] = (
            status.st_mode,
            status.st_size,
            status.st_nlink,
            status.st_mtime_ns,
            checksum,
        )
    return facts


def descriptor_text(fields: dict[str, Any]) -> bytes:
    """Return a descriptor as Ozone writes it, with its checksum."""

    def text(checksum: str) -> str:
        items = sorted({**fields, "checksum": checksum}.items())
        body = "".join(f"{name}: {value}\n" for name, value in items)
        return f"!<KeyValueContainerData>\n{body}"

    unsummed = "!!binary |-\n  " + base64.b64encode(b"\0" * 64).decode()
    first = hashlib.sha256(text(unsummed).encode()).digest()
    return text(hashlib.sha256(first).hexdigest()).encode()


def chunk_message(data: bytes, offset: int, kind: int = CRC32) -> dict[str, Any]:
    """Return the description of a chunk as a client writes it, with checksums if `kind` is
    CRC32."""
    windows = [data[at : at + WINDOW_BYTES] for at in range(0, len(data), WINDOW_BYTES)]
    sums = [struct.pack(">I", zlib.crc32(window)) for window in windows] if kind == CRC32 else []
    return {
        "name": f"chunk at {offset}",
        "offset": offset,
        "length": len(data),
        "checksum_data": {"type": kind, "bytes_per_checksum": WINDOW_BYTES, "checksums": sums},
    }


@dataclass
class MadeVolume:
    """A data directory of schema V3, written by the test. Its database is open for writing, as in a
    running datanode."""

    root: Path
    names: Sequence[str] = FAMILIES
    format_version: int = 5  # of RocksDB's tables: what Ozone 2.2 writes
    _database: Any = field(init=False)
    _families: dict[str, Any] = field(init=False)
    _counts: Counter[int] = field(init=False, default_factory=Counter)

    def __post_init__(self) -> None:
        hdds = self.root / "hdds"
        self.database.mkdir(parents=True)
        (hdds / "VERSION").write_text(
            f"#a comment\nstorageID={STORAGE}\nclusterID={CLUSTER}\ndatanodeUuid=dn\n"
        )
        options = self._options()
        options.create_if_missing(True)
        options.create_missing_column_families(True)
        self._database = Rdict(
            str(self.database),
            options,
            column_families={name: self._options() for name in self.names},
        )
        # Kept, because releasing one flushes it: then nothing would ever be in the log only.
        self._families = {name: self._database.get_column_family(name) for name in self.names}

    def _options(self) -> Options:
        tables = BlockBasedOptions()
        tables.set_format_version(self.format_version)
        options = Options(raw_mode=True)
        options.set_block_based_table_factory(tables)
        return options

    @property
    def database(self) -> Path:
        """The directory of the volume's RocksDB."""
        return self.root / "hdds" / CLUSTER / STORAGE / "container.db"

    def folder(self, container_id: int) -> Path:
        """Return the directory of a container."""
        number = container_id // 512 % 256
        return (
            self.root / "hdds" / CLUSTER / "current" / f"containerDir{number}" / str(container_id)
        )

    def add_container(self, container_id: int, *, state: str = "CLOSED", **more: Any) -> None:
        """Make a container without blocks."""
        folder = self.folder(container_id)
        (folder / "metadata").mkdir(parents=True)
        (folder / "chunks").mkdir()
        fields = {
            "chunksPath": f"{folder}/chunks",
            "containerDBType": "RocksDB",
            "containerID": container_id,
            "containerType": "KeyValueContainer",
            "layOutVersion": 2,
            "maxSize": 5368709120,
            "metadata": "{}",
            "originNodeId": "dn",
            "schemaVersion": "'3'",
            "state": state,
            **more,
        }
        self.descriptor(container_id).write_bytes(descriptor_text(fields))

    def descriptor(self, container_id: int) -> Path:
        """Return the path of a container's descriptor."""
        return self.folder(container_id) / "metadata" / f"{container_id}.container"

    def tree(self, container_id: int) -> Path:
        """Return the path of a container's tree."""
        return self.folder(container_id) / "metadata" / f"{container_id}.tree"

    def file(self, container_id: int, block_id: int) -> Path:
        """Return the path of a block's file."""
        return self.folder(container_id) / "chunks" / f"{block_id}.block"

    def add_block(self, container_id: int, block_id: int, *parts: bytes, kind: int = CRC32) -> None:
        """Write the file and the row of a block with these chunks."""
        self.file(container_id, block_id).write_bytes(b"".join(parts))
        offset, chunks = 0, []
        for part in parts:
            chunks.append(chunk_message(part, offset, kind))
            offset += len(part)
        message = BLOCK_DATA(
            block_id={"container_id": container_id, "local_id": block_id, "bcsid": 7},
            metadata=[{"key": "TYPE", "value": "KEY"}],
            chunks=chunks,
            size=offset,
        )
        is_new = key(container_id, block_id) not in self._families["block_data"]
        self.put_row(container_id, block_id, message.SerializeToString())
        self.count(container_id, 1 if is_new else 0)

    def count(self, container_id: int, more: int) -> None:
        """Add `more` to a container's recorded block count, as a datanode does with each row that
        it adds or removes."""
        self._counts[container_id] += more
        count = struct.pack(">q", self._counts[container_id])
        self.put_row(container_id, "#BLOCKCOUNT", count, "metadata")

    def put_row(
        self, container_id: int, block_id: int | str, row: bytes, family: str = "block_data"
    ) -> None:
        """Write a row with any content into a table."""
        self._families[family][key(container_id, block_id)] = row

    def drop_row(self, container_id: int, block_id: int) -> None:
        """Remove a block's row, as the last step of a delete does."""
        del self._families["block_data"][key(container_id, block_id)]
        self.count(container_id, -1)

    def flush(self, family: str) -> None:
        """Flush a table, so that its rows are in a table file and not only in the write-ahead
        log."""
        self._families[family].flush()

    def condemn(self, container_id: int, *block_ids: int) -> None:
        """Record that blocks must be deleted, as a datanode does on a command."""
        message = DELETED_BLOCKS(transaction_id=1, container_id=container_id, local_ids=block_ids)
        self.put_row(container_id, 1, message.SerializeToString(), "delete_txns")

    def put_tree(self, container_id: int, blocks: dict[int, Sequence[int]], *deleted: int) -> None:
        """Write a tree file. `blocks` has the checksums of each block's leaves. The ids `deleted`
        become tombstones."""
        trees, sums = [], b""
        for block_id, leaves in sorted(blocks.items()):
            checksum = crc32c_of(struct.pack(f">{1 + len(leaves)}q", block_id, *leaves))
            chunks = [
                {"offset": at, "length": 1, "checksum": leaf, "matches": True}
                for at, leaf in enumerate(leaves)
            ]
            trees.append({"block_id": block_id, "checksum": checksum, "chunks": chunks})
            if block_id in deleted:
                trees[-1] = {"block_id": block_id, "checksum": checksum, "deleted": True}
            sums += struct.pack(">q", checksum)
        info = CHECKSUM_INFO(
            container_id=container_id, tree={"checksum": crc32c_of(sums), "blocks": trees}
        )
        self.tree(container_id).write_bytes(info.SerializeToString())

    def compact(self) -> None:
        """Rewrite all files of the database, as a compaction does. Rows before and after all others
        are written first, so that the files overlap and are really rewritten."""
        for container_id in (0, 1 << 40):
            for name in ("block_data", "metadata"):
                self.put_row(container_id, "#around", b"", name)
        for family in self._families.values():
            family.flush()
            family.compact_range(None, None)

    def close(self) -> None:
        """Close the database, as a datanode does when it stops."""
        self._families.clear()
        self._database.close()


def key(container_id: int, block_id: int | str) -> bytes:
    """Return the key of a block in schema V3."""
    return struct.pack(">q", container_id) + f"|{block_id}".encode()


def crc32c_of(data: bytes) -> int:
    """Return the CRC-32C, computed bit by bit without a library."""
    value = 0xFFFFFFFF
    for octet in data:
        value ^= octet
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def each(root: Path, pattern: str) -> Iterator[Path]:
    """Yield the files of a pattern in a fixed order."""
    yield from sorted(root.glob(pattern))


def opened_databases(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return a list that gets the path of each database when it is opened, even if that fails."""
    seen: list[Path] = []
    open_once = ContainerDatabase._open_once

    def counted(self: ContainerDatabase) -> DatabaseView:
        seen.append(self._path)
        return open_once(self)

    monkeypatch.setattr(ContainerDatabase, "_open_once", counted)
    return seen
