"""Search for the wrong shards of a stripe whose cells all read well and still do not fit.

The writer's record of the stripe's checksum is the proof, if there is one: whatever set of shards
is left out, the stripe computed from the others must match it. Without a record only redundancy
decides: leaving out one set makes all others agree, and no other set of the same size does. That
holds as long as twice the wrong shards plus the absent shards are at most the parity count. Beyond
that, no shard is named.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from suture.ec.cell_codec import Cell, padded, rebuild
from suture.ec.geometry import BlockGroup

Proof = Callable[[Mapping[int, Cell]], bool]
"""Returns whether all cells of a stripe, by index, match its writer's record."""


@dataclass(frozen=True, slots=True)
class StripeVerdict:
    """Verdict on one stripe. `wrong` is empty if it fits, or if `is_sure` is False."""

    fits: bool
    wrong: tuple[int, ...] = ()
    is_sure: bool = True


def judge_stripe(
    group: BlockGroup, stripe: int, cells: Mapping[int, Cell], proof: Proof | None = None
) -> StripeVerdict:
    """Judge a stripe by the cells present. Raise RefusedError if there are fewer than `data_count`.

    In a partial stripe, a shard without a cell there has an empty one, which counts as present.

    A stripe with only `data_count` cells present always fits, because nothing is left to compare
    with but the recorded checksum, if `proof` has one.
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
    """Return whether the first `data_count` cells reproduce all other present cells."""
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
