"""Which shard of a stripe is wrong, when every cell reads well and they still do not fit.

The writer's record of the stripe's checksum is the proof, where there is one: whatever set of
shards is left out, what the others make of them must fold to it. Without a record, redundancy is
all there is: leaving out one set makes all others agree, and no other set as small can. That holds
while the wrong and the absent shards are few: twice the wrong ones and the absent ones make parity
at most. Nothing is named beyond that.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from agent.ec.cell_codec import Cell, padded, rebuild
from agent.ec.geometry import Group

Proof = Callable[[Mapping[int, Cell]], bool]
"""Whether all cells of a stripe, by index, are what its writer recorded."""


@dataclass(frozen=True, slots=True)
class StripeVerdict:
    """What became of one stripe: `wrong` is empty when it fits, or when `is_sure` is false."""

    fits: bool
    wrong: tuple[int, ...] = ()
    is_sure: bool = True


def judge_stripe(
    group: Group, stripe: int, cells: Mapping[int, Cell], proof: Proof | None = None
) -> StripeVerdict:
    """Judge a stripe by the cells at hand; `data_count` of them at least, or Refused is raised.

    In a partial stripe, a shard without a cell there has an empty one, and is at hand.

    A stripe of which no more than `data_count` cells are at hand fits always: nothing is left to
    compare with but the recorded checksum, if `proof` knows one.
    """
    if _fits(group, stripe, cells) and _is_recorded(group, stripe, cells, proof):
        return StripeVerdict(fits=True)
    for suspects in _suspects(group, cells, has_proof=proof is not None):
        rest = {index: cell for index, cell in cells.items() if index not in suspects}
        if _fits(group, stripe, rest) and _is_recorded(group, stripe, rest, proof):
            return StripeVerdict(fits=False, wrong=suspects)
    return StripeVerdict(fits=False, is_sure=False)


def _suspects(
    group: Group, cells: Mapping[int, Cell], *, has_proof: bool
) -> Iterator[tuple[int, ...]]:
    """Yield sets of shards that may be wrong, small ones first."""
    spare_count = len(cells) - group.scheme.data_count
    count_max = spare_count if has_proof else spare_count // 2
    for count in range(1, count_max + 1):
        yield from combinations(sorted(cells), count)


def _is_recorded(group: Group, stripe: int, cells: Mapping[int, Cell], proof: Proof | None) -> bool:
    return proof is None or proof(_completed(group, stripe, cells))


def _fits(group: Group, stripe: int, cells: Mapping[int, Cell]) -> bool:
    """Return whether the first `data_count` cells make all the others at hand."""
    length_bytes = group.cell_bytes_max(stripe)
    rest = sorted(cells)[group.scheme.data_count :]
    made = rebuild(group.scheme, cells, rest, length_bytes)
    return all(np.array_equal(made[i], padded(cells[i], length_bytes)) for i in rest)


def _completed(group: Group, stripe: int, cells: Mapping[int, Cell]) -> dict[int, Cell]:
    """Return all cells of a stripe, cut to their lengths; those not at hand are computed."""
    length_bytes = group.cell_bytes_max(stripe)
    absent = [index for index in group.indexes(stripe) if index not in cells]
    whole: dict[int, Cell] = {**cells, **rebuild(group.scheme, cells, absent, length_bytes)}
    return {i: whole[i][: group.cell_bytes(stripe, i)] for i in group.indexes(stripe)}
