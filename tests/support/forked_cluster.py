"""Starts clusters of processes for tests."""

from pathlib import Path
from typing import Any

from tests.support.nursery import forked
from tools.demo.cluster import Cluster


def forked_cluster(path: Path, **options: Any) -> Cluster:
    """Return a cluster of three quick datanodes with one volume each, without background scans.
    `options` of `Cluster` override this."""
    quick: dict[str, Any] = {
        "agents": 3,
        "volumes": 1,
        "heartbeat_interval_ms": 100,
        "agent_sections": "[scan]\nenabled = false\nwatch = false\n",
    }
    return Cluster(path, launch=forked, **quick | options)
