"""Damage and contradictions that the source of a copy declares before it sends the first block.

The receiver accepts only damage that was declared, and records it when the replica has arrived. If
the source has lost rows and cannot name their blocks, the copy is refused, because the receiver
could not record the loss. The source must then be scanned first. A replica that contradicts its
peers still does so after it was copied. Therefore, the copy also stores the contradictions. They do
not count as declared damage.
"""

from dataclasses import dataclass, field
from typing import Final

from agent.services.report_messages import TEXT_CHARS_MAX
from agent.store.replica.contradictions import KEPT_MAX
from merkle.replica import BLOCK_BYTES_MAX, ID_MAX, ContainerId
from merkle.tree import Tree
from scanner.finding import CONTRADICTING, DamageFault, ScanFinding, Verdict
from suture.errors import Code, RefusedError
from suture.wire.mapping import codec
from suture.wire.v1 import datanode_pb2 as pb

FINDINGS_MAX: Final = 10_000  # a replica with more damage is not copied


@dataclass(slots=True)
class DeclaredDamage:
    """The findings that the source of a copy has declared before sending the data.

    `evidence` has a text for each damaged block. `places` has the pair (block, offset) of each
    damaged chunk. `contradictions` has the findings that say that other replicas contradict this
    replica.
    """

    container_id: ContainerId
    evidence: dict[int, str] = field(default_factory=dict)
    places: set[tuple[int, int]] = field(default_factory=set)
    contradictions: list[ScanFinding] = field(default_factory=list)
    _damage_count: int = 0

    def add(self, message: pb.ImportFindings) -> None:
        """Add a page of findings that the source has sent.

        Raise RefusedError if a finding is invalid, or if it reports lost rows without the ids of
        their blocks.
        """
        for item in message.findings:
            if item.verdict == Verdict.CONTRADICTORY:
                self._contradicted(item)
                continue
            if item.local_id < 1 and item.fault == DamageFault.BLOCK_ROW_MISSING:
                raise RefusedError(
                    Code.CHECKSUM_MISMATCH,
                    "the source lost rows and does not name their blocks",
                    hint="scan the source",
                    container_id=self.container_id,
                )
            self._damage_count += 1
            if self._damage_count > FINDINGS_MAX:
                raise codec.malformed("findings", f"more than {FINDINGS_MAX} of damage")
            evidence = _text(item.evidence)
            self.evidence.setdefault(item.local_id, evidence)
            self.places.add((item.local_id, item.offset))

    def covers(self, tree: Tree, block_id: int, offset: int) -> bool:
        """Return whether the source has declared this chunk as damaged.

        The source does this by a finding, or by a tree without a healthy chunk at `offset`. If
        `offset` is -1, return whether the source has declared the row of the block as damaged.
        """
        if (block_id, offset) in self.places or (block_id, -1) in self.places:
            return True
        if offset < 0:
            return False
        leaves = tree.leaves(block_id)
        return not any(leaf.offset == offset and leaf.healthy for leaf in leaves)

    def _contradicted(self, item: pb.Finding) -> None:
        if len(self.contradictions) >= KEPT_MAX:
            raise codec.malformed("findings", f"more than {KEPT_MAX} contradictions")
        if item.fault not in CONTRADICTING:
            raise codec.malformed("findings.fault", "is nothing that replicas contradict")
        self.contradictions.append(
            ScanFinding(
                container_id=self.container_id,
                verdict=Verdict.CONTRADICTORY,
                fault=DamageFault(item.fault),
                block_id=codec.parse_block_id(item.local_id, "findings.local_id"),
                offset=_place(item.offset, "findings.offset"),
                length_bytes=_place(item.length, "findings.length"),
                found_at_ms=codec.parse_int(
                    item.found_at_ms, "findings.found_at_ms", low=0, high=ID_MAX
                ),
                evidence=_text(item.evidence),
            )
        )


def _text(value: str) -> str:
    return codec.parse_text(value, "findings.evidence", chars_max=TEXT_CHARS_MAX)


def _place(value: int, where: str) -> int:
    return codec.parse_int(value, where, low=-1, high=BLOCK_BYTES_MAX)
