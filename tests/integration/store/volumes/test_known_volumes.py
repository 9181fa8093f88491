"""Volumes that are missed, mixed up or damaged: one is left out by name, the others are served."""

import os
import shutil
from pathlib import Path

import pytest

from agent.store.files.layout import VolumeLayout, decode_version
from agent.store.files.mounts import unmounted
from agent.store.index.check import indexcheck
from agent.store.index.facts import VolumeFacts
from agent.store.recovery.opening import check_single
from agent.store.replica_store import ReplicaStore
from agent.store.volumes.identity import remembered
from agent.store.volumes.volume_registry import check_first_start, declare_new
from suture.errors import RefusedError, SutureError, VolumeFailed
from tests.support.storage.stores import (
    CLUSTER,
    DATANODE,
    check_clean,
    closed_replica,
    flip_bit,
    open_store,
    options_of_test,
)

NO_FSTAB = Path("/nowhere/fstab")


def filled(path: Path, volume_count: int = 2) -> list[VolumeFacts]:
    """Make a datanode with a replica on each volume, stop it, and return its volumes."""
    store = open_store(path, volume_count=volume_count)
    for container_id in range(1, volume_count + 1):
        closed_replica(store, container_id, block_ids=(1,))
    volumes = list(store.volumes())
    assert [1] * volume_count == [volume.container_count for volume in volumes]
    store.close()
    return volumes


def left_out(store: ReplicaStore) -> VolumeFacts:
    """Return the only volume that is not served; each other one must have its replica."""
    [failed] = [volume for volume in store.volumes() if volume.failed]
    assert all(volume.container_count for volume in store.volumes() if not volume.failed)
    store.close()
    return failed


def tree_of(path: Path) -> list[str]:
    """Return every name below a directory."""
    return sorted(str(name) for name in path.rglob("*"))


