"""One block that cannot be dealt with stops nothing that is done to the others."""

import errno
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from agent.plan.reconcile_outcome import ChunkResult, ReconcileVerdict
from agent.reconcile.failure_policy import BLOCKS_MAX
from agent.store.failure_reports import StoreFailure
from agent.store.files import blockfile
from agent.store.files.layout import ReplicaPaths
from agent.store.index.packformat import PackedBlocks
from agent.store.operations import deleting
from agent.store.recovery import startup_recovery
from agent.store.recovery.fsck import fsck
from merkle.replica import BlockId, ReplicaState
from suture.errors import BlockFailed, VolumeFailed
from suture.runtime.durable import TEMPORARY_SUFFIX
from tests.support.storage.datanodes import Datanode
from tests.support.storage.deleting import remove_blocks
from tests.support.storage.stored_replica import CLUSTER, CONTAINER

KINDS = ("directory", "pipe", "link", "socket")
WORDS = {
    "directory": "a directory",
    "pipe": "a pipe",
    "link": "a symbolic link",
    "socket": "a socket",
}
PLACES: dict[str, Callable[[ReplicaPaths], Path]] = {
    "descriptor": lambda paths: paths.descriptor,
    "tree": lambda paths: paths.tree,
    "block": lambda paths: paths.block_file(BlockId(2)),
}
BLOCKS = 12


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[list[Datanode]]:
    """Two datanodes with the same closed container; the second serves."""
    datanodes = [Datanode(f"dn{number}", tmp_path / f"dn{number}") for number in (1, 2)]
    for datanode in datanodes:
        datanode.replica.create(blocks=BLOCKS)
    datanodes[1].serve()
    yield datanodes
    for datanode in datanodes:
        datanode.close()


def put(kind: str, path: Path, elsewhere: Path) -> None:
    """Put something else in the place of a file."""
    path.unlink()
    match kind:
        case "directory":
            path.mkdir()
            (path / "precious").write_bytes(b"somebody's")
        case "pipe":
            os.mkfifo(path)
        case "link":
            path.symlink_to(elsewhere)
        case "socket":
            with socket.socket(socket.AF_UNIX) as server:
                os.chdir(path.parent)  # the name of a socket is short
                server.bind(path.name)


def aside(node: Datanode) -> list[Path]:
    """Return what was put aside."""
    return sorted((node.replica.path / "hdds" / CLUSTER / "quarantine").glob("*.aside"))


def break_writes(monkeypatch: pytest.MonkeyPatch, paths: list[Path]) -> None:
    """Let writes to these files fail as a bad disk does."""
    real = blockfile.overwrite_pieces

    def failing(path: Path, pieces: Sequence[tuple[int, bytes]], *, is_synced: bool = True) -> None:
        if path in paths:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(path, pieces, is_synced=is_synced)

    monkeypatch.setattr(blockfile, "overwrite_pieces", failing)


