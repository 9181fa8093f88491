"""Fixtures of the tests that send replicas."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.storage.pushed import Pair, serving_pair


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Two datanodes that serve; the source has no replica yet."""
    with serving_pair(tmp_path) as made:
        yield made
