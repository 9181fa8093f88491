"""Finds the keys that lose data if given containers are lost. No I/O.

The functions scan all keys, because no index from containers to keys exists. Operators request this
rarely. The scan works on immutable values, so no lock is held.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from heapq import nsmallest

from scm.state.entities import Key


@dataclass(frozen=True, slots=True)
class AffectedKey:
    """A key that has blocks in some of the given containers, with the ids of these containers."""

    name: str
    size_bytes: int
    container_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class KeyPage:
    """A page of affected keys in the order of their names, and the number of keys on all pages."""

    keys: tuple[AffectedKey, ...]
    next_start_after: str  # name to continue after; empty = this is the last page
    key_count: int
    container_count: int


def keys_in(
    keys: Iterable[Key], container_ids: Collection[int], *, start_after: str, count: int
) -> KeyPage:
    """Return at most `count` keys after `start_after` that have blocks in the containers."""
    wanted = frozenset(container_ids)
    needing: list[Key] = []
    if wanted:
        needing = [key for key in keys if any(block.container_id in wanted for block in key.blocks)]
    left = [key for key in needing if key.name > start_after]
    page = nsmallest(count, left, key=lambda key: key.name)
    found = tuple(
        AffectedKey(
            key.name,
            key.size_bytes,
            wanted.intersection(block.container_id for block in key.blocks),
        )
        for key in page
    )
    is_last = len(left) <= len(page)
    return KeyPage(found, "" if is_last else page[-1].name, len(needing), len(wanted))
