"""Binary formats of the index's rows: replicas, chunks, findings, journal entries.

Every row ends with the CRC32C of the preceding bytes. Decoding a damaged row raises `DamagedData`,
and no part of the row is used. Block rows have their own format in `merkle.blockrow`, because trees
are built from block rows without parsing each of them. docs/DISK_FORMAT.md describes the layouts.
"""

import json
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, TypeAlias, assert_never

import numpy as np

from health.tables.replica_numbers import NUMBERS, ReplicaNumbers
from merkle.blockrow import decode_block, encode_block
from merkle.checksum import Algorithm, crc32c
from merkle.damaged_data import DamagedData
from merkle.replica import Bcsid, BlockData, BlockId, ChunkInfo, ContainerId, ReplicaState
from merkle.tree_summary import TreeSummary
from scanner.finding import DamageFault, Forensic, ScanFinding, Verdict
from scanner.resume import ScanMark
from suture.errors import Code, RefusedError

ROW_VERSION: Final = 1
KEY_BYTES: Final = {
    "replicas": 8, "blocks": 16, "pending": 24, "tombstones": 16, "findings": 12,
    "journal": 25, "cursors": 8, "history": 12, "packed": 16, "doubts": 8,
}  # fmt: skip
NO_BCSID: Final = Bcsid(0)
ALONE: Final = -1  # `kept_bytes` of an entry whose quarantine copy has only its own chunk
STANDINGS_KEPT: Final = 1_024  # rows of replicas that clients read, of some 300 bytes each
CONTRADICTION_COUNT_MAX: Final = 2**16 - 1  # upper limit of the count
_SEAL: Final = struct.Struct(">I")
_WORDS: Final = ("version", "state", "former_state", "algorithm")  # one byte each
_NUMBERS: Final = (
    ("contradiction_count", ">u2"),
    *((name, NUMBERS[name].kept) for name in ("replica_index", "bcsid", "used_bytes")),
    ("block_count", NUMBERS["block_count"].kept),
    ("generation", ">u8"),
    *((name, NUMBERS[name].kept) for name in ("data_scan_at_ms", "finding_count")),
    ("created_at_ms", ">u8"),
)
"""Numeric fields of a `ReplicaRow`, in their order on disk."""
_STANDING: Final = struct.Struct(">HHQ")  # the first three numeric fields
_TREE: Final = ("root", "generation", "block_count", "tombstone_count", "tombstones_checksum")
REPLICA_FIELDS: Final = np.dtype(
    [(name, "u1") for name in _WORDS] + list(_NUMBERS) + [(f"tree.{name}", ">u8") for name in _TREE]
)
"""Fields of a replica's row before the id of the origin datanode."""
_FORMATS: Final = {1: "B", 2: "H", 4: "I", 8: "Q"}
_PLACES: Final = dict(REPLICA_FIELDS.fields or {})  # type and offset by name
_REPLICA: Final = struct.Struct(">" + "".join(_FORMATS[p[0].itemsize] for p in _PLACES.values()))
_NUMBER_NAMES: Final = tuple(name for name, _ in _NUMBERS)
_NUMBERS_OF: Final = attrgetter(*_NUMBER_NAMES)
_TREE_OF: Final = attrgetter(*_TREE)
_NO_TREE: Final = (0,) * len(_TREE)
REPLICA_BYTES: Final = _REPLICA.size
_SHOWN: Final = tuple(
    slice(place[1], place[1] + place[0].itemsize)
    for name, place in _PLACES.items()
    if name in ("state", "algorithm") or (name.startswith("tree.") and name != "tree.generation")
)
SEAL_BYTES: Final = _SEAL.size
STATES: Final = tuple(ReplicaState)  # the index is the number on disk: append only
ALGORITHMS: Final = (None, *Algorithm)  # the index is the number on disk: append only

assert [state.value for state in STATES] == [
    "OPEN",
    "CLOSING",
    "QUASI_CLOSED",
    "CLOSED",
    "UNHEALTHY",
    "RECOVERING",
    "DELETED",
], "the order of ReplicaState is on disk"
assert list(ALGORITHMS) == [None, "crc32c", "xxh3_64"], "the order of Algorithm is on disk"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaInfo(ReplicaNumbers):
    """Facts of one replica that reports contain."""

    state: ReplicaState
    former_state: ReplicaState | None = None
    bcsid: Bcsid = NO_BCSID
    tree: TreeSummary | None = None
    contradiction_count: int = 0  # contradictions with intact rows or tombstones of peers
    origin_datanode_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRow(ReplicaInfo):
    """Index row of one replica.

    `generation` is incremented with every change of the replica's data. `tree` has the generation
    of the stored tree. After a repair, the two generations differ until a scan has read the changed
    data.
    """

    generation: int = 0
    created_at_ms: int = 0


