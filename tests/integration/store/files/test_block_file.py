"""Reading a block's file: all that is asked for, in however many pieces the kernel gives it."""

import os
from pathlib import Path

import pytest

from agent.store.files import blockfile

CONTENT = bytes(range(256)) * 40


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A block's file."""
    made = tmp_path / "1.block"
    made.write_bytes(CONTENT)
    return made


def test_a_read_that_the_kernel_cuts_short_is_gone_on_with(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Network file systems and signals do that.
    """
    pread, asked = os.pread, []

    def some(fd: int, length_bytes: int, offset: int) -> bytes:
        asked.append((length_bytes, offset))
        return pread(fd, min(length_bytes, 1_000), offset)

    monkeypatch.setattr(blockfile.os, "pread", some)

    assert CONTENT[100:5_100] == blockfile.read_in(path.parent, path.name, 100, 5_000)
    assert 5 <= len(asked)


def test_a_read_past_the_end_gives_what_is_there(path: Path) -> None:
    """The caller compares the length."""
    assert CONTENT[10_000:] == blockfile.read(path, 10_000, 5_000)
    assert not blockfile.read(path, len(CONTENT), 1)
