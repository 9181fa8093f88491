"""Volumes: whose they are, and that one process serves them."""

import os
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from agent.store.files.layout import VolumeLayout, block_id_of, container_id_of, decode_version
from agent.store.recovery.fsck import fsck
from agent.store.replica_store import ReplicaStore
from agent.store.volumes import volume
from merkle.replica import ContainerId
from suture.errors import Code, RefusedError, VolumeFailed
from tests.support.storage.stores import (
    CLUSTER,
    DATANODE,
    closed_replica,
    open_store,
    options_of_test,
)


def open_as(path: Path, cluster_id: str = CLUSTER, datanode_id: str = DATANODE) -> ReplicaStore:
    """Open one volume under these ids."""
    return ReplicaStore.open(
        [path], cluster_id=cluster_id, datanode_id=datanode_id, options=options_of_test()
    )


class TestFormat:
    """Empty volumes, and others."""

    def test_an_empty_directory_becomes_a_volume(self, tmp_path: Path) -> None:
        """VERSION has its owner, in Ozone's words."""
        open_as(tmp_path / "v0").close()

        version = decode_version((tmp_path / "v0/hdds/VERSION").read_bytes(), tmp_path)
        assert (1, CLUSTER, DATANODE) == (
            version.layout_version,
            version.cluster_id,
            version.datanode_id,
        )
        assert version.volume_id.startswith("DS-")

    def test_a_volume_keeps_its_id(self, tmp_path: Path) -> None:
        """
        A second start does not format again.
        """
        first = open_as(tmp_path / "v0")
        volume_id = first.volumes()[0].volume_id
        first.close()

        second = open_as(tmp_path / "v0")

        assert volume_id == second.volumes()[0].volume_id
        second.close()

    @pytest.mark.parametrize(
        ("cluster_id", "datanode_id", "code"),
        [
            ("CID-other", DATANODE, Code.WRONG_CLUSTER),
            (CLUSTER, "dn-other", Code.WRONG_DATANODE),
            ("../escape", DATANODE, Code.INVALID_CONFIG),
            (CLUSTER, "two\nlines", Code.INVALID_CONFIG),
        ],
    )
    def test_a_volume_of_somebody_else_is_refused(
        self, tmp_path: Path, cluster_id: str, datanode_id: str, code: Code
    ) -> None:
        """The volume is refused to another cluster and to another datanode, and no id becomes a
        path.
        """
        open_as(tmp_path / "v0").close()

        with pytest.raises(RefusedError) as refusal:
            open_as(tmp_path / "v0", cluster_id, datanode_id)

        assert code is refusal.value.code

    def test_data_without_version_is_not_formatted(self, tmp_path: Path) -> None:
        """
        A lost VERSION must not turn a full disk into an empty one.
        """
        open_as(tmp_path / "v0").close()
        (tmp_path / "v0/hdds/VERSION").unlink()

        with pytest.raises(
            RefusedError, match="it has no VERSION and contains 'CID-test'"
        ) as refusal:
            open_as(tmp_path / "v0")

        assert Code.INCONSISTENT_VOLUME is refusal.value.code

    @pytest.mark.parametrize("text", ["", "clusterID=CID-test\n", "layOutVersion=9\n"])
    def test_a_version_that_cannot_be_read_is_refused(self, tmp_path: Path, text: str) -> None:
        """
        A file that is cut short, or of a layout that we do not know.
        """
        open_as(tmp_path / "v0").close()
        path = tmp_path / "v0/hdds/VERSION"
        good = path.read_text()
        path.write_text(good.replace("layOutVersion=1", text.strip()) if "=9" in text else text)

        with pytest.raises(RefusedError) as refusal:
            open_as(tmp_path / "v0")

        assert Code.INCONSISTENT_VOLUME is refusal.value.code

    def test_a_volume_without_its_parent_is_not_made(self, tmp_path: Path) -> None:
        """
        A mistyped path does not become a directory tree somewhere.
        """
        with pytest.raises(VolumeFailed):
            open_as(tmp_path / "mistyped" / "v0")

        assert [] == list(tmp_path.iterdir())

    def test_a_volume_twice_or_none_is_refused(self, tmp_path: Path) -> None:
        """A volume that is given twice is refused, even under two names."""
        (tmp_path / "other").symlink_to(tmp_path / "v0")
        for paths in ([], [tmp_path / "v0", tmp_path / "other"]):
            with pytest.raises(RefusedError) as refusal:
                ReplicaStore.open(paths, cluster_id=CLUSTER, datanode_id=DATANODE)
            assert Code.INVALID_CONFIG is refusal.value.code


