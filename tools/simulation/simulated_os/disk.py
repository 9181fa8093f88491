"""Models the durable content of a disk, which remains after a power cut.

    files below the root (tmpfs)       the page cache, which running processes read
    Inode.durable, Directory.entries   synced data, which survives a power cut
    Inode.pending, Disk.renames        unsynced changes; each part survives or not

An unsynced write survives completely, in part (sector by sector) or not at all, independent of
later writes. Each change of a name is independent, except that later changes of the same name wait
for it. A rename is one change. Only a sync orders names after bytes. These guarantees are weaker
than those of ext4 or XFS, so code that is correct in the simulation is correct on them. An LMDB
index is durable as a whole at each commit.
"""

import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

SECTOR_BYTES: Final = 512
INDEX_FILE: Final = "data.mdb"


@dataclass(slots=True)
class Write:
    """Unsynced bytes of a write. If `data` is None, the file was truncated or extended to `at`."""

    at: int
    data: bytes | None


@dataclass(eq=False, slots=True)
class Inode:
    """A file: its durable bytes, and its unsynced writes."""

    durable: bytes = b""
    pending: list[Write] = field(default_factory=list)
    is_hidden: bool = False  # the medium differs from the page cache
    is_dead: bool = False  # and cannot be read

    def medium(self) -> bytes:
        """Return the bytes that a read past the page cache returns: the durable bytes with all
        pending writes."""
        content = self.durable
        for write in self.pending:
            content = applied(content, write)
        return content

    def settle(self) -> None:
        """Make all writes durable."""
        for write in self.pending:
            self.durable = applied(self.durable, write)
        self.pending.clear()

    def survivors(self, dice: Random, odds: float) -> bytes:
        """Return the content after a power cut. Each sector of a pending write survives with the
        probability `odds`."""
        content = self.durable
        for write in self.pending:
            if write.data is None:
                if dice.random() < odds:
                    content = applied(content, write)
                continue
            for start, end in sectors(write.at, write.at + len(write.data)):
                if dice.random() < odds:
                    part = write.data[start - write.at : end - write.at]
                    content = applied(content, Write(start, part))
        return content


@dataclass(eq=False, slots=True)
class Directory:
    """A directory: its durable names, with their entries."""

    entries: "dict[str, Inode | Directory]" = field(default_factory=dict)


Entry = Inode | Directory


@dataclass(frozen=True, slots=True, eq=False)
class NameChange:
    """Changes of names that survive a power cut only together. Each has the directory, the name,
    and the new entry (None = removed)."""

    slots: tuple[tuple[Directory, str, Entry | None], ...]

    def keys(self) -> set[tuple[int, str]]:
        """Return the changed names, as (id of the directory object, name)."""
        return {(id(directory), name) for directory, name, _ in self.slots}

    def apply(self) -> None:
        """Make the change durable."""
        for directory, name, entry in self.slots:
            if entry is None:
                directory.entries.pop(name, None)
            else:
                directory.entries[name] = entry


