"""Handles of an index's named databases, while it is open."""

from dataclasses import dataclass
from typing import Final

import lmdb

from agent.store.index.rows import KEY_BYTES

DATABASES: Final = tuple(KEY_BYTES)


@dataclass(frozen=True, slots=True)
class Databases:
    """A handle for each kind of row."""

    replicas: lmdb._Database
    blocks: lmdb._Database
    pending: lmdb._Database
    tombstones: lmdb._Database
    findings: lmdb._Database
    journal: lmdb._Database
    cursors: lmdb._Database
    history: lmdb._Database
    packed: lmdb._Database
    doubts: lmdb._Database
