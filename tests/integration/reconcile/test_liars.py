"""Clusters in which somebody lies: no bytes against an intact row, none lost, nothing unsaid."""

from typing import Final

from tests.support.simulation.liars import liars
from tests.support.storage.stores import private_directory

SEEDS: Final = 60


def test_no_liar_is_believed() -> None:
    """The small form of `make bench NAME=liars`."""
    with private_directory() as root, liars(root) as clusters:
        for seed in range(SEEDS):
            clusters.live(seed)

    judgement = clusters.judgement
    assert [] == judgement.broken
    for what in ("repaired", "adopted", "deletes followed", "contradictions told"):
        assert judgement.counts[what], f"nothing was {what}: the clusters are too tame"
