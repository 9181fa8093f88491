"""Loads rows with their keys into a table, as when a state is read from the disk."""

from collections.abc import Iterable
from typing import Any

from scm.state.table import Table


def load_pairs(table: Table[Any, Any], pairs: Iterable[tuple[bytes, bytes]]) -> None:
    """Load pairs of key and row, in their form on disk, into a table."""
    kept = list(pairs)
    table.load((row for _key, row in kept), lambda place: kept[place][0])