class TestOneProcess:
    """Two agents on one volume."""

    def test_the_second_is_refused_and_told_who_has_it(self, tmp_path: Path) -> None:
        """
        The message names the first one's pid and command.
        """
        store = open_as(tmp_path / "v0")
        code = (
            "import sys\nfrom pathlib import Path\n"
            "from tests.integration.store.volumes.test_volume import open_as\n"
            "from suture.errors import RefusedError\n"
            "try: open_as(Path(sys.argv[1]))\n"
            "except RefusedError as refusal: print(refusal.code, refusal)"
        )

        second = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "v0")],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).resolve().parents[4],
        )

        assert second.stdout.startswith("VOLUME_IN_USE volume")
        assert f"held by pid {os.getpid()} (" in second.stdout
        command = Path("/proc/self/cmdline").read_bytes().split(b"\0")[0].decode()
        assert f"({command} " in second.stdout
        store.close()

    def test_fsck_is_refused_too(self, tmp_path: Path) -> None:
        """
        A check of what is being changed proves nothing.
        """
        store = open_as(tmp_path / "v0")

        with pytest.raises(RefusedError) as refusal:
            fsck(tmp_path / "v0")

        assert Code.VOLUME_IN_USE is refusal.value.code
        store.close()

    def test_the_lock_ends_with_its_process(self, tmp_path: Path) -> None:
        """The lock file of a killed agent does not stop the next one."""
        open_as(tmp_path / "v0").close()
        (tmp_path / "v0/hdds/in_use.lock").write_text("1\nsomebody else\n")

        open_as(tmp_path / "v0").close()

    def test_a_refused_start_lets_the_other_volumes_go(self, tmp_path: Path) -> None:
        """Volumes opened before the refusal are closed again."""
        held = open_as(tmp_path / "v1")
        with pytest.raises(RefusedError):
            ReplicaStore.open(
                [tmp_path / "v0", tmp_path / "v1"], cluster_id=CLUSTER, datanode_id=DATANODE
            )

        open_as(tmp_path / "v0").close()
        held.close()


class TestSeveral:
    """A datanode with several volumes."""

    def test_replicas_are_spread_and_found_wherever_they_are(self, tmp_path: Path) -> None:
        """
        Volumes of about equal room fill evenly; listing merges them by container id, in pages.
        """
        store = open_store(tmp_path, volume_count=2)
        for container_id in (1, 2, 3, 4):
            closed_replica(store, container_id, block_ids=(1,))
        store.close()

        store = open_store(tmp_path, volume_count=2)

        assert [1, 2, 3, 4] == [facts.container_id for facts in store.replicas()]
        assert [2, 3] == [facts.container_id for facts in store.replicas(start=2, count=2)]
        assert 2 == len({facts.volume_id for facts in store.replicas()})
        assert [2, 2] == [volume.container_count for volume in store.volumes()]
        assert [40_000, 40_000] == [volume.used_bytes for volume in store.volumes()]
        store.close()

    def test_a_volume_that_does_not_work_does_not_stop_the_others(self, tmp_path: Path) -> None:
        """The volume is shown as failed, with the reason."""
        store = open_store(tmp_path, volume_count=2)
        closed_replica(store)
        bad = next(
            volume
            for volume in store.volume_set.working
            if volume is not store.volume_set.places[ContainerId(1)]
        )
        path = bad.layout.database / "data.mdb"
        store.close()
        path.write_bytes(b"this is no LMDB file" * 1000)

        store = open_store(tmp_path, volume_count=2)

        assert [False, True] == [volume.failed for volume in store.volumes()]
        assert "data.mdb" in store.volumes()[1].error or "db" in store.volumes()[1].error
        assert [1] == [facts.container_id for facts in store.replicas()]
        store.close()

    def test_if_none_works_nothing_is_opened(self, tmp_path: Path) -> None:
        """
        The error is the volume's own.
        """
        open_store(tmp_path).close()
        database = VolumeLayout(tmp_path / "v0", CLUSTER).database / "data.mdb"
        database.write_bytes(b"this is no LMDB file" * 1000)

        with pytest.raises(VolumeFailed) as failure:
            open_store(tmp_path)

        assert Code.UNABLE_TO_READ_METADATA_DB is failure.value.code


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("7.block", 7),
        (f"{2**63 - 1}.block", 2**63 - 1),
        (f"{2**63}.block", None),
        ("0.block", None),
        ("07.block", None),
        ("-7.block", None),
        ("7.block.tmp", None),
        ("7", None),
        ("\u0667.block", None),
    ],
)
def test_only_block_files_are_block_files(name: str, expected: int | None) -> None:
    """A block has one name: no sign, no leading zero, no other digits, and no impossible id."""
    assert expected == block_id_of(name)


