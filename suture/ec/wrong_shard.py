"""Finds the wrong shards of a stripe whose cells match their checksums, but do not match each
other.

If the writer recorded a checksum of the stripe, the search omits a set of shards, computes their
cells from the others, and compares the result with the recorded checksum.

Without a recorded checksum, a set of shards is wrong if all other shards match each other without
it, and if no other set of the same size has this property. This is reliable if twice the number of
wrong shards plus the number of absent shards is at most the number of parity shards. Beyond this
limit, the search names no shard.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from suture.ec.cell_codec import Cell, padded, rebuild
from suture.ec.geometry import BlockGroup

Proof = Callable[[Mapping[int, Cell]], bool]
"""A function that returns True if all cells of a stripe, by shard index, match the recorded
checksum."""


@dataclass(frozen=True, slots=True)
class StripeVerdict:
    """The result of the check of one stripe.

    `fits` is True if the cells match. Otherwise, `wrong` has the indexes of the wrong shards; it is
    empty, and `is_sure` is False, if they cannot be identified.
    """

    fits: bool
    wrong: tuple[int, ...] = ()
    is_sure: bool = True


def judge_stripe(
    group: BlockGroup, stripe: int, cells: Mapping[int, Cell], proof: Proof | None = None
) -> StripeVerdict:
    """Check if the cells of a stripe match each other, and find the wrong ones.

    In a partial stripe, a shard without a cell must be present with an empty cell. Exactly
    `data_count` cells always match each other; only `proof`, which compares the stripe with the
    writer's checksum, can show that they are wrong. Raise RefusedError if fewer than `data_count`
    cells are present.
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
    """Yield the sets of shards that may be wrong, small sets first."""
    spare_count = len(cells) - group.scheme.data_count
    count_max = spare_count if has_proof else spare_count // 2
    for count in range(1, count_max + 1):
        yield from combinations(sorted(cells), count)


def _is_recorded(
    group: BlockGroup, stripe: int, cells: Mapping[int, Cell], proof: Proof | None
) -> bool:
    return proof is None or proof(_completed(group, stripe, cells))


def _fits(group: BlockGroup, stripe: int, cells: Mapping[int, Cell]) -> bool:
    """Return True if all other present cells match those that are computed from the first
    `data_count` cells."""
    length_bytes = group.cell_bytes_max(stripe)
    rest = sorted(cells)[group.scheme.data_count :]
    made = rebuild(group.scheme, cells, rest, length_bytes)
    return all(np.array_equal(made[i], padded(cells[i], length_bytes)) for i in rest)


def _completed(group: BlockGroup, stripe: int, cells: Mapping[int, Cell]) -> dict[int, Cell]:
    """Return all cells of a stripe with their correct lengths. Missing cells are computed."""
    length_bytes = group.cell_bytes_max(stripe)
    absent = [index for index in group.indexes(stripe) if index not in cells]
    whole: dict[int, Cell] = {**cells, **rebuild(group.scheme, cells, absent, length_bytes)}
    return {i: whole[i][: group.cell_bytes(stripe, i)] for i in group.indexes(stripe)}
