"""Directories in memory for the tests of single modules: what they wait for is not the disk."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.storage.stores import private_directory


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory of the test's own."""
    with private_directory() as directory:
        yield directory