class TestEmpty:
    """A volume that is empty, and was not."""

    @pytest.mark.parametrize("is_there", [True, False])
    def test_a_disk_that_is_not_mounted_is_no_new_volume(
        self, tmp_path: Path, is_there: bool
    ) -> None:
        """
        Its mount point stays as it is, and it is served again when the disk is back.
        """
        bad = filled(tmp_path)[1]
        bad.path.rename(tmp_path / "unmounted")
        if is_there:
            bad.path.mkdir()
        before = tree_of(bad.path)

        failed = left_out(open_store(tmp_path, volume_count=2))

        assert (bad.volume_id, bad.path) == (failed.volume_id, failed.path)
        assert f"volume {bad.volume_id} was there, and it is empty now" in failed.error
        assert f"suture volume add --next-start {bad.path}" in failed.error
        assert before == tree_of(bad.path)
        shutil.rmtree(bad.path, ignore_errors=True)
        (tmp_path / "unmounted").rename(bad.path)
        store = open_store(tmp_path, volume_count=2)
        assert [1, 2] == [facts.container_id for facts in store.replicas()]
        store.close()

    def test_missing_volume_is_reported_at_every_start(self, tmp_path: Path) -> None:
        """A start without the volume does not forget it."""
        bad = filled(tmp_path)[0]
        bad.path.rename(tmp_path / "unmounted")
        bad.path.mkdir()

        for _ in range(3):
            assert bad.volume_id == left_out(open_store(tmp_path, volume_count=2)).volume_id

    def test_a_new_disk_is_taken_on_the_operators_word(self, tmp_path: Path) -> None:
        """The disk is formatted with a new id, and the old volume is forgotten."""
        bad = filled(tmp_path)[1]
        shutil.rmtree(bad.path)
        bad.path.mkdir()

        declare_new(bad.path, fstab=NO_FSTAB)

        for _ in range(2):
            store = open_store(tmp_path, volume_count=2)
            assert [False, False] == [volume.failed for volume in store.volumes()]
            assert bad.volume_id not in {volume.volume_id for volume in store.volumes()}
            store.close()
        assert not VolumeLayout(bad.path, CLUSTER).new.exists(), "the word is for one disk"

    def test_a_disk_that_moved_is_not_missed(self, tmp_path: Path) -> None:
        """
        A new disk in its old place is formatted: the old one is here, under another path.
        """
        bad = filled(tmp_path)[1]
        bad.path.rename(tmp_path / "v2")
        bad.path.mkdir()

        store = open_store(tmp_path, volume_count=3)

        assert [False] * 3 == [volume.failed for volume in store.volumes()]
        assert [1, 2] == [facts.container_id for facts in store.replicas()]
        store.close()

    def test_disks_that_changed_places_are_served(self, tmp_path: Path) -> None:
        """
        A volume is known by its id; only an empty one is by its path.
        """
        one, two = filled(tmp_path)
        one.path.rename(tmp_path / "aside")
        two.path.rename(one.path)
        (tmp_path / "aside").rename(two.path)

        store = open_store(tmp_path, volume_count=2)

        assert [1, 2] == [facts.container_id for facts in store.replicas()]
        store.close()
        one.path.rename(tmp_path / "unmounted")
        one.path.mkdir()
        assert two.volume_id == left_out(open_store(tmp_path, volume_count=2)).volume_id

    @pytest.mark.parametrize("left", [["NEW.tmp"], ["NEW"], ["NEW", "VERSION.tmp"]], ids=" ".join)
    def test_a_format_that_was_cut_short_is_done_again(
        self, tmp_path: Path, left: list[str]
    ) -> None:
        """
        An agent that is killed while it formats a new disk leaves what the next one knows as its.
        """
        (tmp_path / "v0" / "hdds").mkdir(parents=True)
        for name in ["in_use.lock", *left]:
            (tmp_path / "v0" / "hdds" / name).write_bytes(b"")

        store = open_store(tmp_path)

        assert [False] == [volume.failed for volume in store.volumes()]
        assert not VolumeLayout(tmp_path / "v0", CLUSTER).new.exists()
        store.close()
        check_clean(open_store(tmp_path), tmp_path)

    def test_only_an_empty_directory_is_declared_new(self, tmp_path: Path) -> None:
        """
        A volume, or anything with data of ours, is no new disk.
        """
        [volume] = filled(tmp_path, volume_count=1)
        with pytest.raises(RefusedError, match="so it is a volume"):
            declare_new(volume.path, fstab=NO_FSTAB)
        VolumeLayout(volume.path, CLUSTER).version.unlink()
        with pytest.raises(RefusedError, match="it has no VERSION and contains"):
            declare_new(volume.path, fstab=NO_FSTAB)
        with pytest.raises(RefusedError, match="is not a directory"):
            declare_new(tmp_path / "mistyped", fstab=NO_FSTAB)

    @pytest.mark.parametrize("name", ["passwd", "ssh/"])
    def test_directory_with_content_is_no_new_disk(self, tmp_path: Path, name: str) -> None:
        """Nothing is created there, whether a start finds it or an operator declares it."""
        filled(tmp_path, volume_count=1)
        strange = tmp_path / "v1"
        strange.mkdir()
        (strange / name).mkdir() if name.endswith("/") else (strange / name).touch()
        before = tree_of(strange)
        with pytest.raises(
            RefusedError, match=f"v1: it is not a volume and contains '{name.strip('/')}'"
        ):
            declare_new(strange, fstab=NO_FSTAB)
        failed = left_out(open_store(tmp_path, volume_count=2))

        assert "v1: it is not a volume and contains" in failed.error
        assert before == tree_of(strange)

    def test_a_new_file_system_is_a_new_disk(self, tmp_path: Path) -> None:
        """The new file system has lost+found and hidden names."""
        (tmp_path / "v0" / "lost+found").mkdir(parents=True)
        (tmp_path / "v0" / ".snapshot").touch()
        declare_new(tmp_path / "v0", fstab=NO_FSTAB)

        check_clean(open_store(tmp_path), tmp_path)


