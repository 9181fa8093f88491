"""One real cluster, shared by the tests that only use it: an SCM and three agents."""

from collections.abc import Iterator

import pytest

from agent.demo.cluster import Cluster
from tests.support.nursery import forked


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a running cluster of three datanodes, one volume each, scans off."""
    running = Cluster(
        tmp_path_factory.mktemp("cluster"),
        agents=3,
        volumes=1,
        container_bytes_max=4 * 1024**2,
        heartbeat_interval_ms=100,
        agent_sections="[scan]\nenabled = false\nwatch = false\n",
        launch=forked,
    )
    with running:
        yield running
