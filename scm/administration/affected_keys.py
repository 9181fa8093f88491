"""Finds the keys that lose data if given containers are lost. No I/O.

The functions scan all keys, because no index from containers to keys exists. This is acceptable,
because operators request it rarely. The keys are immutable, so the scan needs no lock.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from heapq import nsmallest

from scm.state.entities import Key


@dataclass(frozen=True, slots=True)
class AffectedKey:
    """A key that has blocks in some of the given containers.

    `container_ids` are the given containers that store a block of this key.
    """

    name: str
    size_bytes: int
    container_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class KeyPage:
    """A page of affected keys, sorted by name.

    `key_count` is the number of affected keys on all pages. `container_count` is the number of
    containers that the caller asked about.
    """

    keys: tuple[AffectedKey, ...]
    next_start_after: str  # name to continue after; empty = this is the last page
    key_count: int
    container_count: int


def keys_in(
    keys: Iterable[Key], container_ids: Collection[int], *, start_after: str, count: int
) -> KeyPage:
    """Return a page of the keys that have blocks in the given containers.

    The page has at most `count` keys, and only keys whose names sort after `start_after`.
    """
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
