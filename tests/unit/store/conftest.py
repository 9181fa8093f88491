"""One datanode per test, on a file system in memory where there is one.

The calls are the same; only what they wait for is not. The disk itself is in tests/fault.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from agent.store.store import ReplicaStore
from tests.support.stores import open_store

MEMORY: Final = Path("/dev/shm")  # noqa: S108 - each test makes a private directory in it


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory of the test's own."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path_factory.mktemp("store")
        return
    with tempfile.TemporaryDirectory(prefix="suture-test-", dir=MEMORY) as directory:
        yield Path(directory)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ReplicaStore]:
    """An empty store with one volume."""
    opened = open_store(tmp_path)
    yield opened
    opened.close()
