"""The results of the scan of a replica: `ScanRecord` while the scan runs, `ScanOutcome` at its
end."""

import errno
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from merkle.checksum import Algorithm
from merkle.checksum_columns import U64s
from merkle.replica import BlockData, BlockId, ChecksumType, ChunkInfo, ContainerId
from merkle.tree import Tree
from scanner.chunk_verdict import ChunkJudgement, name_of
from scanner.finding import NOTE_FAULTS, DamageFault, ScanFinding, Verdict
from scanner.finding_collector import FindingCollector
from scanner.ports import ReplicaReader, Structure
from scanner.scan_tree import UNREADABLE_LEAF, ScanTreeBuilder


@dataclass(frozen=True, slots=True)
class ScanOutcome:
    """The results of one scan of a replica.

    `stopped_because` is "", or the reason why the scan ended early ("stopped", "changed", or a
    transient errno). In the latter case, neither the tree nor the findings may be committed.
    `undecided_count` is the number of chunks whose content on disk is unknown. If it is not 0, the
    findings are valid, but the tree is not. `wavering_count` is the number of undecided chunks
    whose repeated reads returned different data. The number of `findings` is limited;
    `finding_count` is the number of all. `disagreement_count` is the number of chunks for which the
    two checksum libraries computed different checksums.
    """

    tree: Tree
    findings: tuple[ScanFinding, ...]
    finding_count: int
    bytes_read: int
    block_count: int
    chunk_count: int
    stopped_because: str = ""
    undecided_count: int = 0
    wavering_count: int = 0
    disagreement_count: int = 0

    @property
    def complete(self) -> bool:
        """True if every byte was read and every chunk is decided, so that the tree may be
        committed."""
        return not self.stopped_because and not self.undecided_count

    @property
    def is_damaged(self) -> bool:
        """True if at least one finding requires a repair."""
        return any(finding.is_damage for finding in self.findings)


class ScanRecord:
    """The tree, the findings and the counts of a running scan."""

    def __init__(
        self,
        container_id: ContainerId,
        algorithm: Algorithm,
        *,
        now_ms: Callable[[], int],
        doubt: Callable[[BlockId, int, int], None],
    ) -> None:
        """Create an empty record. `doubt` is called with the position of every finding."""
        self.tree = ScanTreeBuilder(algorithm)
        self.notebook = FindingCollector(container_id, now_ms, doubt)
        self._disagreement_count = 0
        self._undecided_count = 0
        self._wavering_count = 0

    def outcome(self, *, bytes_read: int, stopped_because: str = "") -> ScanOutcome:
        """Return the results of the scan at its end."""
        return ScanOutcome(
            tree=self.tree.build(),
            findings=self.notebook.findings(),
            finding_count=self.notebook.count,
            bytes_read=bytes_read,
            block_count=self.tree.block_count,
            chunk_count=self.tree.chunk_count,
            stopped_because=stopped_because,
            undecided_count=self._undecided_count,
            wavering_count=self._wavering_count,
            disagreement_count=self._disagreement_count,
        )

    def judged(self, block: BlockData, chunk: ChunkInfo, judgement: ChunkJudgement) -> None:
        """Record the result of the check of the next chunk, either as a fault of the host or as
        damage."""
        if judgement.verdict is Verdict.SUSPECT_HOST:
            self._suspect(block, chunk, judgement)
        else:
            self._damaged(block, chunk, judgement)

    def _suspect(self, block: BlockData, chunk: ChunkInfo, judgement: ChunkJudgement) -> None:
        self.tree.healthy(chunk)
        self._disagreement_count += judgement.is_disagreement
        self._undecided_count += not judgement.is_decided
        self._wavering_count += judgement.is_wavering
        self.notebook.chunk(block.block_id, chunk, judgement)

    def _damaged(self, block: BlockData, chunk: ChunkInfo, judgement: ChunkJudgement) -> None:
        self.notebook.chunk(block.block_id, chunk, judgement)
        if judgement.fault is DamageFault.CHUNK_MISSING:
            return
        if judgement.verdict is Verdict.UNREADABLE or chunk.checksum_type is ChecksumType.NONE:
            leaf, length_bytes = UNREADABLE_LEAF, chunk.length_bytes
        else:
            leaf, length_bytes = judgement.window_checksums, judgement.length_bytes
        self.tree.damaged(chunk, length_bytes, leaf)

    def without_file(self, block: BlockData, error: FileNotFoundError) -> None:
        """Record that the file of a block is missing. If there is another object at the path of the
        file, the evidence names it."""
        evidence = f"no file for {len(block.chunks)} chunks, {block.length_bytes} bytes"
        if error.strerror and error.strerror != os.strerror(errno.ENOENT):
            evidence += f"; {error.strerror}"
        self.notebook.add(
            Verdict.CORRUPT,
            DamageFault.BLOCK_FILE_MISSING,
            evidence,
            block.block_id,
            0,
            block.length_bytes,
        )

    def unreadable(self, block: BlockData, error: OSError) -> None:
        """Record that the file of a block cannot be opened."""
        self.tree.begin(block.block_id)
        for chunk in block.chunks:
            self.tree.damaged(chunk, chunk.length_bytes, UNREADABLE_LEAF)
        self.notebook.add(
            Verdict.UNREADABLE,
            DamageFault.CHUNK_UNREADABLE,
            f"opening the file failed with {name_of(error)}",
            block.block_id,
            0,
            block.length_bytes,
        )

    def structure(
        self,
        found: Structure,
        rows: U64s,
        tombstones: Mapping[BlockId, int],
        reader: ReplicaReader,
        *,
        look: Callable[[], None],
    ) -> None:
        """Record the faults of the replica's directory, the lost blocks, and the files without
        rows.

        `rows` has the ids of the blocks with a row. `reader` confirms each fault. `look` is called
        before each block, so that a scan can be stopped while it confirms the faults of many
        blocks.
        """
        for item in found.faults:
            damage = Verdict.UNREADABLE if item.is_unreadable else Verdict.CORRUPT
            verdict = Verdict.OK if item.fault in NOTE_FAULTS else damage
            self.notebook.add(verdict, item.fault, item.evidence)
        buried = np.fromiter(tombstones, dtype=np.uint64, count=len(tombstones))
        lost = np.setdiff1d(np.setdiff1d(found.expected_blocks, rows), buried)
        if len(rows) < found.block_count_min:  # some of the lost blocks still have files
            files = np.setdiff1d(np.setdiff1d(found.block_files, rows), buried)
            lost = np.union1d(lost, files)
        has_file = np.isin(lost, found.block_files).tolist()
        for block_id, is_there in zip(map(BlockId, lost.tolist()), has_file, strict=True):
            look()
            if reader.row(block_id) is None and reader.is_current():
                evidence = f"no row; {'its file is there' if is_there else 'no file either'}"
                self.notebook.add(
                    Verdict.CORRUPT, DamageFault.BLOCK_ROW_MISSING, evidence, block_id
                )
        strays = np.setdiff1d(np.setdiff1d(found.block_files, rows), lost)
        for block_id in map(BlockId, strays.tolist()):
            look()
            if reader.row(block_id) is None:
                why = "deleted" if block_id in tombstones else "never committed"
                evidence = f"a file of a block that was {why}"
                self.notebook.add(Verdict.OK, DamageFault.BLOCK_ROW_MISSING, evidence, block_id)
