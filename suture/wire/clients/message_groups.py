"""Divides items into groups that are small enough for one call or one change."""

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

GROUP_BYTES_MAX: Final = 1024**2  # bytes of chunks that a client requests in one call
REPAIR_BYTES_MAX: Final = 4 * 1024**2  # bytes of chunks in one call of a repair; no answer has more
GROUP_COUNT_MAX: Final = 64

T = TypeVar("T")


def grouped(
    items: Iterable[T], size_bytes: Callable[[T], int], bytes_max: int = GROUP_BYTES_MAX
) -> Iterator[list[T]]:
    """Yield items in order, in groups that fit into one message of `ReadChunks`."""
    return in_groups(items, size_bytes, bytes_max, GROUP_COUNT_MAX)


def in_groups(
    items: Iterable[T],
    weigh: Callable[[T], int],
    weight_max: int,
    count_max: int = sys.maxsize,
) -> Iterator[list[T]]:
    """Yield the items in order, in groups with a maximum total weight and a maximum number of
    items. An item that is heavier than the maximum is a group of its own."""
    group: list[T] = []
    total = 0
    for item in items:
        weight = weigh(item)
        if group and (len(group) == count_max or total + weight > weight_max):
            yield group
            group, total = [], 0
        group.append(item)
        total += weight
    if group:
        yield group