def moved_on(row: ReplicaRow) -> ReplicaRow:
    """Return a copy of the row with the next generation.

    The result of a scan that began with the old generation is then rejected.
    """
    return replace(row, generation=row.generation + 1)


def seal(body: bytes) -> bytes:
    """Return `body` with its CRC32C appended, which `unseal` verifies."""
    return body + _SEAL.pack(crc32c(body))


def unseal(row: bytes, what: str) -> memoryview:
    """Return the body of a row that `seal` made.

    Raise `DamagedData` if the CRC32C does not match. `what` names the row in the message.
    """
    body = memoryview(row)[: -_SEAL.size]
    if len(row) < _SEAL.size or _SEAL.unpack_from(row, len(row) - _SEAL.size)[0] != crc32c(body):
        raise DamagedData(f"{what}: checksum of the row does not match")
    return body


def encode_replica(row: ReplicaRow) -> bytes:
    """Return the index row of one replica."""
    tree = row.tree
    if row.contradiction_count > CONTRADICTION_COUNT_MAX:
        row = replace(row, contradiction_count=CONTRADICTION_COUNT_MAX)
    body = _REPLICA.pack(
        ROW_VERSION,
        STATES.index(row.state),
        0 if row.former_state is None else 1 + STATES.index(row.former_state),
        0 if tree is None else ALGORITHMS.index(tree.algorithm),
        *_NUMBERS_OF(row),
        *(_NO_TREE if tree is None else _TREE_OF(tree)),
    )
    return seal(body + row.origin_datanode_id.encode())


def reported_part(row: bytes) -> bytes:
    """Return the bytes of a raw replica row that reports show.

    These are the state, and the tree without its generation. A change of these bytes is a visible
    change. Counts and times are omitted.
    """
    return b"".join([row[part] for part in _SHOWN])


def decode_replica(container_id: ContainerId, row: bytes) -> ReplicaRow:
    """Parse the row of one replica. Raise `DamagedData` if it is invalid."""
    what = f"replica row of container {container_id}"
    body = unseal(row, what)
    _check_head(body, what)
    _, state, former, algorithm, *numbers = _REPLICA.unpack_from(body)
    named: dict[str, Any] = dict(zip(_NUMBER_NAMES, numbers, strict=False))  # the tree's follow
    try:
        return ReplicaRow(
            state=STATES[state],
            former_state=STATES[former - 1] if former else None,
            tree=_summary(algorithm, numbers[len(_NUMBERS) :]),
            origin_datanode_id=str(body[REPLICA_BYTES:], "utf-8"),
            **named,
        )
    except (IndexError, UnicodeDecodeError) as error:
        raise DamagedData(f"{what}: {error}") from error


@lru_cache(STANDINGS_KEPT)
def decode_standing(container_id: ContainerId, row: bytes) -> tuple[int, Bcsid]:
    """Return the replica index and the BCSID in a replica row.

    A read of a block needs only these two fields. The results are kept, because the row of a closed
    replica rarely changes. Raise `DamagedData` if the row is invalid.
    """
    what = f"replica row of container {container_id}"
    body = unseal(row, what)
    _check_head(body, what)
    _, replica_index, bcsid = _STANDING.unpack_from(body, len(_WORDS))
    return replica_index, Bcsid(bcsid)


def is_newer(row: bytes) -> bool:
    """Return whether a newer version of the agent wrote this replica row.

    Such a row is intact, but this version cannot decode it.
    """
    if not row or row[0] <= ROW_VERSION:
        return False
    with suppress(DamagedData):
        unseal(row, "")
        return True
    return False


def _check_head(body: memoryview, what: str) -> None:
    """Raise `DamagedData` unless a replica row has the supported version and all fixed fields."""
    if len(body) < REPLICA_BYTES or body[0] != ROW_VERSION:
        raise DamagedData(f"{what}: unknown version or cut short")


def _summary(algorithm_number: int, fields: list[int]) -> TreeSummary | None:
    algorithm = ALGORITHMS[algorithm_number]
    if algorithm is None:
        return None
    return TreeSummary(algorithm=algorithm, **dict(zip(_TREE, fields, strict=True)))


