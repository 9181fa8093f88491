"""A volume of which a part is left: it is missed, not begun again as an empty one."""

import shutil
from pathlib import Path

import pytest

from agent.store.files.layout import VolumeLayout
from agent.store.index.facts import VolumeFacts
from agent.store.volumes.volume_registry import declare_new
from suture.errors import RefusedError
from tests.support.storage.stores import CLUSTER, closed_replica, open_store

NO_FSTAB = Path("/nowhere/fstab")


def filled(path: Path, volume_count: int) -> list[VolumeFacts]:
    """Make a datanode with a replica on each volume, stop it, and return its volumes."""
    store = open_store(path, volume_count=volume_count)
    for container_id in range(1, volume_count + 1):
        closed_replica(store, container_id, block_ids=(1,))
    volumes = list(store.volumes())
    store.close()
    return volumes


def names_below(path: Path) -> list[str]:
    """Return every name below a directory."""
    return sorted(str(name) for name in path.rglob("*"))


@pytest.mark.parametrize("is_there", [True, False])
def test_remains_of_a_volume_are_not_formatted(tmp_path: Path, is_there: bool) -> None:
    """A volume that has VERSION but neither index nor replicas is left out as it is, until an
    operator declares its data lost.
    """
    bad = filled(tmp_path, volume_count=2)[1]
    layout = VolumeLayout(bad.path, CLUSTER)
    layout.cluster.rename(tmp_path / "aside")
    if is_there:
        layout.cluster.mkdir()
    before = names_below(bad.path)

    store = open_store(tmp_path, volume_count=2)

    [served, failed] = store.volumes()
    store.close()
    assert [(False, 1), (True, 0)] == [(v.failed, v.container_count) for v in (served, failed)]
    assert bad.volume_id == failed.volume_id
    assert "its index and all replicas are missing" in failed.error
    assert before == names_below(bad.path)
    declare_new(bad.path, fstab=NO_FSTAB)

    for _ in range(2):
        store = open_store(tmp_path, volume_count=2)
        assert [False, False] == [volume.failed for volume in store.volumes()]
        assert bad.volume_id in {volume.volume_id for volume in store.volumes()}
        store.close()
    assert not layout.new.exists(), "the word is for one start"


def test_remains_of_the_only_volume_are_not_formatted(tmp_path: Path) -> None:
    """No other volume remembers it, so its own VERSION must tell."""
    [bad] = filled(tmp_path, volume_count=1)
    shutil.rmtree(VolumeLayout(bad.path, CLUSTER).cluster)

    with pytest.raises(RefusedError, match="its index and all replicas are missing"):
        open_store(tmp_path, volume_count=1)


def test_a_format_that_was_cut_short_goes_on(tmp_path: Path) -> None:
    """
    VERSION without anything below it is an old volume only when the format had ended.
    """
    [volume] = filled(tmp_path, volume_count=1)
    layout = VolumeLayout(volume.path, CLUSTER)
    shutil.rmtree(layout.cluster)
    layout.new.write_bytes(b"new\n")

    store = open_store(tmp_path, volume_count=1)

    assert [False] == [volume.failed for volume in store.volumes()]
    store.close()
