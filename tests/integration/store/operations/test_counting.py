"""Sums over all replicas: right at once where that is cheap, and not counted for nothing."""

from dataclasses import replace
from pathlib import Path

import pytest

from agent.store.operations import reading
from agent.store.volumes.volume import VolumeTotals
from merkle.replica import ContainerId
from tests.support.storage.stores import closed_replica, open_store


def test_sums_follow_every_change(tmp_path: Path) -> None:
    """A few replicas are counted again after each change, and the version shows the change."""
    store = open_store(tmp_path)
    before, version = store.volumes()[0], store.volume_set.version()

    closed_replica(store, 1)
    after = store.volumes()[0]

    assert version != store.volume_set.version()
    assert (0, 0) == (before.container_count, before.used_bytes)
    assert 1 == after.container_count
    assert 0 < after.used_bytes
    assert store.volume_set.version() == store.volume_set.version()
    store.delete_container(ContainerId(1), force=True)
    assert 0 == store.volumes()[0].container_count
    store.close()


@pytest.mark.parametrize(("kept_count", "told"), [(1_000, 1), (1_001, 1_001)])
def test_only_many_replicas_are_dear_to_count(tmp_path: Path, kept_count: int, told: int) -> None:
    """A count that took long is reused for a time although the index changes. A count of few
    replicas never is.
    """
    store = open_store(tmp_path)
    [volume] = store.volume_set.working
    reading.volume_facts(volume)
    kept = volume.counted[reading.USED]
    volume.counted[reading.USED] = replace(kept, cost_s=3_600.0, container_count=kept_count)

    closed_replica(store, 1)

    assert told == store.volumes()[0].container_count
    store.close()


def test_an_unchanged_index_is_not_counted_again(tmp_path: Path) -> None:
    """The kept count is valid as long as the index has the same version."""
    store = open_store(tmp_path)
    closed_replica(store, 1)
    [volume] = store.volume_set.working
    reading.volume_facts(volume)
    kept = volume.counted[reading.USED]
    volume.counted[reading.USED] = VolumeTotals(kept.version, kept.at_s, kept.cost_s, 12_345, 678)

    facts = store.volumes()[0]

    assert (12_345, 678) == (facts.used_bytes, facts.container_count)
    store.close()


@pytest.mark.parametrize(("few_count", "trim_count"), [(1, 0), (0, 1)])
def test_count_of_few_replicas_leaves_free_memory_to_transfers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few_count: int, trim_count: int
) -> None:
    """Each heartbeat counts the replicas. A transfer would need the returned pages again at
    once."""
    trims: list[None] = []
    monkeypatch.setattr(reading, "FEW_ROWS", few_count)
    monkeypatch.setattr(reading, "trim_heap", lambda: trims.append(None))
    store = open_store(tmp_path)
    closed_replica(store, 1)
    trims.clear()

    store.volumes()

    assert trim_count == len(trims)
    store.close()
