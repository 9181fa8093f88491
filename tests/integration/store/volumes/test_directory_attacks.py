"""Somebody else may write into a data directory: links lead nowhere, open doors are refused."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.config.loading import load
from agent.store.files.layout import VolumeLayout, check_name
from agent.store.operations.replica_import import ROWS_SUFFIX, ImportSpec
from agent.store.options import StoreOptions
from agent.store.replica.quick_check import quick_check
from agent.store.volumes.probe import probe
from agent.store.volumes.volume import open_volume
from merkle.replica import Bcsid, BlockId, ContainerId, ReplicaState
from scanner.finding import DamageFault
from suture.errors import Code, RefusedError, SutureError, UnavailableError
from suture.runtime.durable import TEMPORARY_SUFFIX
from tests.support.storage.datanodes import Datanode
from tests.support.storage.stored_replica import (
    CHUNK_BYTES,
    CLUSTER,
    CONTAINER,
    DATANODE,
    StoredReplica,
)

SECRET = b"root:secret:" * 20_000


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A file that is not ours to read or to write."""
    path = tmp_path / "outside"
    path.write_bytes(SECRET)
    return path


def opened(path: Path) -> StoredReplica:
    """Open the store again; the caller closes it."""
    return StoredReplica(path)


def stored(path: Path) -> tuple[StoredReplica, VolumeLayout]:
    """Return an open store with one closed replica, and its directories."""
    path.mkdir()
    replica = StoredReplica(path)
    replica.create()
    return replica, VolumeLayout(path, CLUSTER)


class TestLinks:
    @pytest.mark.parametrize("kind", ["file", "directory"])
    def test_a_link_in_the_place_of_data_is_not_followed(
        self, tmp_path: Path, outside: Path, kind: str
    ) -> None:
        """A block file, or the directory of all, is a link. Its target is not served, and the
        scan finds the block missing.
        """
        replica, layout = stored(tmp_path / "volume")
        chunks = layout.replica(CONTAINER).chunks
        if kind == "file":
            (chunks / "1.block").unlink()
            (chunks / "1.block").symlink_to(outside)
        else:
            chunks.rename(tmp_path / "moved")
            chunks.symlink_to(tmp_path / "moved")
        try:
            with pytest.raises(UnavailableError):
                replica.store.view(CONTAINER).read(BlockId(1), 0, CHUNK_BYTES)
            replica.scan()
            found = {finding.fault for finding in replica.store.findings(CONTAINER)}
        finally:
            replica.close()

        assert found & {DamageFault.BLOCK_FILE_MISSING, DamageFault.CHUNKS_DIRECTORY_MISSING}
        assert SECRET == outside.read_bytes()

    def test_a_repair_takes_the_link_away_and_leaves_alone_what_it_led_to(
        self, tmp_path: Path, outside: Path
    ) -> None:
        """
        The block comes back from a peer as a file of its own.
        """
        nodes = [Datanode(f"dn{n}", tmp_path / f"dn{n}") for n in (1, 2)]
        try:
            for node in nodes:
                node.replica.create()
                node.serve()
            victim = nodes[0].replica
            path = victim.store.paths(CONTAINER).block_file(BlockId(1))
            path.unlink()
            path.symlink_to(outside)
            nodes[0].scan()

            nodes[0].reconcile(nodes[1:])

            assert stat.S_ISREG(path.lstat().st_mode)
            assert (
                victim.store.view(CONTAINER).tree().root
                == nodes[1].replica.store.view(CONTAINER).tree().root
            )
            assert SECRET == outside.read_bytes()
        finally:
            for node in nodes:
                node.close()

    @pytest.mark.parametrize(
        "place",
        [
            lambda layout: layout.hdds,
            lambda layout: layout.cluster,
            lambda layout: layout.current,
            lambda layout: layout.database,
            lambda layout: layout.replica(CONTAINER).root.parent,
            lambda layout: layout.replica(CONTAINER).root,
        ],
        ids=["hdds", "cluster", "current", "db", "group", "replica"],
    )
    def test_a_link_in_the_place_of_a_directory_starts_nothing(
        self, tmp_path: Path, place: Callable[[VolumeLayout], Path]
    ) -> None:
        """The volume is refused by name, whatever the link above the data points to."""
        replica, layout = stored(tmp_path / "volume")
        replica.close()
        path = place(layout)
        path.mkdir(exist_ok=True)
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")

        with pytest.raises(SutureError, match=f"{path}: it is a symbolic link") as refused:
            opened(tmp_path / "volume")

        assert Code.INCONSISTENT_VOLUME == refused.value.code

    @pytest.mark.parametrize("kind", ["link", "pipe"])
    def test_a_small_file_that_is_none_is_missing_and_made_anew(
        self, tmp_path: Path, kind: str
    ) -> None:
        """Descriptor and tree are links to good files, or pipes that would block a reader.
        Nothing is read through them. A scan reports them and writes files in their place.
        """
        replica, layout = stored(tmp_path / "volume")
        paths = layout.replica(CONTAINER)
        for path in (paths.descriptor, paths.tree):
            path.rename(tmp_path / path.name)
            if kind == "link":
                path.symlink_to(tmp_path / path.name)
            else:
                os.mkfifo(path)
        before = [(tmp_path / path.name).read_bytes() for path in (paths.descriptor, paths.tree)]
        try:
            seen = quick_check(paths, CONTAINER, has_tree=True)
            replica.scan()
        finally:
            replica.close()

        said = f"a {'symbolic link' if kind == 'link' else 'pipe'} is in its place"
        assert [f"{path.name}: {said}" for path in (paths.descriptor, paths.tree)] == seen
        assert stat.S_ISREG(paths.descriptor.lstat().st_mode)
        assert stat.S_ISREG(paths.tree.lstat().st_mode)
        assert before == [
            (tmp_path / path.name).read_bytes() for path in (paths.descriptor, paths.tree)
        ]

    def test_links_under_temporary_names_are_replaced_not_followed(
        self, tmp_path: Path, outside: Path
    ) -> None:
        """The temporary names are predictable. A link under one of them is removed."""
        replica, layout = stored(tmp_path / "volume")
        paths = layout.replica(CONTAINER)
        layout.probes.mkdir(exist_ok=True)
        doors = [
            paths.descriptor.with_name(paths.descriptor.name + TEMPORARY_SUFFIX),
            paths.tree.with_name(paths.tree.name + TEMPORARY_SUFFIX),
            layout.importing / f"2{ROWS_SUFFIX}",
            layout.probes / "probe",
        ]
        for door in doors:
            door.symlink_to(outside)
        (tmp_path / "elsewhere").mkdir()
        outside.rename(tmp_path / "elsewhere" / outside.name)
        outside.symlink_to(tmp_path / "elsewhere" / outside.name)
        (layout.importing / "2").symlink_to(tmp_path / "elsewhere")
        try:
            paths.tree.unlink()
            paths.descriptor.unlink()
            replica.scan()
            probe(layout)
            arrival = replica.store.begin_arrival(announced(2))
            arrival.keep_rows([BlockId(1)], [b"row"])
            arrival.discard()
        finally:
            replica.close()

        assert SECRET == outside.read_bytes()
        assert paths.descriptor.is_file()
        assert not [door for door in doors if door.is_symlink()]
        assert [outside.name] == [path.name for path in (tmp_path / "elsewhere").iterdir()]

    def test_a_volume_itself_may_be_a_link(self, tmp_path: Path) -> None:
        """The mount point of a disk is the operator's choice."""
        stored(tmp_path / "volume")[0].close()
        (tmp_path / "link").symlink_to(tmp_path / "volume")

        again = opened(tmp_path / "link")

        try:
            assert 3 == again.store.view(CONTAINER).tree().block_count
        finally:
            again.close()


