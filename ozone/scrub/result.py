"""The result of the scrub of one container, for tables, JSON and the history."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from merkle.replica import BlockId, ContainerId
from ozone.scrub.comparison import Agreement, Comparison
from scanner.finding import DamageFault, ScanFinding, Verdict

UNSETTLED: Final = frozenset({Verdict.SUSPECT_HOST, Verdict.TRANSIENT, Verdict.CHANGED})
"""Verdicts that make a container doubtful: they neither report damage nor exclude it."""


class ScrubStatus(StrEnum):
    """The result of the scrub of a container, as one word."""

    WHOLE = "WHOLE"  # every byte was read and is correct
    DAMAGED = "DAMAGED"
    DOUBTFUL = "DOUBTFUL"  # no damage, but an operator should check the container
    MISSING = "MISSING"  # the database has rows, but the directory or all files are missing
    NOT_READ = "NOT_READ"  # rejected, or could not be checked: `why` has the reason
    SKIPPED = "SKIPPED"  # Ozone has not closed the container, so it is being written


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerResult:
    """The result of the scrub of one container.

    `findings` lists damage first and is limited in number. `finding_count` is the number of all
    findings. `skipped` has the reasons why blocks could not be checked, for some of these blocks.
    `skipped_count` is the number of all of them. `read_at_ms` is 0 if the container was not read.
    `unknown_row_count` is the number of database keys that belong to no block. `lost_rows` is the
    reason to assume that rows are lost, or "". `why` is the reason of the status MISSING, NOT_READ
    or SKIPPED. `is_verified` is False if the descriptor has no checksum.
    """

    container_id: ContainerId
    storage_id: str
    state: str = ""
    replica_index: int = 0
    schema: int = 0
    read_at_ms: int = 0
    bytes_read: int = 0
    block_count: int = 0
    findings: tuple[ScanFinding, ...] = ()
    finding_count: int = 0
    comparison: Comparison = field(default_factory=lambda: Comparison(Agreement.NO_TREE))
    skipped: Mapping[BlockId, str] = field(default_factory=dict)
    skipped_count: int = 0
    unknown_row_count: int = 0
    lost_rows: str = ""
    why: str = ""
    is_open: bool = False
    is_missing: bool = False
    is_verified: bool = True

    @property
    def status(self) -> ScrubStatus:
        """The result of the scrub of the container, as one word."""
        if self.is_open:
            return ScrubStatus.SKIPPED
        if self.is_missing:
            return ScrubStatus.MISSING
        if any(finding.is_damage for finding in self.findings):
            return ScrubStatus.DAMAGED
        if self.why:
            return ScrubStatus.NOT_READ
        if self.caveats():
            return ScrubStatus.DOUBTFUL
        return ScrubStatus.WHOLE

    @property
    def is_leftover(self) -> bool:
        """True if the container is only a directory without files.

        Ozone leaves such a directory after a delete.
        """
        return self.is_open and not self.state

    @property
    def lacks_tree(self) -> bool:
        """True if the container was read and Ozone has no tree of it."""
        faults = {finding.fault for finding in self.findings}
        return bool(self.read_at_ms) and DamageFault.TREE_MISSING in faults

    @property
    def settled_root(self) -> int | None:
        """The root computed from rows and data, independent of Ozone's tree.

        It is None if it is unknown.
        """
        if self.status is ScrubStatus.WHOLE:
            return self.comparison.settled_root
        return self.comparison.read_root if self.status is ScrubStatus.DAMAGED else None

    def caveats(self) -> tuple[str, ...]:
        """Return the reasons why a container without damage is DOUBTFUL."""
        said = []
        if not self.is_verified:
            said.append("the descriptor has no checksum, which Ozone always writes")
        if self.comparison.agreement is Agreement.UNEXPLAINED:
            named = ", ".join(map(str, self.comparison.unexplained[:3]))
            said.append(
                f"Ozone's tree differs in {self.comparison.unexplained_count} blocks for no reason "
                f"that is known: {named}"
            )
        links = [item for item in self.findings if item.fault is DamageFault.BLOCK_FILE_LINK]
        if links:
            said.append(f"{len(links)} block files are symbolic links: {links[0].evidence}")
        if not self.comparison.is_recorded:
            said.append("the database has another root than the tree file")
        if self.skipped_count:
            first = next(iter(self.skipped.values()), "")
            said.append(f"{self.skipped_count} blocks cannot be judged: {first}")
        if self.lost_rows:
            said.append(self.lost_rows)
        if self.unknown_row_count:
            said.append(f"{self.unknown_row_count} rows of a kind that is not known")
        suspects = [item for item in self.findings if item.verdict in UNSETTLED]
        if suspects:
            said.append(f"{len(suspects)} reads came to no verdict: {suspects[0].evidence}")
        return tuple(said)

    def facts(self) -> dict[str, Any]:
        """Return the fields of the result, for the JSON output."""
        comparison = self.comparison
        return {
            "container_id": self.container_id,
            "storage_id": self.storage_id,
            "status": self.status.value,
            "why": self.why,
            "state": self.state,
            "replica_index": self.replica_index,
            "schema": self.schema,
            "read_at_ms": self.read_at_ms,
            "bytes_read": self.bytes_read,
            "block_count": self.block_count,
            "finding_count": self.finding_count,
            "findings": [finding_facts(item) for item in self.findings],
            "doubts": list(self.caveats()),
            "skipped": {str(key): value for key, value in self.skipped.items()},
            "tree": {
                "agreement": comparison.agreement.value,
                "root": _hex(comparison.root),
                "settled_root": _hex(self.settled_root),
                "reasons": {key.value: count for key, count in comparison.reasons.items()},
                "damaged_count": comparison.damaged_count,
                "unexplained": list(comparison.unexplained),
                "unexplained_count": comparison.unexplained_count,
                "is_recorded": comparison.is_recorded,
            },
        }


def _hex(root: int | None) -> str | None:
    return None if root is None else f"{root:08x}"


def finding_facts(finding: ScanFinding) -> dict[str, Any]:
    """Return the fields of a finding, for the JSON output."""
    return {
        "verdict": finding.verdict.value,
        "fault": finding.fault.value,
        "forensic": finding.forensic.value,
        "block_id": finding.block_id,
        "offset": finding.offset,
        "length_bytes": finding.length_bytes,
        "found_at_ms": finding.found_at_ms,
        "evidence": finding.evidence,
        "is_damage": finding.is_damage,
        "meaning": MEANINGS.get(finding.fault, ""),
    }


_FROM_A_REPLICA: Final = "another replica, or the other shards, have what is needed to repair it"
MEANINGS: Final = {
    DamageFault.CHUNK_CHECKSUM: f"the bytes are not those that the client wrote; {_FROM_A_REPLICA}",
    DamageFault.CHUNK_SHORT: f"the file ends inside a chunk; {_FROM_A_REPLICA}",
    DamageFault.CHUNK_MISSING: f"the file ends before a chunk; {_FROM_A_REPLICA}",
    DamageFault.CHUNK_UNREADABLE: "the device gives an error instead of bytes: look at the disk",
    DamageFault.BLOCK_FILE_MISSING: f"there is a row and no file; {_FROM_A_REPLICA}",
    DamageFault.BLOCK_FILE_LINK: "Ozone follows the link, and writes and deletes no file that it "
    "leads to: put the file in its place",
    DamageFault.BLOCK_ROW_MISSING: "a file without a row: Ozone does not serve it",
    DamageFault.BLOCK_ROW_DAMAGED: "the row cannot be read, so the block cannot be served "
    "or judged",
    DamageFault.TRAILING_BYTES: "bytes behind what was committed, as a client leaves that died "
    "while it wrote: no key reaches them, and Ozone does not look at them",
    DamageFault.FOREIGN_FILE: "something among the block files that is none",
    DamageFault.DESCRIPTOR_DAMAGED: "Ozone does not load the container when the datanode starts",
    DamageFault.DESCRIPTOR_MISSING: "Ozone does not load the container when the datanode starts",
    DamageFault.TREE_DAMAGED: "Ozone makes the tree anew with its next scan of the container",
    DamageFault.TREE_MISSING: "Ozone makes the tree with its next scan of the container",
    DamageFault.CHUNKS_DIRECTORY_MISSING: "no block of the container has a file",
}
"""The meaning of each fault for an operator of Ozone."""
