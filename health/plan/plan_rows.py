"""The rows of a plan as columns, and the functions that create them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from health.segmented_rows import Bools, Ints, Segments
from health.words import Action

OUT_OF_SERVICE_PRIORITY: Final = 5
"""Priority of copies from leaving nodes, whose replicas still exist (Ozone's weight)."""

MISPLACED_PRIORITY: Final = 6
DELETE_PRIORITY: Final = 7
SCAN_PRIORITY: Final = 8

Reasons = NDArray[np.object_]


@dataclass(frozen=True, slots=True)
class RaggedArray:
    """A list of numbers per row: row i has `values[starts[i]:starts[i + 1]]`."""

    starts: Ints
    values: Ints

    @classmethod
    def empty(cls, count: int) -> "RaggedArray":
        """Return `count` empty lists."""
        return cls(np.zeros(count + 1, dtype=np.int64), np.zeros(0, dtype=np.int64))

    @classmethod
    def of(cls, place: Ints, values: Ints, count: int) -> "RaggedArray":
        """Return `count` lists of numbers. The value `values[i]` is in the list with the number
        `place[i]`. The numbers in `place` must ascend."""
        return cls(Segments.of(place, count).starts, values)

    @classmethod
    def concatenate(cls, parts: Sequence["RaggedArray"]) -> "RaggedArray":
        """Return one array with the lists of all parts, in order."""
        ends = np.cumsum([0, *(len(part.values) for part in parts)])
        starts = [part.starts[:-1] + end for part, end in zip(parts, ends, strict=False)]
        return cls(
            np.concatenate([*starts, ends[-1:]]), np.concatenate([part.values for part in parts])
        )

    def sizes(self) -> Ints:
        """Return the length of each list."""
        return np.diff(self.starts)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRows:
    """The rows of a plan, as columns with one value per row."""

    container: Ints
    """Index in the batch's containers."""
    action: Ints
    priority: Ints
    """A lower number is more urgent. The number is the remaining redundancy, or a higher constant
    for actions that can wait."""
    reason: Reasons
    sources: RaggedArray
    """Replicas to copy from, the best first, as rows of the batch."""
    targets: RaggedArray
    """Replicas on which the action is performed, as rows of the batch."""
    indexes: RaggedArray
    copies: Ints
    """Number of new replicas needed."""
    is_forced: Bools
    bytes_estimated: Ints


def rows_of(
    action: Action,
    container: Ints,
    *,
    priority: Ints | int,
    reason: Reasons | str,
    sources: RaggedArray | None = None,
    targets: RaggedArray | None = None,
    indexes: RaggedArray | None = None,
    copies: Ints | int = 0,
    is_forced: Bools | bool = False,
    bytes_estimated: Ints | int = 0,
) -> PlanRows:
    """Return one plan row for each container. An argument with a single value applies to all
    rows."""
    count = len(container)
    words = np.empty(count, dtype=np.object_)
    words[:] = reason
    return PlanRows(
        container=container,
        action=_filled(int(action), count),
        priority=_filled(priority, count),
        reason=words,
        sources=sources or RaggedArray.empty(count),
        targets=targets or RaggedArray.empty(count),
        indexes=indexes or RaggedArray.empty(count),
        copies=_filled(copies, count),
        is_forced=_filled(is_forced, count).astype(np.bool_),
        bytes_estimated=_filled(bytes_estimated, count),
    )


def _filled(value: Ints | Bools | int, count: int) -> Ints:
    return np.broadcast_to(np.asarray(value, dtype=np.int64), (count,)).copy()


def concatenate_rows(parts: Sequence[PlanRows]) -> PlanRows:
    """Return one plan with the rows of all parts, in order."""

    def column(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(part, name) for part in parts])

    def lists(name: str) -> RaggedArray:
        return RaggedArray.concatenate([getattr(part, name) for part in parts])

    return PlanRows(
        container=column("container"),
        action=column("action"),
        priority=column("priority"),
        reason=column("reason"),
        sources=lists("sources"),
        targets=lists("targets"),
        indexes=lists("indexes"),
        copies=column("copies"),
        is_forced=column("is_forced"),
        bytes_estimated=column("bytes_estimated"),
    )


def reasons_of(places: Ints, words: Sequence[str]) -> Reasons:
    """Return, for each number in `places`, the text with this index in `words`."""
    return np.array(words, dtype=np.object_)[places]
