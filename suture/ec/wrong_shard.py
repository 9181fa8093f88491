"""Search for the wrong shards of a stripe whose cells match their checksums but not each other.

If the writer recorded the stripe's checksum, that checksum decides. The search leaves out a set of
shards and computes their cells from the others; the result must match the recorded checksum.

Without a recorded checksum, only redundancy decides. A set of shards is wrong if all other shards
agree without it, and if no other set of the same size has this property. This is reliable while
twice the number of wrong shards plus the number of absent shards is at most the parity count.
Beyond that limit, the search names no shard.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from suture.ec.cell_codec import Cell, padded, rebuild
from suture.ec.geometry import BlockGroup

Proof = Callable[[Mapping[int, Cell]], bool]
"""Function that returns True if all cells of a stripe, by index, match the recorded checksum."""


@dataclass(frozen=True, slots=True)
class StripeVerdict:
    """Verdict on one stripe. `wrong` has the indexes of the wrong shards; it is empty if the cells
    match, or if the wrong shards cannot be identified (`is_sure` is False)."""

    fits: bool
    wrong: tuple[int, ...] = ()
    is_sure: bool = True


def judge_stripe(
    group: BlockGroup, stripe: int, cells: Mapping[int, Cell], proof: Proof | None = None
) -> StripeVerdict:
    """Judge a stripe by the cells present. Raise RefusedError if fewer than `data_count` are
    present.

    In a partial stripe, a shard that has no cell in the stripe counts as present, with an empty
    cell.

    Exactly `data_count` cells always match each other. Then only the writer's checksum can prove
    them wrong, and only if `proof` is given.
    """
    if _fits(group, stripe, cells) and _is_recorded(group, stripe, cells, proof):
        return StripeVerdict(fits=True)
    for suspects in _suspects(group, cells, has_proof=proof is not None):
        rest = {index: cell for index, cell in cells.items() if index not in suspects}
        if _fits(group, stripe, rest) and _is_recorded(group, stripe, rest, proof):
            return StripeVerdict(fits=False, wrong=suspects)
    return StripeVerdict(fits=False, is_sure=False)


def _suspects(
    group: BlockGroup, cells: Mapping[int, Cell], *, has_proof: bool
) -> Iterator[tuple[int, ...]]:
    """Yield sets of shards that may be wrong, small sets first."""
    spare_count = len(cells) - group.scheme.data_count
    count_max = spare_count if has_proof else spare_count // 2
    for count in range(1, count_max + 1):
        yield from combinations(sorted(cells), count)


def _is_recorded(
    group: BlockGroup, stripe: int, cells: Mapping[int, Cell], proof: Proof | None
) -> bool:
    return proof is None or proof(_completed(group, stripe, cells))


def _fits(group: BlockGroup, stripe: int, cells: Mapping[int, Cell]) -> bool:
    """Return whether all other present cells can be recomputed from the first `data_count` ones."""
    length_bytes = group.cell_bytes_max(stripe)
    rest = sorted(cells)[group.scheme.data_count :]
    made = rebuild(group.scheme, cells, rest, length_bytes)
    return all(np.array_equal(made[i], padded(cells[i], length_bytes)) for i in rest)


def _completed(group: BlockGroup, stripe: int, cells: Mapping[int, Cell]) -> dict[int, Cell]:
    """Return all cells of a stripe, cut to their lengths; missing cells are computed."""
    length_bytes = group.cell_bytes_max(stripe)
    absent = [index for index in group.indexes(stripe) if index not in cells]
    whole: dict[int, Cell] = {**cells, **rebuild(group.scheme, cells, absent, length_bytes)}
    return {i: whole[i][: group.cell_bytes(stripe, i)] for i in group.indexes(stripe)}
