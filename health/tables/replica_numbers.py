"""The numeric fields of a replica that a datanode stores and reports, with their types and bounds.

    index of a volume ─► report ─► control plane ─► snapshot ─► Spark
                                         └────────► suture scm containers

All programs in this chart use the types and bounds of this module, for rows on disk and for the
columns of a report.
"""

from dataclasses import dataclass, field, fields
from typing import Any, Final

COUNT_MAX: Final = 2**31 - 1
REPLICA_INDEX_MAX: Final = 32  # erasure-coded groups of Ozone have at most 14 members
ID_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Number:
    """A numeric field of a replica, with its numpy type in the index of a volume (`kept`), its
    numpy type in reports (`reported`), and its maximum value (`high`). Larger values are rejected.
    """

    name: str
    kept: str
    reported: str
    high: int


def _number(kept: str, *, reported: str = "<u8", high: int = ID_MAX) -> Any:
    return field(default=0, metadata={"kept": kept, "reported": reported, "high": high})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaNumbers:
    """The numeric fields of a replica that both the datanodes and the control plane have."""

    replica_index: int = _number(">u2", reported="|u1", high=REPLICA_INDEX_MAX)
    bcsid: int = _number(">u8")
    used_bytes: int = _number(">u8")
    block_count: int = _number(">u8")
    data_scan_at_ms: int = _number(">u8")  # 0 = never read completely
    finding_count: int = _number(">u4", high=COUNT_MAX)


NUMBERS: Final = {one.name: Number(one.name, **one.metadata) for one in fields(ReplicaNumbers)}