class TestMounts:
    """What /etc/fstab names."""

    def test_a_mount_point_without_its_disk_is_no_volume(self, tmp_path: Path) -> None:
        """This holds also at the first start, and nothing is written to it."""
        disk = tmp_path / "a disk"
        disk.mkdir()
        fstab = tmp_path / "fstab"
        named = str(disk).replace(" ", "\\040")
        fstab.write_text(f"# /dev/sda1 /\nUUID=1 {named} ext4 defaults,nofail 0 2\n")

        for path in (disk, disk / "volume"):
            with pytest.raises(RefusedError, match="is not mounted") as refused:
                ReplicaStore.open(
                    [path],
                    cluster_id=CLUSTER,
                    datanode_id=DATANODE,
                    options=options_of_test(fstab=fstab),
                )

            assert f"mount {disk}, then restart the agent" == refused.value.hint
        with pytest.raises(RefusedError, match="is not mounted"):
            declare_new(disk, fstab=fstab)
        assert [] == tree_of(disk)

    def test_mounted_path_is_a_volume(self, tmp_path: Path) -> None:
        """A path that fstab does not name counts as mounted, and so does any path without fstab."""
        fstab, mounts = tmp_path / "fstab", tmp_path / "mountinfo"
        fstab.write_text("/dev/sda1 / ext4\n/dev/sdb1 /data/a\\040b xfs\n/dev/sdc none swap\n")
        mounts.write_text(
            "1 2 8:1 / / rw\n3 1 8:2 / /data/a\\040b rw shared:1 - xfs /dev/sdb1 rw\n"
        )

        for path in ("/data/a b", "/data/a b/volume", "/data/c"):
            assert unmounted(Path(path), fstab=fstab, mounts=mounts) is None
        mounts.write_text("1 2 8:1 / / rw\n")
        assert Path("/data/a b") == unmounted(Path("/data/a b/v"), fstab=fstab, mounts=mounts)
        assert unmounted(Path("/data/a b"), fstab=NO_FSTAB, mounts=mounts) is None
        assert unmounted(Path("/data/a b"), fstab=fstab, mounts=tmp_path / "none") is None


class TestVersion:
    """One VERSION that cannot be read or believed."""

    def test_flipped_bit_in_version_leaves_the_volume_out(self, tmp_path: Path) -> None:
        """A flipped bit in a name or a value leaves the volume out or changes nothing."""
        one, two = filled(tmp_path)
        file = VolumeLayout(two.path, CLUSTER).version
        good = file.read_bytes()
        for offset in range(0, len(good), 7):
            flip_bit(file, offset)

            assert remembered([one.path, two.path]) is not None
            store = open_store(tmp_path, volume_count=2)

            served = {volume.volume_id for volume in store.volumes() if not volume.failed}
            assert served in ({one.volume_id}, {one.volume_id, two.volume_id})
            [last] = [volume for volume in store.volumes() if volume.path == two.path]
            assert last.failed or "checksum" not in file.read_text(errors="replace")
            assert two.volume_id == last.volume_id, "known by the other volume"
            store.close()
            file.write_bytes(good)

    def test_version_without_a_checksum_is_refused(self, tmp_path: Path) -> None:
        """A byte of the word `checksum` may be the one that rotted."""
        [volume] = filled(tmp_path, volume_count=1)
        file = VolumeLayout(volume.path, CLUSTER).version
        file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-1]))

        with pytest.raises(RefusedError, match="it says nothing"):
            open_store(tmp_path)

    @pytest.mark.parametrize("kind", ["directory", "link", "pipe", "gone", "empty"])
    def test_something_else_in_its_place(self, tmp_path: Path, kind: str) -> None:
        """The foreign directory is neither read nor formatted. The other volume has the
        identity.
        """
        one, two = filled(tmp_path)
        file = VolumeLayout(one.path, CLUSTER).version
        file.rename(tmp_path / "VERSION")
        match kind:
            case "directory":
                file.mkdir()
            case "link":
                file.symlink_to(tmp_path / "VERSION")
            case "pipe":
                os.mkfifo(file)
            case "empty":
                file.touch()
        before = tree_of(one.path)

        known = remembered([one.path, two.path])
        failed = left_out(open_store(tmp_path, volume_count=2))

        assert known is not None
        assert (CLUSTER, DATANODE) == (known.cluster_id, known.datanode_id)
        assert (one.volume_id, one.path) == (failed.volume_id, failed.path)
        assert before == tree_of(one.path)

    def test_if_none_can_be_read_this_is_no_first_start(self, tmp_path: Path) -> None:
        """
        A new id beside old replicas would report them as another datanode's.
        """
        volumes = filled(tmp_path)
        for volume in volumes:
            flip_bit(VolumeLayout(volume.path, CLUSTER).version, 3)

        with pytest.raises(RefusedError, match="VERSION: its checksum is"):
            remembered([volume.path for volume in volumes])