def announced(container_id: int) -> ImportSpec:
    """Return the announcement of a small replica that comes from a peer."""
    return ImportSpec(
        container_id=ContainerId(container_id),
        state=ReplicaState.CLOSED,
        former_state=None,
        replica_index=0,
        bcsid=Bcsid(1),
        origin_datanode_id="dn-x",
        created_at_ms=0,
        data_bytes=1_000,
    )


class TestPermissions:
    @pytest.mark.parametrize("name", [".", "hdds", f"hdds/{CLUSTER}", f"hdds/{CLUSTER}/current"])
    def test_a_volume_that_every_user_may_write_is_refused(self, tmp_path: Path, name: str) -> None:
        """The error has the directory, its mode and the command to type."""
        stored(tmp_path / "volume")[0].close()
        path = (tmp_path / "volume" / name).resolve()
        path.chmod(0o777)

        with pytest.raises(RefusedError, match="its mode 0777") as refused:
            opened(tmp_path / "volume")

        assert (Code.INCONSISTENT_VOLUME, f"chmod o-w {path}") == (
            refused.value.code,
            refused.value.hint,
        )

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
    def test_a_volume_of_another_user_is_refused(self, tmp_path: Path) -> None:
        """
        Its owner could exchange it under us.
        """
        stored(tmp_path / "volume")[0].close()
        path = tmp_path / "volume" / "hdds" / CLUSTER / "current"
        os.chown(path, 12345, 12345)

        with pytest.raises(RefusedError, match="its owner is user 12345"):
            opened(tmp_path / "volume")

    def test_files_of_a_volume_are_not_accessible_to_others(self, tmp_path: Path) -> None:
        """Other users can neither read nor write any file or directory of a volume."""
        replica, layout = stored(tmp_path / "volume")
        replica.close()

        modes = {path: path.lstat().st_mode for path in layout.hdds.rglob("*")}

        assert len(modes) > 10
        open_to_all = [str(path) for path, mode in modes.items() if mode & stat.S_IRWXO]
        assert [] == open_to_all

    def test_a_config_that_every_user_may_write_is_refused(self, tmp_path: Path) -> None:
        """Any user could otherwise say where data goes."""
        path = tmp_path / "agent.toml"
        path.write_text('[storage]\nvolumes = ["/a"]\n')
        path.chmod(0o666)

        with pytest.raises(RefusedError, match=r"agent\.toml: its mode 0666"):
            load(path)


class TestNames:
    @pytest.mark.parametrize("name", ["../x", "a/b", "..", "", "a\n", "-x", "x" * 129])
    def test_a_name_from_the_network_is_no_path(self, tmp_path: Path, name: str) -> None:
        """
        Cluster and datanode ids become directories and lines: only plain names do.
        """
        with pytest.raises(RefusedError):
            check_name(name, "cluster id")
        with pytest.raises(RefusedError):
            open_volume(
                tmp_path / "volume",
                cluster_id=name,
                datanode_id=DATANODE,
                options=StoreOptions(),
            )

        assert [] == list(tmp_path.iterdir())
