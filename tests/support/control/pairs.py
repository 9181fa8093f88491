"""Rows with their keys, for tables that are read from the disk."""

from collections.abc import Iterable
from typing import Any

from scm.state.table import Table


def load_pairs(table: Table[Any, Any], pairs: Iterable[tuple[bytes, bytes]]) -> None:
    """Let a table load rows, in the form in which they are on disk."""
    kept = list(pairs)
    table.load((row for _key, row in kept), lambda place: kept[place][0])
