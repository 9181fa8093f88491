"""Groups of items for one call of `ReadChunks`: as many chunks as the answer has room for."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

GROUP_BYTES_MAX: Final = 1024**2  # of chunks requested in one call
GROUP_COUNT_MAX: Final = 64

T = TypeVar("T")


def grouped(items: Iterable[T], size_bytes: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield items in groups for one call each, in order, within the room of a message."""
    group: list[T] = []
    group_bytes = 0
    for item in items:
        item_bytes = size_bytes(item)
        if group and (len(group) == GROUP_COUNT_MAX or group_bytes + item_bytes > GROUP_BYTES_MAX):
            yield group
            group, group_bytes = [], 0
        group.append(item)
        group_bytes += item_bytes
    if group:
        yield group
