"""Collects the findings of a scan. All findings are counted, and a limited number is kept."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from merkle.replica import BlockId, ChunkInfo, ContainerId
from scanner.chunk_verdict import ChunkJudgement
from scanner.finding import NO_BLOCK, DamageFault, Forensic, ScanFinding, Verdict
from scanner.forensics import UnexplainedChunk, find_places, unexplained_chunk

FINDINGS_PER_REPLICA_MAX: Final = 1_000  # a lost directory must not fill the index
NOTES_PER_REPLICA_MAX: Final = 100  # findings that are no damage; they never displace damage


@dataclass(eq=False)
class FindingCollector:
    """Collects the findings of one scan of one replica.

    `doubt` is called with (block id, offset, length in bytes) of every finding, even if the finding
    is not kept because of the limit.
    """

    container_id: ContainerId
    now_ms: Callable[[], int]
    doubt: Callable[[BlockId, int, int], None]

    def __post_init__(self) -> None:
        self._damage: list[ScanFinding] = []
        self._notes: list[ScanFinding] = []
        self._sought: list[UnexplainedChunk] = []
        self.count = 0

    def findings(self) -> tuple[ScanFinding, ...]:
        """Return the kept findings. Findings about damage come first."""
        return (*self._damage, *self._notes)

    def chunk(self, block_id: BlockId, chunk: ChunkInfo, judgement: ChunkJudgement) -> None:
        """Add a finding for the result of the check of a chunk."""
        kept_count = len(self._damage)
        self.add(
            judgement.verdict,
            judgement.fault,
            judgement.evidence,
            block_id,
            chunk.offset,
            chunk.length_bytes,
            judgement.forensic,
        )
        if judgement.forensic is Forensic.UNKNOWN and len(self._damage) > kept_count:
            wrong = judgement.wrong_windows
            item = unexplained_chunk(kept_count, block_id, chunk, judgement.window_checksums, wrong)
            if item is not None:
                self._sought.append(item)

    def trace(self, rows: Callable[[], Iterable[tuple[BlockId, bytes]]]) -> None:
        """Search for the origin of damaged data whose cause is unknown.

        If the replica's rows have the checksums of the damaged data for another chunk, the data was
        written to the wrong position. The evidence of the finding then names the other chunk.
        """
        if not self._sought:
            return
        for position, words in find_places(rows(), self._sought).items():
            finding = self._damage[position]
            evidence = f"{finding.evidence}; {words}"
            self._damage[position] = replace(
                finding, evidence=evidence, forensic=Forensic.MISDIRECTED
            )

    def add(
        self,
        verdict: Verdict,
        fault: DamageFault,
        evidence: str,
        block_id: BlockId = NO_BLOCK,
        offset: int = -1,
        length_bytes: int = -1,
        forensic: Forensic = Forensic.UNKNOWN,
    ) -> None:
        """Add a finding. If the finding is not about a block or chunk, the block id, offset and
        length are -1."""
        finding = ScanFinding(
            self.container_id,
            verdict,
            fault,
            block_id,
            offset,
            length_bytes,
            self.now_ms(),
            evidence,
            forensic,
        )
        self.count += 1
        self.doubt(block_id, offset, length_bytes)
        if finding.is_damage:
            kept, kept_max = self._damage, FINDINGS_PER_REPLICA_MAX
        else:
            kept, kept_max = self._notes, NOTES_PER_REPLICA_MAX
        if len(kept) < kept_max:
            kept.append(finding)
