"""A replica whose index was lost has nothing to read, and each of its blocks to be told."""

from typing import Any

import numpy as np
import pytest

from merkle.checksum import Algorithm
from merkle.replica import ContainerId
from scanner.ports import Structure
from scanner.replica_scan import STOPPED
from scanner.scan_outcome import ScanRecord
from tests.support.storage.replica_reader import NOW_MS, MemoryReader, MemoryReplica, scan

BLOCK_COUNT = 20


class CountedColumn(np.ndarray[tuple[int, ...], np.dtype[np.uint64]]):
    """A column that counts how often it is gone through."""

    count = 0

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Count, and do it."""
        CountedColumn.count += 1
        plain = [one.view(np.ndarray) if isinstance(one, CountedColumn) else one for one in args]
        return func(*plain, **kwargs)


@pytest.fixture
def replica() -> MemoryReplica:
    """Blocks without their rows, and a file that nobody knows."""
    replica = MemoryReplica()
    for block_id in range(1, BLOCK_COUNT + 1):
        replica.put(block_id, b"x")
    replica.rows.clear()
    replica.files[99] = b"a stray"
    return replica


def test_a_sign_of_life_comes_of_each_block(replica: MemoryReplica) -> None:
    """The watchdog would otherwise end the agent, and the next one would begin the same work."""
    signs: list[int] = []

    outcome = scan(MemoryReader(replica), progress=signs.append)

    assert [0] * (BLOCK_COUNT + 1) == signs
    assert BLOCK_COUNT + 1 == outcome.finding_count


@pytest.mark.parametrize("told_count", [7, BLOCK_COUNT])
def test_scan_of_lost_rows_can_be_stopped_at_each_block(
    replica: MemoryReplica, told_count: int
) -> None:
    """This holds for missing rows and for unknown files. The findings until then are kept."""
    signs: list[int] = []

    outcome = scan(
        MemoryReader(replica), stop=lambda: len(signs) == told_count, progress=signs.append
    )

    assert STOPPED == outcome.stopped_because
    assert told_count == outcome.finding_count


@pytest.mark.parametrize("lost_count", [1, 500])
def test_files_are_gone_through_as_often_whatever_was_lost(
    monkeypatch: pytest.MonkeyPatch, lost_count: int
) -> None:
    """
    Once for each lost row, that takes hours, and the agent is killed before it ends.
    """
    monkeypatch.setattr(CountedColumn, "count", 0)
    record = ScanRecord(
        ContainerId(1), Algorithm.XXH3_64, now_ms=lambda: NOW_MS, doubt=lambda *_: None
    )
    ids = np.arange(1, lost_count + 1, dtype=np.uint64)
    found = Structure((), ids.view(CountedColumn), ids)
    reader = MemoryReader(MemoryReplica())

    record.structure(found, np.empty(0, np.uint64), {}, reader, look=lambda: None)

    assert lost_count == record.outcome(bytes_read=0).finding_count
    assert CountedColumn.count < 5
