"""Handles of the named databases of an open index."""

from dataclasses import dataclass
from typing import Final

import lmdb

from agent.store.index.rows import KEY_BYTES

DATABASES: Final = tuple(KEY_BYTES)


@dataclass(frozen=True, slots=True)
class Databases:
    """Handles of LMDB databases.

    Each database has the rows of one kind, for example of replicas.
    """

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