def encode_chunk(block_id: BlockId, chunk: ChunkInfo) -> bytes:
    """Return the row of a single chunk, which is a block row that contains only this chunk."""
    return encode_block(BlockData(block_id, NO_BCSID, (chunk,)))


def decode_chunk(block_id: BlockId, row: bytes) -> ChunkInfo:
    """Parse the row of a single chunk. Raise `DamagedData` if it is invalid."""
    chunks = decode_block(block_id, row).chunks
    if len(chunks) != 1:
        raise DamagedData(f"row of one chunk of block {block_id}: holds {len(chunks)}")
    return chunks[0]


def encode_finding(finding: ScanFinding) -> bytes:
    """Return the row of one finding. The key of the row, not the row, has the container id."""
    fields = (
        finding.verdict,
        finding.fault,
        finding.block_id,
        finding.offset,
        finding.length_bytes,
        finding.found_at_ms,
        finding.evidence,
        finding.forensic,
    )
    return seal(json.dumps(fields, separators=(",", ":")).encode())


def decode_finding(container_id: ContainerId, row: bytes) -> ScanFinding:
    """Parse one finding. Raise `DamagedData` if it is invalid."""
    what = f"finding row of container {container_id}"
    try:
        fields = json.loads(bytes(unseal(row, what)))
        verdict, fault, block_id, offset, length_bytes, found_at_ms, evidence = fields[:7]
        forensic = fields[7] if len(fields) > 7 else Forensic.UNKNOWN  # not in older rows
        return ScanFinding(
            container_id=container_id,
            verdict=Verdict(verdict),
            fault=DamageFault(fault),
            block_id=BlockId(block_id),
            offset=offset,
            length_bytes=length_bytes,
            found_at_ms=found_at_ms,
            evidence=evidence,
            forensic=Forensic(forensic),
        )
    except DamagedData:
        raise
    except ValueError as error:
        raise DamagedData(f"{what}: {error}") from error


# -- journal: work to finish or roll back at the next start


@dataclass(frozen=True, slots=True)
class InstallEntry:
    """Journal entry: the bytes of one chunk are being overwritten.

    `data_checksum` (CRC32C) identifies the new bytes. `quarantine` is the name of the file with the
    copy of the old bytes, or "" if the old bytes could not be read. `old_length_bytes` is the
    length of the block file before the overwrite, or -1 if there was no file.

    In a batch, one copy has the old bytes of all chunks. The old bytes of this chunk are
    `kept_bytes` long and begin at `kept_start` in the copy. In a batch, `old_length_bytes` is the
    length after the earlier writes of the batch.
    """

    block_id: BlockId
    chunk: ChunkInfo
    data_checksum: int
    old_length_bytes: int
    quarantine: str
    pending: bool  # a client rewrites uncommitted bytes; False = a repair
    kept_start: int = 0
    kept_bytes: int = ALONE
    proof: str = ""  # proof of the peer that has the new bytes; "" if there is none

    @property
    def is_of_batch(self) -> bool:
        """Return whether the copy in quarantine has the old bytes of several chunks."""
        return self.kept_bytes != ALONE


Texts: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class UnlinkEntry:
    """Journal entry: files of deleted blocks are being unlinked.

    Tombstones have already replaced the rows of the blocks. `kept` has the client metadata of
    blocks whose delete may be wrong, because only a peer reported it, or because the key is not
    deleted. The files of these blocks are moved to quarantine with the metadata.
    """

    block_ids: tuple[BlockId, ...]
    kept: Mapping[BlockId, Texts] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """Journal entry: a tree file of this generation is being renamed into place."""

    generation: int


@dataclass(frozen=True, slots=True)
class DescriptorEntry:
    """Journal entry: the descriptor file is older than the replica row."""


@dataclass(frozen=True, slots=True)
class MovingEntry:
    """Journal entry: the directory of an imported replica is being renamed into place.

    All rows of the replica are committed already.
    """


JournalEntry: TypeAlias = InstallEntry | UnlinkEntry | TreeEntry | DescriptorEntry | MovingEntry


def journal_key(container_id: ContainerId, entry: JournalEntry) -> bytes:
    """Return the key of a journal entry.

    A container has at most one entry of each kind, but one install entry per chunk.
    """
    match entry:
        case DescriptorEntry():
            place = (1, 0, 0)
        case TreeEntry():
            place = (2, 0, 0)
        case UnlinkEntry():
            place = (3, 0, 0)
        case InstallEntry():
            place = (4, entry.block_id, entry.chunk.offset)
        case MovingEntry():
            place = (5, 0, 0)
        case _:
            assert_never(entry)
    return struct.pack(">QBQQ", container_id, *place)


