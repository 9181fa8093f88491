"""Clusters of processes that tests start."""

from pathlib import Path
from typing import Any

from tests.support.nursery import forked
from tools.demo.cluster import Cluster


def forked_cluster(path: Path, **options: Any) -> Cluster:
    """Return a cluster of three quick datanodes with one volume each that scan only what they are
    asked to; `options` of `Cluster` say otherwise."""
    quick: dict[str, Any] = {
        "agents": 3,
        "volumes": 1,
        "heartbeat_interval_ms": 100,
        "agent_sections": "[scan]\nenabled = false\nwatch = false\n",
    }
    return Cluster(path, launch=forked, **quick | options)
