"""Where ISA-L is looked for."""

import ctypes
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from merkle.isal_library import isal_library

BESIDE, SYSTEMS = "/wheel/libisal-1.so", "libisal.so.2"


class World:
    """What pyeclib brought, what the system has, and what of it can be loaded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files: list[Any] | None = [
            SimpleNamespace(name=Path(path).name, locate=lambda path=path: Path(path))
            for path in ("/wheel/liberasurecode.so", BESIDE)
        ]
        self.of_system: str | None = SYSTEMS
        self.loadable = {BESIDE, SYSTEMS}
        self.tried: list[str] = []
        monkeypatch.setattr(metadata, "files", lambda _name: self.files)
        monkeypatch.setattr(ctypes.util, "find_library", lambda _name: self.of_system)
        monkeypatch.setattr(ctypes, "CDLL", self.load)

    def load(self, path: str) -> str:
        """Load a library, if it can be."""
        self.tried.append(path)
        if path not in self.loadable:
            raise OSError(path)
        return path


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Have it looked for here, and again after the test."""
    isal_library.cache_clear()
    yield World(monkeypatch)
    isal_library.cache_clear()


def test_pyeclibs_own_is_taken(world: World) -> None:
    """The library of pyeclib is used and looked up once."""
    assert [BESIDE, BESIDE] == [isal_library(), isal_library()]
    assert [BESIDE] == world.tried


def test_system_library_is_used_if_the_bundled_one_fails_to_load(world: World) -> None:
    """This is the case on another kind of machine."""
    world.loadable.discard(BESIDE)

    assert SYSTEMS == isal_library()
    assert [BESIDE, SYSTEMS] == world.tried


def test_pyeclib_may_be_there_without_it(world: World) -> None:
    """Built from source; or put there by something that wrote no list of files."""
    assert world.files is not None
    del world.files[1]
    assert SYSTEMS == isal_library()

    isal_library.cache_clear()
    world.files = None
    assert SYSTEMS == isal_library()


def test_nowhere_is_no_error(world: World) -> None:
    """Others compute the same."""
    world.files, world.of_system = [], None

    assert isal_library() is None
    assert [] == world.tried
