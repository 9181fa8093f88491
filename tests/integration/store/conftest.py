"""One datanode per test, on a file system in memory where there is one.

The calls are the same; only what they wait for is not. The disk itself is in tests/fault.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.store.replica_store import ReplicaStore
from merkle.replica import ContainerId
from tests.support.storage.stores import open_store, private_directory


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory of the test's own."""
    with private_directory() as directory:
        yield directory


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ReplicaStore]:
    """An empty store with one volume."""
    opened = open_store(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def opened(store: ReplicaStore) -> ReplicaStore:
    """A store with an open container 1."""
    store.create_container(ContainerId(1))
    return store
