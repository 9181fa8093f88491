"""Types of file systems."""

import os
from pathlib import Path

import pytest

from suture.runtime.file_system_type import is_in_memory, is_on_btrfs


def test_file_system_in_memory_is_recognised() -> None:
    """
    A memfd is on a tmpfs, and /proc keeps no files.
    """
    for fd, expected in (os.memfd_create("any"), True), (os.open("/proc", os.O_RDONLY), False):
        try:
            assert expected == is_in_memory(fd)
        finally:
            os.close(fd)


def test_missing_directory_is_an_error_and_not_another_file_system(tmp_path: Path) -> None:
    """
    A directory on btrfs is in tests/fault/test_full_btrfs.py.
    """
    assert not is_on_btrfs(Path("/proc"))
    with pytest.raises(FileNotFoundError):
        is_on_btrfs(tmp_path / "missing")
