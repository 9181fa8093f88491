"""The numbers that a datanode keeps of a replica and tells: declared once, for all on the way.

    index of a volume ─► report ─► control plane ─► snapshot ─► Spark
                                         └────────► suture scm container

A number that is added to `ReplicaNumbers` with the next `since` is kept, reported, kept again,
exported and shown. Besides it only the two messages of the wire name it, `ReplicaReport` and
`ReplicaColumns`. Rows on disk of before lack it, and it is 0 there; so it is in reports of agents
that do not know it. In a snapshot 0 is null.
"""

from dataclasses import dataclass, field, fields
from typing import Any, Final

COUNT_MAX: Final = 2**31 - 1
REPLICA_INDEX_MAX: Final = 32  # erasure-coded groups of Ozone have at most 14 members
ID_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Number:
    """How one number is kept in an index (`kept`) and reported (`reported`): types of numpy; what
    is above `high` is refused. `since` is 0 for those that were there from the beginning."""

    name: str
    kept: str
    reported: str
    high: int
    since: int


def _number(kept: str, *, reported: str = "<u8", high: int = ID_MAX, since: int = 0) -> Any:
    made_of = {"kept": kept, "reported": reported, "high": high, "since": since}
    return field(default=0, metadata=made_of)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaNumbers:
    """What datanodes and control plane know of a replica alike, as far as it is a number."""

    replica_index: int = _number(">u2", reported="|u1", high=REPLICA_INDEX_MAX)
    bcsid: int = _number(">u8")
    bytes_used: int = _number(">u8")
    block_count: int = _number(">u8")
    data_scan_at_ms: int = _number(">u8")  # 0: never read whole
    finding_count: int = _number(">u4", high=COUNT_MAX)


NUMBERS: Final = {one.name: Number(one.name, **one.metadata) for one in fields(ReplicaNumbers)}
LATER: Final = tuple(sorted((n for n in NUMBERS.values() if n.since), key=lambda n: n.since))
"""Those that were added, in the order in which they lie behind the others."""
LATEST: Final = max((n.since for n in LATER), default=0)
"""How many additions there were."""

assert all(n.kept == ">u8" and n.reported == "<u8" for n in LATER), "rows are of words of 8 bytes"


def later_count(addition: int) -> int:
    """Return how many numbers were added up to an addition."""
    return sum(n.since <= addition for n in LATER)
