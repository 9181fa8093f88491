"""Faults of one volume: the file or directory that is changed, the kind of change, and when."""

import contextlib
import itertools
import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tests.support.faults.eio_disk import PAGE_BYTES, EioDisk, forget_pages

SPARSE_BYTES = 2**40


class Kind(StrEnum):
    """The change of a file or directory."""

    EIO = "eio"
    CUT = "cut"
    GARBAGE = "garbage"
    SPARSE = "sparse"
    DIRECTORY = "directory"
    LINK = "link"
    FIFO = "fifo"
    GONE = "gone"
    UNMOUNTED = "unmounted"


class Place(StrEnum):
    """The file or directory that is changed."""

    INDEX = "index"
    VERSION = "VERSION"
    DESCRIPTOR = "descriptor"
    TREE = "tree"
    BLOCK = "block"
    DIRECTORY = "directory"
    VOLUME = "volume"


@dataclass(frozen=True, slots=True)
class Case:
    """A fault of a volume. If `in_use`, it is created while the agent is used."""

    seed: int
    kind: Kind
    place: Place
    in_use: bool


def cases(count: int, *, with_eio: bool) -> Iterator[Case]:
    """Return seeded cases: each kind at each place, at rest and in use, several times."""
    pairs = [
        (kind, place)
        for kind, place in itertools.product(Kind, Place)
        if (kind is Kind.UNMOUNTED) == (place is Place.VOLUME)
        and (with_eio or kind is not Kind.EIO)
    ]
    every = itertools.cycle((kind, place, use) for use in (False, True) for kind, place in pairs)
    for seed, (kind, place, in_use) in zip(range(count), every, strict=False):
        yield Case(seed, kind, place, in_use)


def remove(path: Path) -> None:
    """Remove a file, link or directory tree, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def damage(
    case: Case, target: Path, disk: EioDisk | None, volume: Path, aside: Path, chance: random.Random
) -> None:
    """Create the fault of `case` at `target`, a file or directory of `volume`."""
    match case.kind:
        case Kind.EIO:
            assert disk is not None
            cannot_read(disk, target, chance)
        case Kind.UNMOUNTED:
            volume.rename(aside)
            if chance.random() < 0.7:
                volume.mkdir()
        case Kind.CUT if target.is_file():
            os.truncate(target, chance.randrange(target.stat().st_size) // chance.choice([1, 8]))
        case Kind.GARBAGE if target.is_file():
            garble(target, chance)
        case Kind.GARBAGE:
            for name in ("junk", "7", "containerDir9", "8.block"):
                (target / name).write_bytes(chance.randbytes(100))
            os.mkfifo(target / "9.block")
            (target / "10").symlink_to(target)
        case Kind.SPARSE if target.is_file():
            os.truncate(target, SPARSE_BYTES)
        case _:
            target.rename(aside)
            replace(case.kind, target, aside, chance)


def replace(kind: Kind, target: Path, aside: Path, chance: random.Random) -> None:
    """Create an object of another kind, or none, at the path `target`, whose former object is now
    at `aside`."""
    match kind:
        case Kind.DIRECTORY:
            target.mkdir()
            if not aside.is_dir():
                (target / "file").touch()
        case Kind.LINK:
            target.symlink_to(chance.choice([aside, target, target.parent / "nowhere"]))
        case Kind.FIFO:
            os.mkfifo(target)
        case Kind.SPARSE:
            target.touch()
            os.truncate(target, SPARSE_BYTES)


def garble(target: Path, chance: random.Random) -> None:
    """Write garbage over one byte or many, somewhere in a file."""
    data = target.read_bytes()
    length = chance.choice([1, 40, PAGE_BYTES])
    at = chance.randrange(max(1, len(data) - length))
    with target.open("r+b") as file:
        file.seek(at)
        file.write(chance.randbytes(min(length, len(data))))


def cannot_read(disk: EioDisk, target: Path, chance: random.Random) -> None:
    """Make reads of some pages of the file `target` fail. If `target` is a directory, make reads of
    the disk fail, except for pages in the page cache."""
    if target.is_dir():
        disk.cut()
        with contextlib.suppress(OSError):  # the directories above them may be gone, too
            for path in target.rglob("*"):
                forget_pages(path)
        return
    data = target.read_bytes()
    pages = [data[at : at + PAGE_BYTES] for at in range(0, len(data), PAGE_BYTES)]
    chosen = pages if chance.random() < 0.5 else [chance.choice(pages)]
    assert disk.spoil([page.ljust(PAGE_BYTES, b"\0") for page in chosen if any(page)])
    forget_pages(target)
