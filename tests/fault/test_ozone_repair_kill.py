"""A repair of an Ozone replica that is killed, or finds no room: old bytes or new."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from ozone.clients.datanode_messages import DatanodeCommand
from suture.runtime.exit_codes import ExitCode
from tests.support.faults.store_victim import live
from tests.support.ozone import ozone_victim as victim
from tests.support.ozone.ozone_repairs import damaged_volume, peers_of
from tests.support.ozone.ozone_victim import (
    SCENARIOS,
    WHOLE,
    file_of,
    installer,
    old_bytes,
    prepare,
)
from tests.support.ozone.ozone_volumes import ROOT, golden
from tests.support.storage.stores import private_directory

pytestmark = pytest.mark.fault

STEPS_MAX = 300
CHUNKS = 9  # that are damaged in container 1
SPACE_BYTES = 8 * 1024**2


def states(scenario: str) -> list[bytes | None]:
    """Return what a file may hold between two chunks of a repair: each chunk old or new."""
    found = [old_bytes(scenario)]
    for index in victim.wanted(scenario):
        start = index * victim.CHUNK_BYTES
        last = found[-1] or b""
        found.append(last[:start] + victim.PARTS[index] + last[start + victim.CHUNK_BYTES :])
    return found


def check(path: Path, scenario: str) -> None:
    """The file is old or new, or the journal knows of it; afterwards it is old or new, belongs to
    whom it did, and nothing else is left."""
    file = file_of(path)
    held = file.read_bytes() if file.exists() else None
    one = installer(path)
    assert held in states(scenario) or one.unfinished()

    one.recover()

    held = file.read_bytes() if file.exists() else None
    assert held in states(scenario)
    assert [] == one.unfinished()
    if scenario == "linked":
        assert old_bytes(scenario) == (path / "linked").read_bytes()
    if held is not None and os.geteuid() == 0:
        assert victim.OWNER == file.stat().st_uid


@pytest.mark.slow
@pytest.mark.parametrize("tear", [False, True])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_kill_before_every_step_leaves_old_bytes_or_new(scenario: str, tear: bool) -> None:
    """
    Killed before its first step, its second, and so on, also in the middle of a write: a second run
    ends what was begun and heals the block.
    """
    torn = 0
    with private_directory() as directory:
        for kill_at in range(1, STEPS_MAX):
            path = directory / str(kill_at)
            prepare(path, scenario)
            report = live(path, scenario, kill_at, tear=tear, module=victim.__name__)
            torn += report["torn"]
            if report["signal"] == 0:
                assert 0 == report["code"]
                break
            assert signal.SIGKILL == report["signal"]
            check(path, scenario)
            again = live(path, scenario, 0, tear=False, module=victim.__name__)
            assert (0, 0) == (again["signal"], again["code"])
            assert WHOLE == file_of(path).read_bytes()
            names = {one.name for one in file_of(path).parent.iterdir()}
            assert {"5.block", f"{victim.BLOCK}.block"} == names
            assert [] == list((path / "state" / "DS-1" / "journal").iterdir())
            shutil.rmtree(path)
        else:
            pytest.fail("it has no end")
    assert kill_at > 10
    assert torn or not tear


def test_a_command_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    """After a kill -9 during the fetches, the second run repairs the rest, and does not repeat
    finished repairs.
    """
    volumes = golden(tmp_path / "golden")
    volume = damaged_volume(volumes, tmp_path)
    with peers_of(volumes) as peers:
        is_started = Event()
        running: list[subprocess.Popen[bytes]] = []

        def kills(_: Any) -> int:
            reads = sum(peer.commands().count(DatanodeCommand.READ_CHUNK) for peer in peers)
            if reads == CHUNKS and running:  # the last is asked for when the first is written
                is_started.wait()
                running[0].kill()
            return 0

        peers[0].before = peers[1].before = kills
        addresses = [peer.address for peer in peers]
        command = [sys.executable, "-m", "agent.cli.start", *volume.command(1, addresses, "--yes")]
        running.append(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL))
        is_started.set()
        assert -signal.SIGKILL == running[0].wait()
        running.clear()
        for peer in peers:
            peer.asked.clear()

        assert ExitCode.OK == volume.repair(1, addresses, "--yes")

        again = sum(peer.commands().count(DatanodeCommand.READ_CHUNK) for peer in peers)
    lengths = {3: 300_000, 4: 1_100_000, 29: 41_110}
    assert all(volume.is_whole(1, number, length) for number, length in lengths.items())
    assert again < CHUNKS


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of a few MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SPACE_BYTES}", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip(reason="a small file system can be mounted by root only")
    try:
        yield path
    finally:
        command = ["umount", "--lazy", str(path)]
        subprocess.run(command, check=True)


def fill(disk: Path, leave_bytes: int) -> Path:
    """Take the space of a disk but this."""
    ballast = disk / "ballast"
    space = os.statvfs(disk)
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, space.f_bavail * space.f_frsize - leave_bytes)
    return ballast


@pytest.mark.parametrize("full", ["volume", "state"])
def test_a_full_disk_leaves_what_was_there(
    tmp_path: Path, disk: Path, full: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A lost file finds no room, or the replaced bytes cannot be kept. The block stays as it was
    and the others are repaired. With room again, it is repaired, too.
    """
    volumes = golden(tmp_path / "golden")
    volume = damaged_volume(volumes, disk if full == "volume" else tmp_path / "elsewhere")
    state_dir = tmp_path / "state" if full == "volume" else disk / "state"
    volume = type(volume)(volume.data_dir, state_dir, volume.damage)
    ballast = fill(disk, 200_000)
    with peers_of(volumes) as peers:
        addresses = [peer.address for peer in peers]
        document = volume.document(capsys, 1 if full == "volume" else 2, addresses)

        left = [one for one in document["outcomes"] if one["written"] == "LEFT"]
        assert left
        assert all("bytes are needed" in one["message"] or "CHUNK" in one["message"]
                   or "hole" in one["message"] for one in left)  # fmt: skip
        assert {"REPAIRED", "LEFT"} == {one["written"] for one in document["outcomes"]}
        ballast.unlink()
        assert ExitCode.OK == volume.repair(1 if full == "volume" else 2, addresses, "--yes")
