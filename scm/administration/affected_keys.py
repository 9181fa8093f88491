"""Which keys have blocks in some containers: what is lost with them, by name. Pure.

Goes through all keys, of which nobody keeps a list by containers: for people who ask, and over
values that do not change, so that nobody waits for it.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from heapq import nsmallest

from scm.state.facts import Key


@dataclass(frozen=True, slots=True)
class Needing:
    """One key, and in which of the containers it has blocks."""

    name: str
    size_bytes: int
    container_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class Page:
    """Some keys by name, and how many there are in all."""

    keys: tuple[Needing, ...]
    next_start_after: str  # empty: that was the last page
    key_count: int
    container_count: int


def keys_in(
    keys: Iterable[Key], container_ids: Collection[int], *, start_after: str, count: int
) -> Page:
    """Return the keys behind `start_after` that have blocks in the containers, at most `count`."""
    wanted = frozenset(container_ids)
    needing: list[Key] = []
    if wanted:
        needing = [key for key in keys if any(block.container_id in wanted for block in key.blocks)]
    left = [key for key in needing if key.name > start_after]
    page = nsmallest(count, left, key=lambda key: key.name)
    found = tuple(
        Needing(
            key.name,
            key.size_bytes,
            wanted.intersection(block.container_id for block in key.blocks),
        )
        for key in page
    )
    is_last = len(left) <= len(page)
    return Page(found, "" if is_last else page[-1].name, len(needing), len(wanted))
