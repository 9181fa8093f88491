"""What one scan of a replica learned, as a value."""

from dataclasses import dataclass

from merkle.tree import Tree
from scanner.finding import Finding


@dataclass(frozen=True, slots=True)
class ScanOutcome:
    """What one scan learned.

    `stopped_because` says why the walk ended early ("stopped", "changed", or a transient errno):
    then neither tree nor findings may be committed. `undecided_count` counts chunks of which not
    even the medium's content is known: then the findings hold, the tree does not. `findings` is
    bounded, `finding_count` is not. `disagreement_count` counts chunks on which the two checksum
    libraries differed.
    """

    tree: Tree
    findings: tuple[Finding, ...]
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
        """Whether every byte was read and judged, so that the tree may be committed."""
        return not self.stopped_because and not self.undecided_count

    @property
    def is_damaged(self) -> bool:
        """Whether a finding calls for repair."""
        return any(finding.is_damage for finding in self.findings)