@pytest.mark.parametrize(("name", "expected"), [("512", 512), ("0512", None), ("x", None)])
def test_only_container_directories_are_container_directories(
    name: str, expected: int | None
) -> None:
    """
    The same holds for directories.
    """
    assert expected == container_id_of(name)


@pytest.mark.parametrize(("container_id", "group"), [(1, 0), (511, 0), (512, 1), (131_072, 0)])
def test_directories_are_grouped_as_in_ozone(container_id: int, group: int) -> None:
    """
    512 consecutive ids share a directory, of which there are 256.
    """
    paths = VolumeLayout(Path("/data"), CLUSTER).replica(ContainerId(container_id))

    expected = Path(f"/data/hdds/{CLUSTER}/current/containerDir{group}/{container_id}")
    assert expected == paths.root
    assert expected / "metadata" / f"{container_id}.tree" == paths.tree


def test_names_left_by_a_killed_process_are_synced_at_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names that it created and did not sync would count as present, and would never be synced
    again.
    """
    synced: list[Path] = []
    monkeypatch.setattr(volume, "sync_all", synced.append)
    open_as(tmp_path / "v0").close()
    lock = tmp_path / "v0/hdds/in_use.lock"
    assert [] == synced

    lock.write_text("1\na process that was killed\n")
    open_as(tmp_path / "v0").close()

    assert [tmp_path / "v0/hdds"] == synced


def test_the_paths_of_many_replicas_are_those_of_the_layout_and_few_are_kept(
    tmp_path: Path,
) -> None:
    """
    A volume with a hundred thousand replicas must not remember the paths of all of them.
    """
    with closing(open_store(tmp_path / "v0")) as store:
        [served] = store.volume_set.working
        for number in range(1, 3 * volume.PATHS_KEPT):
            paths = served.paths(ContainerId(number))
            assert served.layout.replica(ContainerId(number)) == paths
            assert served.paths(ContainerId(number)) is paths
        assert volume.PATHS_KEPT >= len(served.paths_kept)


def test_sums_over_volumes_count_the_space_of_a_file_system_once(tmp_path: Path) -> None:
    """Two volumes on one file system report half of its space each. A third volume in the checkout
    reports the complete space of its own file system, if it has one.
    """
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as other:
        shares = 2 if Path(other).stat().st_dev != tmp_path.stat().st_dev else 3
        sizes = [disk.f_blocks * disk.f_frsize for disk in map(os.statvfs, (tmp_path, other))]
        paths = [tmp_path / "v0", tmp_path / "v1", Path(other) / "v2"]
        store = ReplicaStore.open(
            paths, cluster_id=CLUSTER, datanode_id=DATANODE, options=options_of_test()
        )
        with closing(store):
            first, second, third = store.volumes()

    assert {sizes[0] // shares} == {first.capacity_bytes, second.capacity_bytes}
    assert sizes[1] // (shares if shares == 3 else 1) == third.capacity_bytes
    assert 0 < first.available_bytes <= sizes[0] // shares