def encode_journal(entry: JournalEntry) -> bytes:
    """Return the index row of one journal entry."""
    match entry:
        case DescriptorEntry():
            fields: dict[str, object] = {"kind": "descriptor"}
        case TreeEntry():
            fields = {"kind": "tree", "generation": entry.generation}
        case UnlinkEntry():
            fields = {"kind": "unlink", "block_ids": entry.block_ids}
            if entry.kept:
                fields["kept"] = list(entry.kept.items())
        case InstallEntry():
            fields = {
                "kind": "batch" if entry.is_of_batch else "install",
                "block_id": entry.block_id,
                "chunk": encode_chunk(entry.block_id, entry.chunk).hex(),
                "data_checksum": entry.data_checksum,
                "old_length_bytes": entry.old_length_bytes,
                "quarantine": entry.quarantine,
                "pending": entry.pending,
            }
            if entry.is_of_batch:
                fields |= {"kept_start": entry.kept_start, "kept_bytes": entry.kept_bytes}
            if entry.proof:
                fields["proof"] = entry.proof
        case MovingEntry():
            fields = {"kind": "moving"}
        case _:
            assert_never(entry)
    return seal(json.dumps(fields, separators=(",", ":")).encode())


def decode_journal(container_id: ContainerId, row: bytes) -> JournalEntry:
    """Parse one journal entry. Raise `DamagedData` if it is invalid.

    The work of an invalid entry is unknown. Therefore, it can be neither finished nor rolled back.
    """
    what = f"journal row of container {container_id}"
    fields = json.loads(bytes(unseal(row, what)))
    match fields:
        case {"kind": "descriptor"}:
            return DescriptorEntry()
        case {"kind": "tree", "generation": generation}:
            return TreeEntry(generation)
        case {"kind": "moving"}:
            return MovingEntry()
        case {"kind": "unlink", "block_ids": block_ids}:
            kept = fields.get("kept", ())
            return UnlinkEntry(
                tuple(block_ids), {block_id: tuple(map(tuple, texts)) for block_id, texts in kept}
            )
        case {"kind": "install" | "batch", "block_id": block_id}:
            return InstallEntry(
                block_id=block_id,
                chunk=decode_chunk(block_id, bytes.fromhex(fields["chunk"])),
                data_checksum=fields["data_checksum"],
                old_length_bytes=fields["old_length_bytes"],
                quarantine=fields["quarantine"],
                pending=fields["pending"],
                kept_start=fields.get("kept_start", 0),
                kept_bytes=fields.get("kept_bytes", ALONE),
                proof=fields.get("proof", ""),
            )
    raise DamagedData(f"{what}: unknown kind {fields.get('kind')!r}")


@dataclass(frozen=True, slots=True)
class ScanCursor:
    """Progress of an unfinished scan.

    The progress is valid only while the replica has this `generation`, because the rows of another
    generation differ.
    """

    generation: int
    begun_at_ms: int
    mark: ScanMark


def encode_cursor(cursor: ScanCursor) -> bytes:
    """Return the row with the progress of an unfinished scan (its cursor)."""
    fields = {
        "version": ROW_VERSION,
        "generation": cursor.generation,
        "begun_at_ms": cursor.begun_at_ms,
        "block_id": cursor.mark.block_id,
        "offset": cursor.mark.offset,
        "bytes_read": cursor.mark.bytes_read,
        "doubts": sorted(cursor.mark.doubts),
    }
    return seal(json.dumps(fields, separators=(",", ":")).encode())


def decode_cursor(container_id: ContainerId, row: bytes) -> ScanCursor:
    """Parse the row with the progress of an unfinished scan.

    Raise `DamagedData` if it is invalid.
    """
    what = f"cursor row of container {container_id}"
    fields = json.loads(bytes(unseal(row, what)))
    if fields.get("version") != ROW_VERSION:
        raise DamagedData(f"{what}: version {fields.get('version')!r}")
    doubts = frozenset(
        (BlockId(block), offset, length) for block, offset, length in fields["doubts"]
    )
    mark = ScanMark(BlockId(fields["block_id"]), fields["offset"], doubts, fields["bytes_read"])
    return ScanCursor(fields["generation"], fields["begun_at_ms"], mark)


def not_found(container_id: ContainerId) -> RefusedError:
    """Return the error for an unknown container id."""
    return RefusedError(
        Code.CONTAINER_NOT_FOUND, f"no container {container_id}", container_id=container_id
    )