class Disk:
    """A volume: its files below `root`, and the durable part of them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.name, self.prefix = str(root), f"{root}/"
        root.mkdir(parents=True)
        self.top = Directory()
        self._by_number: dict[int, Entry] = {root.stat().st_ino: self.top}
        self.changes: list[NameChange] = []
        self.indexes: dict[str, bytes] = {}  # path of the environment -> its file, as committed

    # Events.

    def entry(self, path: "str | int") -> Entry | None:
        """Return the entry of a path or of an open descriptor; None if there is none."""
        try:
            number = os.fstat(path).st_ino if isinstance(path, int) else os.lstat(path).st_ino
        except FileNotFoundError:
            return None
        return self._by_number.get(number)

    def directory(self, path: "str | int") -> Directory | None:
        """Return the directory of a path or of an open descriptor; None if it is not a
        directory."""
        found = self.entry(path)
        return found if isinstance(found, Directory) else None

    def appeared(self, parent: Directory, name: str, path: "str | int", *, is_file: bool) -> None:
        """Record that a name was created."""
        facts = os.fstat(path) if isinstance(path, int) else os.lstat(path)
        entry: Entry = Inode() if is_file else Directory()
        self._by_number[facts.st_ino] = entry
        self.changes.append(NameChange(((parent, name, entry),)))

    def renamed(self, *slots: tuple[Directory, str, Entry | None]) -> None:
        """Record that names changed together."""
        self.changes.append(NameChange(slots))

    def sync_file(self, inode: Inode) -> None:
        """Make the file's bytes durable, but not its name."""
        inode.settle()

    def sync_directory(self, directory: Directory) -> None:
        """Make the names in a directory durable, together with the changes on which they depend."""
        needed: set[tuple[int, str]] = set()
        chosen: list[NameChange] = []
        for change in reversed(self.changes):
            keys = change.keys()
            if any(one is directory for one, _, _ in change.slots) or keys & needed:
                chosen.append(change)
                needed |= keys
        for change in reversed(chosen):
            change.apply()
        kept = set(map(id, chosen))
        self.changes = [change for change in self.changes if id(change) not in kept]

    def sync_all(self) -> None:
        """Make everything durable."""
        for change in self.changes:
            change.apply()
        self.changes.clear()
        for entry in self._by_number.values():
            if isinstance(entry, Inode):
                entry.settle()

    def adopt(self, path: str) -> None:
        """Add a directory created by a library as durable."""
        if self.entry(path) is None:
            above, _, name = path.rpartition("/")
            parent = self.directory(above)
            assert parent is not None, f"{above} is no directory of this disk"
            made = parent.entries[name] = Directory()
            self._by_number[os.stat(path).st_ino] = made  # noqa: PTH116

    def committed(self, environment: str) -> None:
        """Make the current state of an index durable, because it was committed."""
        self.indexes[environment] = (Path(environment) / INDEX_FILE).read_bytes()

    def replace_durable(self, path: Path, data: bytes) -> None:
        """Replace the content of a file on the disk and in the page cache, without a call of the
        product."""
        inode = self.entry(str(path))
        assert isinstance(inode, Inode), f"{path} is no file of ours"
        inode.pending.clear()
        inode.durable = data
        with path.open("r+b") as file:
            file.truncate(0)
            file.write(data)

    def harm_beneath(self, path: Path, data: bytes, *, is_dead: bool) -> None:
        """Replace the content of a file on the disk, while the page cache keeps the earlier bytes.
        If `is_dead`, the file becomes unreadable."""
        inode = self.entry(str(path))
        assert isinstance(inode, Inode), f"{path} is no file of ours"
        inode.settle()
        inode.durable, inode.is_hidden, inode.is_dead = data, True, is_dead

    def bytes_of(self, path: Path) -> bytes:
        """Return a file's bytes on the disk; b"" if they are unreadable. Raise OSError if there is
        no such file."""
        inode = self.entry(str(path))
        if isinstance(inode, Inode) and inode.is_hidden:
            return b"" if inode.is_dead else inode.medium()
        return path.read_bytes()

    def forget(self, path: Path) -> None:
        """Remove a file and its durable names, without a call of the product."""
        inode = self.entry(str(path))
        os.unlink(path)  # noqa: PTH108
        for directory in self._directories(self.top):
            for name, entry in list(directory.entries.items()):
                if entry is inode:
                    del directory.entries[name]
        self.changes = [
            change
            for change in self.changes
            if not any(entry is inode for _, _, entry in change.slots)
        ]

    def _directories(self, directory: Directory) -> Iterator[Directory]:
        yield directory
        for entry in directory.entries.values():
            if isinstance(entry, Directory):
                yield from self._directories(entry)

    def is_settled(self, path: Path) -> bool:
        """Return True if the content of a file and all names in its path are durable."""
        inode = self.entry(str(path))
        if not isinstance(inode, Inode) or inode.pending:
            return False
        return self._is_reachable(path, inode)

    def _is_reachable(self, path: Path, inode: Inode) -> bool:
        here: Entry | None = self.top
        names: set[tuple[int, str]] = set()
        for part in path.relative_to(self.root).parts:
            if not isinstance(here, Directory):
                return False
            names.add((id(here), part))
            here = here.entries.get(part)
        return here is inode and all(names.isdisjoint(one.keys()) for one in self.changes)

    # Power cuts.

    def cut(self, dice: Random) -> None:
        """Cut the power: replace the files below the root by the surviving data."""
        odds = dice.choice((0.0, 0.3, 0.5, 0.8, 1.0))
        self._keep_names(dice, odds)
        self.changes.clear()
        lasting = list(dict.fromkeys(_files(self.top)))
        for inode in lasting:
            inode.durable = inode.survivors(dice, odds)
            inode.pending.clear()
            inode.is_hidden = inode.is_dead
        for child in os.scandir(self.root):
            shutil.rmtree(child.path) if child.is_dir() else os.unlink(child.path)  # noqa: PTH108
        self._by_number = {os.stat(self.root).st_ino: self.top}  # noqa: PTH116
        self._write(self.top, str(self.root), {})
        for environment, data in self.indexes.items():
            if os.path.isdir(environment):  # noqa: PTH112
                (Path(environment) / INDEX_FILE).write_bytes(data)

    def _keep_names(self, dice: Random, odds: float) -> None:
        """Choose which changes of names survive. A change survives only with the changes on which
        it depends."""
        dropped: set[tuple[int, str]] = set()
        for change in self.changes:
            keys = change.keys()
            empties = {
                id(gone)
                for directory, name, entry in change.slots
                if entry is None
                and isinstance(gone := directory.entries.get(name), Directory)
                and len(change.slots) == 1
            }
            is_blocked = bool(keys & dropped) or any(number in empties for number, _ in dropped)
            if is_blocked or dice.random() >= odds:
                dropped |= keys
            else:
                change.apply()

    def _write(self, directory: Directory, path: str, written: dict[int, str]) -> None:
        for name, entry in directory.entries.items():
            target = f"{path}/{name}"
            if isinstance(entry, Directory):
                os.mkdir(target, 0o750)  # noqa: PTH102
                self._by_number[os.stat(target).st_ino] = entry  # noqa: PTH116
                self._write(entry, target, written)
            elif id(entry) in written:
                os.link(written[id(entry)], target)
            else:
                with open(target, "wb") as file:  # noqa: PTH123
                    file.write(entry.durable)
                    self._by_number[os.fstat(file.fileno()).st_ino] = entry
                os.chmod(target, 0o640)  # noqa: PTH101
                written[id(entry)] = target


def applied(content: bytes, write: Write) -> bytes:
    """Return a file's content after a write."""
    if write.data is None:
        return content[: write.at].ljust(write.at, b"\0")
    return (
        content[: write.at].ljust(write.at, b"\0")
        + write.data
        + content[write.at + len(write.data) :]
    )


def sectors(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a range of bytes, split at sector boundaries, as (start, end)."""
    while start < end:
        behind = min(end, (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
        yield start, behind
        start = behind


def _files(directory: Directory) -> Iterable[Inode]:
    for entry in directory.entries.values():
        if isinstance(entry, Directory):
            yield from _files(entry)
        else:
            yield entry
