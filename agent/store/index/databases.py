"""The handles of an index's named databases, while it is open."""

from dataclasses import dataclass
from typing import Final

import lmdb

from agent.store.index.rows import KEY_BYTES

DATABASES: Final = tuple(KEY_BYTES)
LATER: Final = frozenset({"history", "packed", "doubts"})
"""Absent until an agent that has them opens the volume."""


@dataclass(frozen=True, slots=True)
class Databases:
    """One handle for each kind of row; None for one of `LATER` in a volume that is only read."""

    replicas: lmdb._Database
    blocks: lmdb._Database
    pending: lmdb._Database
    tombstones: lmdb._Database
    findings: lmdb._Database
    journal: lmdb._Database
    cursors: lmdb._Database
    history: lmdb._Database | None
    packed: lmdb._Database | None
    doubts: lmdb._Database | None