class TestRepair:
    @pytest.mark.parametrize("kind", KINDS)
    def test_obstacle_in_the_place_of_a_block_is_put_aside_by_a_repair(
        self, pair: list[Datanode], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
    ) -> None:
        """The obstacle is neither followed nor removed. The block is repaired, and so are the
        others.
        """
        monkeypatch.chdir(tmp_path)
        replica, whole = pair[0].replica, pair[1].files()
        (tmp_path / "elsewhere").write_bytes(b"somebody's")
        put(kind, replica.file(2), tmp_path / "elsewhere")
        replica.flip(3, 5)
        pair[0].scan()

        result = pair[0].reconcile(pair[1:])

        assert ReconcileVerdict.CONVERGED is result.result, result.chunks
        assert whole == pair[0].files()
        assert ReplicaState.CLOSED is replica.store.replica(CONTAINER).state
        [kept] = aside(pair[0])
        assert f"{CONTAINER}-2-0-" == kept.name[: len(f"{CONTAINER}-2-0-")]
        match kind:
            case "directory":
                assert (kept / "precious").read_bytes() == b"somebody's"
            case "pipe":
                assert kept.is_fifo()
            case "link":
                assert kept.is_symlink()
            case "socket":
                assert kept.is_socket()
        assert (tmp_path / "elsewhere").read_bytes() == b"somebody's"

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("place", PLACES)
    def test_obstacle_in_the_place_of_a_file_is_reported_and_put_aside(
        self,
        pair: list[Datanode],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        place: str,
        kind: str,
    ) -> None:
        """Descriptor, tree and block are treated alike: the finding names the obstacle, the file
        is restored, and the obstacle is kept.
        """
        monkeypatch.chdir(tmp_path)
        replica, whole = pair[0].replica, pair[1].files()
        (tmp_path / "elsewhere").write_bytes(b"somebody's")
        path = PLACES[place](replica.store.paths(CONTAINER))
        put(kind, path, tmp_path / "elsewhere")
        pair[0].scan()
        found = [finding.evidence for finding in replica.store.findings(CONTAINER)]

        result = pair[0].reconcile(pair[1:])
        pair[0].scan()

        assert [] != [text for text in found if f"{WORDS[kind]} is in its place" in text], found
        assert ReconcileVerdict.CONVERGED is result.result, result.chunks
        assert whole == pair[0].files()
        assert path.is_file()
        assert not path.is_symlink()
        assert [] == list(replica.store.findings(CONTAINER))
        assert ReplicaState.CLOSED is replica.store.replica(CONTAINER).state
        assert 1 == len(aside(pair[0]))
        assert (tmp_path / "elsewhere").read_bytes() == b"somebody's"

    @pytest.mark.parametrize("place", ["descriptor", "tree"])
    def test_a_directory_under_the_name_of_a_new_file_is_removed(
        self, pair: list[Datanode], place: str
    ) -> None:
        """No other program uses such names, so the directory does not stop a repair."""
        path = PLACES[place](pair[0].replica.store.paths(CONTAINER))
        path.unlink()
        (path.with_name(path.name + TEMPORARY_SUFFIX) / "deep").mkdir(parents=True)
        pair[0].scan()

        result = pair[0].reconcile(pair[1:])

        assert ReconcileVerdict.CONVERGED is result.result
        assert path.is_file()

    def test_the_failure_of_one_block_is_its_own(
        self, pair: list[Datanode], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The others are repaired; the result names the one, and the volume is looked at."""
        replica, troubles = pair[0].replica, list[StoreFailure]()
        replica.store.on_trouble = troubles.append
        for block_id in (2, 3, 4):
            replica.flip(block_id, 5)
        pair[0].scan()
        break_writes(monkeypatch, [replica.file(3)])

        result = pair[0].reconcile(pair[1:])

        assert ReconcileVerdict.PARTIAL is result.result
        failed = [chunk for chunk in result.chunks if chunk.result is ChunkResult.FAILED]
        assert [BlockId(3)] == [chunk.block_id for chunk in failed]
        assert "EIO" in failed[0].message
        assert {3} == {finding.block_id for finding in replica.store.findings(CONTAINER)}
        assert [True] == [trouble.is_disk for trouble in troubles]

    def test_a_disk_that_keeps_nothing_ends_it(
        self, pair: list[Datanode], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """After some failures in a row it is no matter of single blocks any more."""
        replica = pair[0].replica
        for block_id in range(1, BLOCKS + 1):
            replica.flip(block_id, 5)
        pair[0].scan()
        break_writes(monkeypatch, [replica.file(number) for number in range(1, BLOCKS + 1)])
        troubles: list[StoreFailure] = []
        replica.store.on_trouble = troubles.append

        with pytest.raises(VolumeFailed):
            pair[0].reconcile(pair[1:])

        assert BLOCKS_MAX == len(troubles)

    @pytest.mark.parametrize("part", ["root", "chunks", "descriptor.parent"])
    def test_a_file_in_the_place_of_a_directory_is_put_aside(
        self, pair: list[Datanode], part: str
    ) -> None:
        """All that was in the directory comes back."""
        replica, whole = pair[0].replica, pair[1].files()
        paths = replica.store.paths(CONTAINER)
        lost = paths.descriptor.parent if part == "descriptor.parent" else getattr(paths, part)
        lost.rename(replica.path / "lost")
        lost.write_bytes(b"somebody's")
        pair[0].scan()

        pair[0].reconcile(pair[1:])

        assert whole == pair[0].files()
        assert ReplicaState.CLOSED is replica.store.replica(CONTAINER).state
        assert [b"somebody's"] == [path.read_bytes() for path in aside(pair[0])]
        assert lost.is_dir()


class TestDelete:
    def test_a_directory_in_the_place_of_a_deleted_block_is_put_aside(
        self, pair: list[Datanode]
    ) -> None:
        """Its content is unknown."""
        replica = pair[0].replica
        put("directory", replica.file(2), Path())

        assert 3 == remove_blocks(replica.store, CONTAINER, [BlockId(n) for n in (1, 2, 3)])

        assert not any(replica.file(number).exists() for number in (1, 2, 3))
        [kept] = aside(pair[0])
        assert (kept / "precious").read_bytes() == b"somebody's"

    def test_a_file_that_cannot_be_removed_keeps_no_other(
        self, pair: list[Datanode], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The error names it, and the next delete tries it again, and it alone."""
        replica, real, tried = pair[0].replica, deleting.remove_file, list[str]()

        def failing(path: Path) -> bool:
            tried.append(path.name)
            if path == replica.file(2) and len(tried) <= 3:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return real(path)

        monkeypatch.setattr(deleting, "remove_file", failing)
        with pytest.raises(BlockFailed, match=r"2\.block: EIO"):
            remove_blocks(replica.store, CONTAINER, [BlockId(n) for n in (1, 2, 3)])
        assert [False, True, False] == [replica.file(number).exists() for number in (1, 2, 3)]

        remove_blocks(replica.store, CONTAINER, [BlockId(1)])

        assert ["2.block"] == tried[3:]
        assert not replica.file(2).exists()

    def test_a_link_in_the_place_of_the_directory_is_not_followed(
        self, pair: list[Datanode], tmp_path: Path
    ) -> None:
        """Files with the names of deleted blocks elsewhere stay."""
        replica = pair[0].replica
        chunks = replica.store.paths(CONTAINER).chunks
        chunks.rename(tmp_path / "elsewhere")
        chunks.symlink_to(tmp_path / "elsewhere")

        remove_blocks(replica.store, CONTAINER, [BlockId(1)])

        assert (tmp_path / "elsewhere" / "1.block").exists()


class TestQuarantine:
    def test_quarantined_obstacle_is_purged_by_age(self, pair: list[Datanode]) -> None:
        """A directory is purged with its content."""
        put("directory", pair[0].replica.file(2), Path())
        pair[0].scan()
        pair[0].reconcile(pair[1:])
        assert 1 == len(aside(pair[0]))

        assert 0 == pair[0].replica.store.volume_set.purge_quarantine(3_600)
        assert 1 == len(aside(pair[0]))
        assert 1 <= pair[0].replica.store.volume_set.purge_quarantine(-3_600)

        assert [] == list((pair[0].replica.path / "hdds" / CLUSTER / "quarantine").iterdir())


class TestFsck:
    def test_a_replica_that_cannot_be_listed_stops_no_other(
        self, pair: list[Datanode], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The replica is reported with the reason, and the next one is checked."""
        node = pair[0]
        node.replica.create(CONTAINER + 1)  # type: ignore[arg-type]
        node.replica.flip(1, 5)
        node.replica.close()
        from agent.store.recovery import fsck as module

        real = module.data_sizes

        def failing(paths: ReplicaPaths, packed: PackedBlocks) -> dict[BlockId, int]:
            if paths.root.name == str(CONTAINER):
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(paths.chunks))
            return real(paths, packed)

        monkeypatch.setattr(module, "data_sizes", failing)
        report = fsck(node.replica.path)

        assert ["UNREADABLE"] == [problem.kind for problem in report.problems]
        assert "Input/output error" in report.problems[0].message
        assert 2 == report.replica_count
        node.replica.reopen()


class TestStart:
    def test_unremovable_leftover_does_not_stop_a_start(
        self, pair: list[Datanode], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The directory of a deleted replica stays and is named, and the volume serves."""
        replica = pair[0].replica
        left = replica.path / "hdds" / CLUSTER / "tmp" / "deleting" / "9"
        left.mkdir()
        replica.close()

        def failing(path: Path) -> None:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM), str(path))

        monkeypatch.setattr(startup_recovery, "remove", failing)
        replica.reopen()

        steps = replica.store.recovery.steps
        assert [True] == ["cannot be removed" in step.what for step in steps]
        assert ReplicaState.CLOSED is replica.store.replica(CONTAINER).state
