"""Where things lie on a volume, and which paths are no volume."""

from pathlib import Path

import pytest

from merkle.replica import ContainerId
from ozone.disk.layout import container_ids, find_volume, local_path
from suture.errors import RefusedError

VERSION = "#Sun Nov 22\nstorageID=DS-1\nclusterID=CID-1\ndatanodeUuid=u\nlayOutVersion=1\n"


def volume_at(root: Path, version: str = VERSION, *clusters: str) -> Path:
    """Make the bones of a data directory."""
    (root / "hdds").mkdir(parents=True)
    (root / "hdds" / "VERSION").write_text(version)
    for name in clusters:
        (root / "hdds" / name / "current" / "containerDir0" / "7").mkdir(parents=True)
    return root


def test_a_data_directory_and_its_hdds_are_the_same_volume(tmp_path: Path) -> None:
    """
    Operators name either.
    """
    root = volume_at(tmp_path / "data", VERSION, "CID-1")

    assert find_volume(root) == find_volume(root / "hdds")
    assert ("DS-1", "CID-1", "u") == (
        (found := find_volume(root)).storage_id,
        found.cluster_id,
        found.datanode_id,
    )


def test_a_cluster_directory_may_have_any_name(tmp_path: Path) -> None:
    """
    The only one that holds containers is it; of several the one of the cluster's id.
    """
    only = volume_at(tmp_path / "a", VERSION, "SCM-9")
    both = volume_at(tmp_path / "b", VERSION, "CID-1", "SCM-9")

    assert "SCM-9" == find_volume(only).cluster.name
    assert "CID-1" == find_volume(both).cluster.name


def test_containers_lie_by_the_bits_of_their_ids(tmp_path: Path) -> None:
    """
    512 ids in a row share a directory, of 256; what is no id is passed over.
    """
    volume = find_volume(volume_at(tmp_path / "data", VERSION, "CID-1"))
    current = volume.cluster / "current"
    (current / "containerDir0" / "not-an-id").mkdir()
    (current / "containerDir0" / "007").mkdir()
    (current / "containerDir1" / "512").mkdir(parents=True)

    assert [7, 512] == sorted(container_ids(volume))
    assert current / "containerDir1" / "512" == volume.paths(ContainerId(512)).root
    assert current / "containerDir0" / "131072" == volume.paths(ContainerId(131072)).root


@pytest.mark.parametrize(
    ("said", "path"),
    [
        ("/data/1", "/data/1"),
        ("[DISK]/data/1", "/data/1"),
        ("[archive]/data/1", "/data/1"),
        ("file:///data/1", "/data/1"),
        ("[SSD]file:///data/with%20space", "/data/with space"),
        ("file:/data/1", "/data/1"),
        ("data/1", "data/1"),
    ],
)
def test_directory_is_taken_as_it_stands_in_hdds_datanode_dir(said: str, path: str) -> None:
    """Ozone reads a type of storage in brackets, and a URI."""
    assert Path(path) == local_path(Path(said))


@pytest.mark.parametrize(
    ("version", "clusters", "why"),
    [
        ("storageID=DS-1\n", (), "lacks clusterID, datanodeUuid"),
        (VERSION.replace("CID-1", "../.."), (), "is not a valid name"),
        (VERSION.replace("DS-1", ".."), (), "is not a valid name"),
        (VERSION, ("A", "B"), "several clusters: A, B"),
        (VERSION.replace("CID-1", "6f0a"), ("89de",), "cluster 6f0a, .* in 89de"),
        (VERSION, ("CID-2",), "VERSION names cluster CID-1, and its containers are in CID-2"),
    ],
)
def test_volume_with_an_invalid_version_file_is_refused(
    tmp_path: Path, version: str, clusters: tuple[str, ...], why: str
) -> None:
    """The error names a VERSION that points nowhere or elsewhere."""
    with pytest.raises(RefusedError, match=why):
        find_volume(volume_at(tmp_path / "data", version, *clusters))
