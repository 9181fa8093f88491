"""A full file system that copies on write: its volume may fail, the process may not."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from agent.cli.change.volume_commands import declare
from scm.backup.backup_writer import take_backup
from suture.errors import SutureError
from tests.support.control.fake_datanode import FakeDatanode
from tests.support.control.scm_process import ScmProcess, spawn
from tests.support.storage.stores import closed_replica, open_store

pytestmark = pytest.mark.fault

DISK_BYTES = 128 * 1024**2
ROUNDS = 200
CHILD = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from suture.errors import SutureError
from merkle.replica import BlockId, ContainerId
from tests.support.storage.stores import open_store

store = open_store(Path(sys.argv[1]), volume_count=2)
print("open", flush=True)
sys.stdin.readline()
codes = set()

def use(number):
    for call in (
        lambda: store.view(ContainerId(1 + number % 2)).read(BlockId(1), 0, 100),
        lambda: store.close_container(ContainerId(9)),
        lambda: store.create_container(ContainerId(10 + number)),
    ):
        try:
            call()
        except SutureError as error:
            codes.add(str(error.code))

for number in range({rounds}):
    with ThreadPoolExecutor(2) as fresh:  # each thread takes a place among the readers
        list(fresh.map(use, (number, number + 1)))
for container_id in (1, 2):
    assert len(store.view(ContainerId(container_id)).read(BlockId(1), 0, 100)) == 100
print(sorted(codes), flush=True)
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a small btrfs; skip the test where that cannot be done."""
    image, place = tmp_path / "image", tmp_path / "stores" / "v0"
    image.touch()
    os.truncate(image, DISK_BYTES)
    place.mkdir(parents=True)
    made = [
        ["mkfs.btrfs", "-q", "--mixed", str(image)],
        ["mount", "-o", "loop", str(image), str(place)],
    ]
    for command in made:
        with suppress(FileNotFoundError):
            if os.geteuid() == 0 and not subprocess.run(command, check=False).returncode:
                continue
        pytest.skip(reason="btrfs can be made and mounted by root only, with btrfs-progs")
    try:
        yield place
    finally:
        unmount = ["umount", "--lazy", str(place)]
        subprocess.run(unmount, check=True)


def fill(disk: Path) -> None:
    """Take all the space, to the last sector."""
    with (disk / "ballast").open("ab", buffering=0) as file:
        for size in (1024**2, 4096, 1):
            with suppress(OSError):
                while True:
                    file.write(b"x" * size)
                    os.fsync(file.fileno())


def test_the_process_outlives_a_full_btrfs(tmp_path: Path, disk: Path) -> None:
    """Reads continue on that volume and on the healthy one beside it."""
    stores = tmp_path / "stores"
    for volume_count in (1, 2):  # the second volume has more room
        made = open_store(stores, volume_count=volume_count)
        closed_replica(made, volume_count, block_ids=(1,))
        assert not [facts for facts in made.volumes() if facts.container_count != 1]
        made.close()
    with subprocess.Popen(
        [sys.executable, "-c", CHILD.replace("{rounds}", str(ROUNDS)), str(stores)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stdin is not None
            assert "open\n" == child.stdout.readline()
            fill(disk)
            child.stdin.write("go\n")
            child.stdin.flush()
            said = child.stdout.readline()
            code = child.wait(60.0)
        finally:
            child.kill()

    assert 0 == code
    assert "CONTAINER_NOT_FOUND" in said


def test_new_volume_warns_of_btrfs(
    tmp_path: Path, disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The declaration of a volume on another file system prints no warning."""
    (tmp_path / "other").mkdir()
    (disk / "volume").mkdir()

    assert 0 == declare([tmp_path / "other"])
    assert "btrfs" not in capsys.readouterr().err
    assert 0 == declare([disk / "volume"])
    assert "is on btrfs: ext4 and XFS are supported" in capsys.readouterr().err


def test_scm_whose_state_is_on_btrfs_warns_at_its_start(tmp_path: Path, disk: Path) -> None:
    """
    One on another file system logs no such event.
    """
    for data, count in (tmp_path / "data", 0), (disk / "data", 1):
        scm = ScmProcess.start(data)
        scm.process.send_signal(signal.SIGTERM)
        _, logged = scm.process.communicate(30)

        assert count == logged.count("state_on_btrfs"), logged
        assert count == logged.count("ext4 and XFS are supported"), logged


def test_scm_outlives_a_full_btrfs(tmp_path: Path, disk: Path) -> None:
    """
    It refuses changes, answers queries, can be backed up, and takes changes again with space.
    """
    scm = ScmProcess.start(disk / "data")
    try:
        FakeDatanode.dial(scm.address, "early").register()
        fill(disk)
        for number in range(ROUNDS):
            with suppress(SutureError, grpc.RpcError):
                FakeDatanode.dial(scm.address, f"dn{number}").register()
            assert scm.process.poll() is None
        full = take_backup(disk / "data", tmp_path / "to", now_ms=1_800_000_000_000, version="1")
        (disk / "ballast").unlink()
        FakeDatanode.dial(scm.address, "late").register()
        freed = take_backup(disk / "data", tmp_path / "to", now_ms=1_800_000_000_001, version="1")
    finally:
        code = scm.terminate()

    assert 0 == code
    assert 1 <= full.manifest.counts["nodes"] < freed.manifest.counts["nodes"]


def test_scm_refuses_to_start_on_a_full_btrfs(disk: Path) -> None:
    """
    Its error names the file that cannot be written; with space, it starts again.
    """
    assert 0 == ScmProcess.start(disk / "data").terminate()
    fill(disk)

    _, logged = spawn(disk / "data").communicate(60)
    assert f"cannot write {disk / 'data' / 'LOCK'}: No space left on device" in logged
    assert "free space on the disk" in logged
    assert "Traceback" not in logged
    assert "exception" not in logged

    (disk / "ballast").unlink()
    assert 0 == ScmProcess.start(disk / "data").terminate()


def test_no_lock_file_of_the_index_is_left_on_the_volume(tmp_path: Path) -> None:
    """An existing lock file is ignored and removed, whatever its type."""
    open_store(tmp_path).close()
    [database] = (tmp_path / "v0").glob("hdds/*/db")
    lock = database / "lock.mdb"
    for make in (
        lock.touch,
        lock.mkdir,
        lambda: lock.symlink_to("/nowhere"),
        lambda: os.mkfifo(lock),
    ):
        assert not os.path.lexists(lock)
        make()
        store = open_store(tmp_path)
        assert not os.path.lexists(lock)
        store.close()
