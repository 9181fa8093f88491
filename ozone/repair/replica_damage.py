"""Finds the parts of a replica that do not match its rows, with the scan that a scrub uses."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from merkle.checksum import Algorithm
from merkle.damaged_data import DamagedData
from merkle.replica import BlockId, ChunkInfo, ContainerId
from merkle.tree import Tree
from ozone.disk.blockrow import StoredBlock, decode_stored
from ozone.disk.rows import ContainerRows
from ozone.disk.unsupported_format import UnsupportedFormat
from ozone.scrub.reader import OzoneReader
from scanner.finding import DamageFault, ScanFinding, Verdict
from scanner.replica_scan import scan_replica
from suture.errors import Code, RefusedError, UnavailableError

NOT_OF_BYTES: Final = frozenset(
    {
        DamageFault.TREE_DAMAGED,
        DamageFault.TREE_MISSING,
        DamageFault.FOREIGN_FILE,
        DamageFault.TRAILING_BYTES,
    }
)
"""Faults that a repair ignores: faults of Ozone's trees, and faults that lose no data."""


@dataclass(frozen=True, slots=True)
class InspectedReplica:
    """A replica after a complete read.

    `tree` describes the data on disk. `blocks` has the damaged blocks, as described by their rows,
    and `chunks` the damaged chunks of each. `others` has the findings that cannot be repaired with
    data of peers. `unjudged` has the reasons why parts of the replica could not be checked.
    """

    tree: Tree
    blocks: Mapping[BlockId, StoredBlock] = field(default_factory=dict)
    chunks: Mapping[BlockId, tuple[ChunkInfo, ...]] = field(default_factory=dict)
    findings: tuple[ScanFinding, ...] = ()
    others: tuple[ScanFinding, ...] = ()
    bytes_read: int = 0
    unjudged: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """True if every byte was read and matches its checksum."""
        return not (self.blocks or self.others or self.unjudged)

    @property
    def chunk_count(self) -> int:
        """Number of damaged chunks."""
        return sum(len(chunks) for chunks in self.chunks.values())


def read_replica(
    reader: OzoneReader,
    rows: ContainerRows,
    now_ms: Callable[[], int],
    progress: Callable[[int], None],
) -> InspectedReplica:
    """Read a complete replica, and return its damage. Raise SutureError if it cannot be read.

    Raise RefusedError if the memory or the libraries of the host seem to be faulty, because a
    faulty host could also write wrong data.
    """
    outcome = scan_replica(
        reader,
        algorithm=Algorithm.CRC32C,
        now_ms=now_ms,
        stop=lambda: False,
        progress=progress,
        pace=lambda _: None,
    )
    if outcome.stopped_because:
        raise UnavailableError(
            Code.BUSY, f"the replica could not be read: {outcome.stopped_because}"
        )
    doubted = [one for one in outcome.findings if one.verdict is Verdict.SUSPECT_HOST]
    if doubted or outcome.disagreement_count:
        why = doubted[0].evidence if doubted else "two implementations of a checksum differ"
        raise RefusedError(
            Code.INELIGIBLE,
            f"cannot repair: the memory of this host is faulty: {why}",
            hint="nothing was written; check the memory",
        )
    blocks, chunks = _damaged(reader.container_id, rows, outcome.tree)
    others = [
        one
        for one in outcome.findings
        if one.is_damage and one.block_id not in blocks and one.fault not in NOT_OF_BYTES
    ]
    return InspectedReplica(
        tree=outcome.tree,
        blocks=blocks,
        chunks=chunks,
        findings=tuple(one for one in outcome.findings if one.is_damage and one.block_id in blocks),
        others=tuple(one for one in others if not _is_mended_with(one, blocks)),
        bytes_read=outcome.bytes_read,
        unjudged=(
            *reader.skipped.values(),
            *filter(None, [rows.lost_rows_text(has_files=reader.has_files)]),
        ),
    )


def _is_mended_with(finding: ScanFinding, blocks: Mapping[BlockId, StoredBlock]) -> bool:
    """Return whether the repair of `blocks` also removes the cause of `finding`.

    This is the case if the finding reports a missing directory, which the first write creates.
    """
    return finding.fault is DamageFault.CHUNKS_DIRECTORY_MISSING and bool(blocks)


def _damaged(
    container_id: ContainerId, rows: ContainerRows, tree: Tree
) -> tuple[dict[BlockId, StoredBlock], dict[BlockId, tuple[ChunkInfo, ...]]]:
    """Return the damaged blocks, and the damaged chunks of each, by block id.

    A chunk is damaged if its bytes do not match the row of the block.
    """
    ids, counts = tree.block_ids.tolist(), tree.chunk_counts.tolist()
    whole_counts = dict(zip(ids, counts, strict=True))
    for block_id in tree.unhealthy_block_ids().tolist():
        whole_counts[block_id] = -1
    blocks, damaged = {}, {}
    for block_id, row, tail in rows.blocks():
        try:
            stored = decode_stored(container_id, block_id, row, tail)
        except (
            DamagedData,
            UnsupportedFormat,
        ):  # already reported by the scan or the reader
            continue
        if whole_counts.get(block_id) == len(stored.block.chunks) or not stored.block.chunks:
            continue
        healthy = {leaf.offset for leaf in tree.leaves(block_id) if leaf.healthy}
        blocks[block_id] = stored
        damaged[block_id] = tuple(c for c in stored.block.chunks if c.offset not in healthy)
    return blocks, damaged
