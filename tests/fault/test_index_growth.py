"""The index's map is replaced while threads use it."""

import threading
from pathlib import Path

import pytest

from agent.store.index.environment import Index
from merkle.replica import BlockId, ContainerId

pytestmark = [pytest.mark.fault, pytest.mark.slow]

ONE = ContainerId(1)
MiB = 1024**2


def test_readers_and_writers_go_on_while_it_grows(tmp_path: Path) -> None:
    """
    Four threads fill the map together while two read all of it, and every row is there.
    """
    (tmp_path / "db").mkdir()
    index = Index(tmp_path / "db", map_bytes=MiB)
    rows_each = 60
    errors: list[BaseException] = []
    stop = threading.Event()
    written = threading.Semaphore(0)  # a read after each write: two readers that spin starve all

    def write(worker: int) -> None:
        try:
            for number in range(1, rows_each + 1):
                block_id = BlockId(worker * 1000 + number)
                index.write(
                    lambda rows, b=block_id: rows.put_block(ONE, b, bytes(30_000))  # type: ignore[misc]
                )
                written.release()
        except BaseException as error:
            errors.append(error)
            raise

    def read() -> None:
        try:
            while not stop.is_set():
                written.acquire(timeout=0.05)
                with index.read() as rows:
                    assert all(30_000 == len(row) for _, row in rows.blocks(ONE))
        except BaseException as error:
            errors.append(error)
            raise

    writers = [threading.Thread(target=write, args=(worker,)) for worker in range(4)]
    readers = [threading.Thread(target=read) for _ in range(2)]
    for thread in writers + readers:
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    for thread in readers:
        thread.join()

    assert [] == errors
    with index.read() as rows:
        assert 4 * rows_each == sum(1 for _ in rows.blocks(ONE))
    assert 8 * MiB <= index._env.info()["map_size"]
    index.close()
