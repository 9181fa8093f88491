"""Scrubs volumes of Ozone in tests."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ozone.scrub.result import ContainerResult
from ozone.scrub.scrub import ScrubListener, ScrubOptions, scrub
from scanner.finding import DamageFault
from tests.support.ozone.ozone_volumes import MadeVolume

BIG = bytes(range(256)) * 4096  # a chunk of 1 MiB


@contextmanager
def running_volume(root: Path) -> Iterator[MadeVolume]:
    """Create a volume with one container of two blocks, and yield it. Its database is open for
    writing, as in a running datanode."""
    volume = MadeVolume(root)
    volume.add_container(1)
    volume.add_block(1, 9, b"nine" * 1000, b"more" * 500)
    volume.add_block(1, 10, b"ten" * 1000)
    yield volume
    volume.close()


def scrubbed(
    wish: ScrubOptions, on_read: Callable[[int], None] = lambda _: None
) -> dict[int, ContainerResult]:
    """Run a scrub; return the results by container id."""
    results: list[ContainerResult] = []
    scrub(wish, ScrubListener(lambda _volume, _count, _bytes: None, on_read, results.append))
    assert len(results) == len({result.container_id for result in results})
    return {result.container_id: result for result in results}


def damage(result: ContainerResult) -> list[tuple[int, DamageFault]]:
    """Return the block id and the fault of each finding about damage. Other findings are left out,
    such as the missing trees of the test volumes."""
    return [(item.block_id, item.fault) for item in result.findings if item.is_damage]


def once(action: Callable[[], None]) -> Callable[[int], None]:
    """Return a listener for reads that calls `action` at the first read only."""
    waiting = [action]

    def read(_length_bytes: int) -> None:
        while waiting:
            waiting.pop()()

    return read