class TestOwners:
    """Volumes of somebody else, and one volume twice."""

    @pytest.mark.parametrize(
        ("cluster_id", "datanode_id"), [("CID-other", DATANODE), (CLUSTER, "dn-other")]
    )
    def test_a_disk_of_another_host_is_left_out(
        self, tmp_path: Path, cluster_id: str, datanode_id: str
    ) -> None:
        """
        Most volumes say who we are; nothing on the other one is changed.
        """
        filled(tmp_path, volume_count=2)
        ReplicaStore.open(
            [tmp_path / "v2"],
            cluster_id=cluster_id,
            datanode_id=datanode_id,
            options=options_of_test(),
        ).close()
        before = tree_of(tmp_path / "v2")

        known = remembered([tmp_path / f"v{number}" for number in (2, 0, 1)])
        failed = left_out(open_store(tmp_path, volume_count=3))

        assert known is not None
        assert (CLUSTER, DATANODE) == (known.cluster_id, known.datanode_id)
        assert tmp_path / "v2" == failed.path
        assert "it belongs to" in failed.error
        assert before == tree_of(tmp_path / "v2")

    def test_two_volumes_of_different_owners_are_refused(self, tmp_path: Path) -> None:
        """With one against one, the foreign disk cannot be determined."""
        filled(tmp_path, volume_count=1)
        ReplicaStore.open(
            [tmp_path / "v1"],
            cluster_id=CLUSTER,
            datanode_id="dn-other",
            options=options_of_test(),
        ).close()

        with pytest.raises(RefusedError, match="equally many volumes name each") as refused:
            remembered([tmp_path / "v0", tmp_path / "v1"])

        assert "remove it from storage.volumes" in refused.value.hint

    def test_the_copy_of_a_disk_is_left_out(self, tmp_path: Path) -> None:
        """
        Two volumes with one id: the second is not written to.
        """
        volumes = filled(tmp_path)
        shutil.copytree(volumes[1].path, tmp_path / "v2")
        before = tree_of(tmp_path / "v2")

        failed = left_out(open_store(tmp_path, volume_count=3))

        assert (tmp_path / "v2", True) == (failed.path, "one is a copy" in failed.error)
        assert before == tree_of(tmp_path / "v2")

    def test_directory_under_two_paths_is_served_once(self, tmp_path: Path) -> None:
        """A bind mount shows in no path, so hdds/ itself is compared."""
        filled(tmp_path)
        store = open_store(tmp_path, volume_count=2)

        with pytest.raises(RefusedError, match="is the same directory as"):
            check_single(
                VolumeLayout(tmp_path / "v0" / ".." / "v1", CLUSTER), "", store.volume_set.working
            )

        store.close()


class TestFirstStart:
    """All volumes empty at once."""

    def test_the_control_plane_remembers(self, tmp_path: Path) -> None:
        """Its record stops a first start until the operator declares each volume as new."""
        volumes = [tmp_path / "v0", tmp_path / "v1"]
        for path in volumes:
            path.mkdir()
        check_first_start(volumes, "")
        with pytest.raises(RefusedError, match="datanode dn-1 has 7 replicas") as refused:
            check_first_start(volumes, "datanode dn-1 has 7 replicas")
        assert refused.value.hint.endswith(
            f"suture volume add --next-start {volumes[0]} {volumes[1]}"
        )

        declare_new(volumes[0], fstab=NO_FSTAB)
        with pytest.raises(RefusedError) as refused:
            check_first_start(volumes, "datanode dn-1 has 7 replicas")
        assert refused.value.hint.endswith(f"suture volume add --next-start {volumes[1]}")

        declare_new(volumes[1], fstab=NO_FSTAB)
        check_first_start(volumes, "datanode dn-1 has 7 replicas")
        store = open_store(tmp_path, volume_count=2)
        assert [False, False] == [volume.failed for volume in store.volumes()]
        store.close()


