"""SMART and the kernel's log: what they say, and why they say nothing."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from agent.observe.disk_reports import LINES_MAX, ON_NO_DISK, Run, disk_reports
from agent.store.files.devices import block_device, counts_of, disks_of
from agent.store.index.facts import VolumeFacts

VOLUME = VolumeFacts(
    volume_id="DS-1",
    path=Path("/srv/disk1"),
    capacity_bytes=1,
    available_bytes=1,
    used_bytes=0,
    container_count=0,
)
HEALTHY = json.dumps({"smartctl": {"exit_status": 0}, "smart_status": {"passed": True}})
REFUSED = json.dumps({"smartctl": {"messages": [{"string": "Permission denied"}]}})
KERNEL = "kernel: sdb: I/O error\nkernel: sdbx: other\nkernel: sdb1: mounted\n"


def answering(answers: dict[str, tuple[int, str, str] | Exception]) -> Run:
    """Return what runs programs that answer so; others are not installed."""

    def run(words: Sequence[str]) -> tuple[int, str, str]:
        answer = answers.get(words[0], FileNotFoundError(words[0]))
        if isinstance(answer, Exception):
            raise answer
        return answer

    return run


@pytest.fixture
def device(tmp_path: Path) -> Path:
    """Return the kernel's directory of partition sdb1."""
    partition = tmp_path / "sdb" / "sdb1"
    partition.mkdir(parents=True)
    (partition / "partition").write_text("1\n")
    (partition / "stat").write_text("100 0 800 950 20 0 160 400 0 0 0\n")
    return partition


def test_disk_report_has_smart_data_and_kernel_lines(device: Path) -> None:
    """SMART data is that of the whole disk. Kernel lines are those that name the disk or the
    partition, and no others.
    """
    run = answering({"smartctl": (0, HEALTHY, ""), "journalctl": (0, KERNEL, "")})

    [report] = disk_reports([VOLUME], run=run, device_of=lambda _: device)

    assert ("sdb", "DS-1") == (report.disk, report.volume_id)
    assert json.loads(report.smart)["smart_status"]["passed"]
    assert ["kernel: sdb: I/O error", "kernel: sdb1: mounted"] == list(report.kernel_lines)
    assert "" == report.smart_error + report.kernel_error


@pytest.mark.parametrize(
    ("answers", "smart", "kernel"),
    [
        ({}, "not installed", "not installed"),
        ({"smartctl": (2, REFUSED, "")}, "may need root", "not installed"),
        ({"smartctl": (0, "no json", "broken")}, "broken", "not installed"),
        ({"smartctl": subprocess.TimeoutExpired("smartctl", 10)}, "did not answer", "installed"),
        ({"dmesg": (1, "", "Operation not permitted")}, "smartmontools", "not permitted"),
        ({"journalctl": (0, "", "")}, "smartmontools", "may be for root"),
    ],
)
def test_disk_report_has_the_reason_for_missing_data(
    device: Path, answers: dict[str, tuple[int, str, str] | Exception], smart: str, kernel: str
) -> None:
    """The program is missing, not permitted, not parseable, or timed out."""
    [report] = disk_reports([VOLUME], run=answering(answers), device_of=lambda _: device)

    assert smart in report.smart_error
    assert kernel in report.kernel_error
    assert not report.smart
    assert not report.kernel_lines


def test_the_second_log_is_asked_when_the_first_is_silent(device: Path) -> None:
    """Only the newest of very many lines are kept."""
    lines = "\n".join(f"sdb: line {number}" for number in range(3 * LINES_MAX))
    run = answering({"journalctl": (1, "", "no journal"), "dmesg": (0, lines, "")})

    [report] = disk_reports([VOLUME], run=run, device_of=lambda _: device)

    assert LINES_MAX == len(report.kernel_lines)
    assert f"sdb: line {3 * LINES_MAX - 1}" == report.kernel_lines[-1]


def test_a_volume_in_memory_is_on_no_disk() -> None:
    """The report says so, and no program is run."""

    def never(words: Sequence[str]) -> tuple[int, str, str]:
        raise AssertionError(words)

    [report] = disk_reports([VOLUME], run=never, device_of=lambda _: None)

    assert ON_NO_DISK == report.smart_error == report.kernel_error


def test_a_device_is_found_by_its_number(tmp_path: Path, device: Path) -> None:
    """
    By the link that the kernel keeps; its counters are those of the kernel's document.
    """
    number = tmp_path.stat().st_dev

    links = tmp_path / "sys" / "dev" / "block"
    links.mkdir(parents=True)
    assert block_device(tmp_path, sysfs=tmp_path / "sys") is None
    (links / f"{os.major(number)}:{os.minor(number)}").symlink_to(device)

    found = block_device(tmp_path, sysfs=tmp_path / "sys")

    assert device == found
    counts = counts_of(device)
    assert counts is not None
    assert (100, 950, 20, 400) == (counts.reads, counts.read_ms, counts.writes, counts.write_ms)
    assert ["sdb"] == disks_of(device)


def test_a_mapped_device_is_what_it_rests_on(tmp_path: Path, device: Path) -> None:
    """
    A logical volume over two disks is both.
    """
    mapped = tmp_path / "dm-0"
    (mapped / "slaves").mkdir(parents=True)
    (tmp_path / "sdc").mkdir()
    (mapped / "slaves" / "sdb1").symlink_to(device)
    (mapped / "slaves" / "sdc").symlink_to(tmp_path / "sdc")

    assert ["sdb", "sdc"] == disks_of(mapped)
