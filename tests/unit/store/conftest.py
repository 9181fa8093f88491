"""One datanode per test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.store.store import ReplicaStore
from tests.support.stores import open_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ReplicaStore]:
    """An empty store with one volume."""
    opened = open_store(tmp_path)
    yield opened
    opened.close()