class TestBroken:
    """What a start runs into below a volume."""

    @pytest.mark.parametrize("kind", ["file", "pipe", "loop"])
    @pytest.mark.parametrize("place", ["", "hdds", "cluster", "current", "db"])
    def test_the_other_volume_is_served(self, tmp_path: Path, place: str, kind: str) -> None:
        """The other volume is served, whatever takes the place of a directory of the first."""
        one, two = filled(tmp_path)
        layout = VolumeLayout(one.path, CLUSTER)
        path = {
            "": layout.volume,
            "hdds": layout.hdds,
            "cluster": layout.cluster,
            "current": layout.current,
            "db": layout.database,
        }[place]
        path.rename(tmp_path / "aside")
        match kind:
            case "file":
                path.write_text("this is no directory")
            case "pipe":
                os.mkfifo(path)
            case "loop":
                path.symlink_to(path)

        assert remembered([one.path, two.path]) is not None
        failed = left_out(open_store(tmp_path, volume_count=2))

        assert one.path == failed.path
        assert str(one.path) in failed.error

    def test_a_row_that_nobody_can_read_stops_one_volume(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """
        A large index is not read whole after a clean stop: then recovery is who meets it.
        """
        filled(tmp_path)
        store = open_store(tmp_path, volume_count=2)
        bad = store.volume_set.working[0]
        bad.index.write(lambda rows: rows._txn.put(b"key", b"", db=rows._dbs.journal))
        store.close()
        monkeypatch.setattr(indexcheck, "SMALL_BYTES", 0)

        failed = left_out(open_store(tmp_path, volume_count=2))

        assert bad.volume_id == failed.volume_id
        assert "run suture fsck" in failed.error

    def test_if_it_is_the_only_one_its_fault_is_raised(self, tmp_path: Path) -> None:
        """
        There is nothing to serve then.
        """
        [volume] = filled(tmp_path, volume_count=1)
        current = VolumeLayout(volume.path, CLUSTER).current
        current.rename(tmp_path / "aside")
        current.write_text("no directory")

        with pytest.raises(SutureError) as failure:
            open_store(tmp_path)

        assert isinstance(failure.value, VolumeFailed)
        assert str(current) in str(failure.value)

    @pytest.mark.parametrize("owner", [DATANODE, "another"])
    def test_a_host_opens_without_a_volume_if_the_failed_one_is_its_own(
        self, tmp_path: Path, owner: str
    ) -> None:
        """The control plane must be informed of the failed volume. A volume of another host is
        not part of this one.
        """
        [volume] = filled(tmp_path, volume_count=1)
        current = VolumeLayout(volume.path, CLUSTER).current
        current.rename(tmp_path / "aside")
        current.write_text("no directory")

        def opened() -> ReplicaStore:
            return ReplicaStore.open(
                [volume.path], cluster_id=CLUSTER, datanode_id=owner, keeps_failed=True
            )

        if owner == "another":
            with pytest.raises(RefusedError, match=DATANODE):
                opened()
            return
        store = opened()

        [failed] = store.volumes()
        store.close()
        assert (True, volume.volume_id) == (failed.failed, failed.volume_id)
        assert str(current) in failed.error


def test_a_version_ends_with_a_checksum(tmp_path: Path) -> None:
    """
    Ozone's readers pass over a key that they do not know.
    """
    [volume] = filled(tmp_path, volume_count=1)
    file = VolumeLayout(volume.path, CLUSTER).version

    assert file.read_text().splitlines()[-1].startswith("checksum=")
    assert volume.volume_id == decode_version(file.read_bytes(), file).volume_id
