"""Verification log files of one volume: append-only files of hashed entries.

    <volume>/hdds/<cluster>/verification/0000000000000001.log    named by its first entry
                                         0000000000008211.log    the current file

An entry is durable when `append` returns. If a power failure left a partial last line, the next
start truncates it and logs that. If the current file is full, or its end is invalid, the log
continues in a new file, whose first entry has the hash of the last entry.

Errors of the log are not raised, because no scan, repair or delete may fail only because the log
has no space. The next entry then contains the number of missing entries. Nothing is written until
the end of the log is known. Otherwise, two entries could follow the same entry, and the log would
prove nothing.
"""

import errno
import hashlib
import os
import stat
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import structlog

from agent.store.verification_log.chain import (
    ENTRY_BYTES_MAX,
    GENESIS,
    EntryKind,
    Head,
    LogEntry,
    decode,
    encode,
    file_name,
    first_number_of,
)
from suture.errors import SutureError
from suture.runtime.durable import (
    DIRECTORY_MODE,
    FILE_MODE,
    NO_FILE,
    disk_errors,
    open_file,
    remove_file,
    sync_directory,
    write_all,
)

_NOT_THERE: Final = NO_FILE | {errno.ENOENT, errno.EISDIR}

COMMAND_FIELDS: Final = ("task", "command_id")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Heads:
    """Current head of a log, and the head at the end of the last file that is no longer written.

    A head is the number of entries and the hash of the last one. `missed_count` is the number of
    entries that could not be written since the last written entry.
    """

    now: Head
    closed: Head
    missed_count: int


@dataclass(frozen=True, slots=True)
class _Tail:
    """End of a log file: the head after its complete entries, and the bytes after these entries."""

    head: Head
    whole_bytes: int
    torn: bytes = b""
    is_known: bool = True  # False if the end of the file is invalid; it is not changed


