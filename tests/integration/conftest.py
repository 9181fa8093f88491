"""A real cluster, shared by the tests of a file that only use it: an SCM and three agents.

Each test has a directory in memory where there is such a file system. The calls are the same; only
what they wait for is not. On the disk are that cluster, the files of ON_DISK, and everything in
tests/fault.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.forked_cluster import forked_cluster
from tests.support.storage.stores import private_directory
from tools.demo.cluster import Cluster

ON_DISK: Final = {
    "test_file_writer",
    "test_neighbours",
    "test_outflow",
    "test_packs",
    "test_replicate",
    "test_scan_damage",
    "test_scan_reader",
}
"""What is about reads and writes that pass the page cache by, or places on a disk: memory has
neither."""


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A directory of the test's own."""
    if request.path.stem in ON_DISK:
        yield tmp_path
    else:
        with private_directory() as directory:
            yield directory


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a running cluster of three datanodes, one volume each, scans off."""
    running = forked_cluster(
        tmp_path_factory.mktemp("cluster"),
        container_bytes_max=4 * 1024**2,
    )
    with running:
        yield running