@dataclass(eq=False)
class VerificationLog:
    """Appends entries to the log of one volume. Thread-safe.

    The constructor finds the end of the log, and truncates a partial line. `about` identifies the
    log at the start of each file. Files whose entries are all older than `keep_ms` are removed. If
    `keep_ms` is 0, no file is removed.
    """

    directory: Path
    about: Mapping[str, object]
    _: KW_ONLY
    now_ms: Callable[[], int]
    keep_ms: int
    file_bytes_max: int

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._missed_count = 0
        self._name = ""  # name of the current file; "" if the next entry begins one
        self._size_bytes = 0
        self._head = Head()
        self._closed = Head()
        self._is_open = False  # whether the end of the log is known
        self.upgraded_at_ms = 0
        try:
            with disk_errors(self.directory):
                self._open()
        except SutureError as error:
            self._miss(error)

    @property
    def heads(self) -> Heads:
        """Current heads of the log. All entries up to them are durable."""
        with self._lock:
            return Heads(self._head, self._closed, self._missed_count)

    def append(self, kind: EntryKind, facts: Mapping[str, object]) -> None:
        """Append a durable entry with these facts.

        The entry also has the time, and the command that this thread executes. If that fails, count
        the entry as missing instead of raising an error.
        """
        with self._lock:
            try:
                with disk_errors(self.directory):
                    if not self._is_open:
                        self._open()
                    self._append(kind, {**facts, **_on_behalf()})
            except SutureError as error:
                self._miss(error)

    # -- the lock is held, or the object is not shared yet

    def _open(self) -> None:
        """Find the end of the log, and truncate a partial line.

        If this fails, the next `append` tries again.
        """
        names = self._files()
        self._find_end(names)
        self._is_open = True
        self._note_version(names)

    def _find_end(self, names: Sequence[str]) -> None:
        tails = [tail_of(self.directory / name) for name in names[-2:]]
        if not tails:
            return
        tail = tails[-1]
        if len(tails) > 1:
            self._closed = tails[0].head
        self._head = tail.head if tail.whole_bytes else self._closed
        if not tail.is_known:
            return
        if not tail.whole_bytes and self._head.count + 1 != first_number_of(names[-1]):
            self._head = Head(first_number_of(names[-1]))  # earlier entries are missing
            return
        self._name, self._size_bytes = names[-1], tail.whole_bytes
        if tail.torn:
            self._cut(self.directory / self._name, tail.whole_bytes)
            facts = {"bytes": len(tail.torn), "sha256": _sha256(tail.torn)}
            self._append(EntryKind.TORN, facts)

    def _note_version(self, names: Sequence[str]) -> None:
        """Begin a new file if another version of the agent wrote the last one.

        Each file names the version that writes it. Also record the time since which this version
        has written the log.
        """
        own = self.about.get("software")
        if not self._name or not self._size_bytes or not own:
            return
        introduced = [first_facts(self.directory / name) for name in reversed(names)]
        if introduced[0].get("kind") == EntryKind.FILE and introduced[0].get("software") != own:
            self._name, self._closed = "", self._head
            self._begin_file()
            introduced.insert(0, first_facts(self.directory / self._name))
        since = list(takewhile(lambda facts: facts.get("software") == own, introduced))
        if since and len(since) < len(introduced):
            at_ms = since[-1].get("at_ms")
            self.upgraded_at_ms = at_ms if isinstance(at_ms, int) else 0

    def _append(self, kind: EntryKind, facts: Mapping[str, object]) -> None:
        if self._name and self._size_bytes >= self.file_bytes_max:
            self._name, self._closed = "", self._head
        if not self._name:
            self._begin_file()
        elif not self._size_bytes:  # the last process was killed before its first entry
            self._introduce()
        told: dict[str, object] = {"at_ms": self.now_ms(), "kind": kind, **facts}
        if self._missed_count:
            told["missed"] = self._missed_count
        self._write(told)
        self._missed_count = 0

    def _begin_file(self) -> None:
        name = file_name(self._head.count + 1)
        self.directory.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        sync_directory(self.directory.parent)
        path = self.directory / name
        if os.path.lexists(path):  # a foreign object, which is kept
            path.rename(self.directory / f"{name}.aside-{self.now_ms()}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        os.close(os.open(path, flags, FILE_MODE))
        sync_directory(self.directory)
        self._name, self._size_bytes = name, 0
        self._introduce()
        self._retire()

    def _introduce(self) -> None:
        self._write({"at_ms": self.now_ms(), "kind": EntryKind.FILE, **self.about})

    def _write(self, facts: Mapping[str, object]) -> None:
        line, head = encode(self._head, facts)
        path = self.directory / self._name
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            if error.errno not in _NOT_THERE:
                raise
            return self._write_elsewhere(facts)
        try:
            if os.fstat(fd).st_size != self._size_bytes:
                return self._write_elsewhere(facts)
            try:
                write_all(fd, line, self._size_bytes)
                os.fsync(fd)
            except OSError:
                self._truncate_partial_line(fd)
                raise
        finally:
            os.close(fd)
        self._size_bytes += len(line)
        self._head = head
        return None

    def _truncate_partial_line(self, fd: int) -> None:
        """Remove the partial line after a failed write.

        If this fails, the file counts as closed, and the next `append` opens it and finds its end.
        """
        try:
            os.ftruncate(fd, self._size_bytes)
        except OSError:
            self._is_open = False

    def _write_elsewhere(self, facts: Mapping[str, object]) -> None:
        """Continue the log in a new file, because the newest file is missing or was changed.

        The agent no longer writes to the changed file, because the file is evidence of the change.
        """
        volume_id = self.about["volume_id"]
        log.error("verification_file_changed", volume_id=volume_id, file=self._name)
        self._name = ""
        self._begin_file()
        self._write(facts)

    def _retire(self) -> None:
        """Remove files whose entries are all too old, after logging this.

        All entries of a file are older than any later file. The age is measured from the current
        time, or from the start of the previous file if that is earlier. Therefore, no evidence is
        removed while the clock is years ahead by mistake.
        """
        names = self._files()
        if not self.keep_ms or len(names) < 2:
            return
        now_ms = min(self.now_ms(), first_at_ms(self.directory / names[-2]))
        old: list[str] = []
        for number, following in enumerate(names):
            age_ms = now_ms - first_at_ms(self.directory / following)
            if age_ms >= self.keep_ms:
                old = names[:number]
            elif age_ms >= 0:
                break
        if not old:
            return
        through = first_number_of(names[len(old)]) - 1
        facts = {
            "at_ms": self.now_ms(),
            "kind": EntryKind.RETIRED,
            "through": through,
            "files": len(old),
        }
        self._write(facts)
        for name in old:
            remove_file(self.directory / name)
        sync_directory(self.directory)

    def _cut(self, path: Path, size_bytes: int) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.ftruncate(fd, size_bytes)
            os.fsync(fd)
        finally:
            os.close(fd)

    def _files(self) -> list[str]:
        """Return the names of the log files that are regular files."""
        return [name for name in files_of(self.directory) if _is_file(self.directory / name)]

    def _miss(self, error: SutureError) -> None:
        self._missed_count += 1
        log.error(
            "verification_log_write_failed", volume_id=self.about["volume_id"], error=str(error)
        )


def files_of(directory: Path) -> list[str]:
    """Return the names of the files of a log, the oldest first.

    Return an empty list if the directory does not exist. Raise OSError if it cannot be listed.
    """
    try:
        return sorted(path.name for path in directory.iterdir() if first_number_of(path.name))
    except FileNotFoundError:
        return []


def tail_of(path: Path) -> _Tail:
    """Return the head of the log after the last complete entry of a file, and later bytes.

    The later bytes are those after that entry. Only the last line can be partial, because every
    earlier entry was durable before the next was written. If more of the end is invalid, another
    program has written to the file, and the result has `is_known` False. Raise OSError if the file
    cannot be read.
    """
    fd = open_file(path)
    try:
        size = os.fstat(fd).st_size
        start = max(0, size - 3 * ENTRY_BYTES_MAX)
        end = os.pread(fd, size - start, start)
    finally:
        os.close(fd)
    lines = end.splitlines(keepends=True)
    if not lines:
        return _Tail(Head(), 0)
    if (entry := _whole(lines[-1])) is not None:
        return _Tail(entry.head, size)
    before = _whole(lines[-2]) if len(lines) > 1 else None
    if before is not None:
        return _Tail(before.head, size - len(lines[-1]), lines[-1])
    if len(lines) == 1 and not start:
        return _Tail(Head(), 0, lines[-1])
    guess = next((one for one in map(_whole, reversed(lines)) if one is not None), None)
    count = first_number_of(path.name) - 1 if guess is None else guess.number
    checksum = GENESIS if guess is None else guess.checksum
    return _Tail(Head(count + len(lines), checksum), size, is_known=False)


def first_facts(path: Path) -> Mapping[str, Any]:
    """Return the facts of the first entry of a file, or an empty mapping if the entry is invalid.

    Raise OSError if the file cannot be read.
    """
    fd = open_file(path)
    try:
        line, _, _ = os.pread(fd, ENTRY_BYTES_MAX, 0).partition(b"\n")
    finally:
        os.close(fd)
    entry = decode(line)
    return {} if entry is None else entry.facts


def first_at_ms(path: Path) -> int:
    """Return the time in milliseconds of the first entry of a file.

    If the time is unknown, return a time in the far future, so that no file is removed because of a
    guess. Raise OSError if the file cannot be read.
    """
    at_ms = first_facts(path).get("at_ms")
    return at_ms if isinstance(at_ms, int) else 1 << 62


def _is_file(path: Path) -> bool:
    """Return whether the path is a regular file, and not a link or a pipe.

    Raise OSError if this cannot be determined.
    """
    return stat.S_ISREG(path.lstat().st_mode)


def _whole(line: bytes) -> LogEntry | None:
    return decode(line[:-1]) if line.endswith(b"\n") else None


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _on_behalf() -> dict[str, object]:
    """Return the ids of the command that this thread executes, and the name of the thread."""
    bound = structlog.contextvars.get_contextvars()
    named: dict[str, object] = {name: bound[name] for name in COMMAND_FIELDS if name in bound}
    return {**named, "by": threading.current_thread().name}
