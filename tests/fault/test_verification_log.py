"""Power cuts and kills while the verification log is written: no acknowledged entry is lost."""

import errno
import os
import shutil
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

import pytest

from agent.store.verification_log import log_files as log_module
from agent.store.verification_log.chain import ChainFault, EntryKind, Head, check, entries
from agent.store.verification_log.log_files import VerificationLog, files_of
from agent.store.verification_log.log_reader import read_log
from tests.support.faults.store_victim import StepCounter, lived
from tests.support.heard import logged

pytestmark = pytest.mark.fault

ABOUT: Final = {"cluster_id": "c", "datanode_id": "d", "volume_id": "v", "software": "0"}
FILE_BYTES: Final = 900  # some three entries
SECTOR_BYTES: Final = 512
DAY_MS: Final = 86_400_000


@dataclass
class Time:
    """The wall clock of a test."""

    ms: int = 1_700_000_000_000

    def now_ms(self) -> int:
        """Return it."""
        return self.ms


def opened(
    path: Path, time: Time | None = None, *, keep_ms: int = 0, file_bytes: int = FILE_BYTES
) -> VerificationLog:
    """Open a log as a volume does."""
    now_ms = (time or Time()).now_ms
    return VerificationLog(path, ABOUT, now_ms=now_ms, keep_ms=keep_ms, file_bytes_max=file_bytes)


def told(path: Path) -> list[object]:
    """Return what the deletes in a log name, in order."""
    files = read_log(path)
    return [one.facts["what"] for one in entries(files) if one.facts["kind"] == EntryKind.DELETE]


def write(path: Path, count: int, time: Time | None = None, *, keep_ms: int = 0) -> VerificationLog:
    """Write entries that have numbers; return the log."""
    log = opened(path, time, keep_ms=keep_ms)
    for number in range(count):
        log.append(EntryKind.DELETE, {"what": number})
    return log


def refuse_cuts(patch: pytest.MonkeyPatch, code: int) -> None:
    """Have no file cut off: the disk takes no change."""

    def refuse(_fd: int, _size_bytes: int) -> None:
        raise OSError(code, os.strerror(code))

    patch.setattr(os, "ftruncate", refuse)


class TestKill:
    """A process that dies before any step of an append, or in the middle of its write."""

    @pytest.mark.parametrize("tear", [False, True])
    def test_killed_appends_keep_acknowledged_entries_and_the_chain(
        self, tmp_path: Path, tear: bool
    ) -> None:
        """The process is killed before every step of appends that begin three files."""

        def body(kill_at: int, path: Path, log_fd: int) -> None:
            log = opened(path)
            counter = StepCounter(log_fd, kill_at, tear=tear)
            for number in range(9):
                sys.setprofile(counter.see)
                log.append(EntryKind.DELETE, {"what": number})
                sys.setprofile(None)
                counter.log(f"ack {number}")

        kill_at, died = 0, True
        while died:
            kill_at += 1
            path = tmp_path / f"{kill_at}"
            end = lived(partial(body, kill_at, path))
            died = end["signal"] != 0
            opened(path).append(EntryKind.DELETE, {"what": "later"})

            assert check(read_log(path)).gap is None
            numbers = told(path)
            assert numbers[-1] == "later"
            acknowledged = [int(word) for word in end["acknowledged"]]
            assert acknowledged == numbers[: len(acknowledged)]
            assert len(numbers) - 1 - len(acknowledged) in {0, 1}
        assert kill_at > 20, "few steps were seen: this proves little"


class TestPowerCut:
    """What a write that was not synced leaves of the last line."""

    def test_any_part_of_the_last_line_is_recognised(self, tmp_path: Path) -> None:
        """Cut at each byte, and with zeros in the place of each sector."""
        write(tmp_path / "whole", 2)
        [name] = files_of(tmp_path / "whole")
        content = (tmp_path / "whole" / name).read_bytes()
        start = content.rfind(b"\n", 0, -1) + 1
        torn = [content[:end] for end in range(start + 1, len(content))]
        first = start // SECTOR_BYTES * SECTOR_BYTES
        for at in range(first, len(content), SECTOR_BYTES):
            low, high = max(at, start), min(at + SECTOR_BYTES, len(content))
            torn.append(content[:low] + bytes(high - low) + content[high:])

        for number, left in enumerate(torn):
            path = tmp_path / str(number)
            path.mkdir()
            (path / name).write_bytes(left)
            opened(path, file_bytes=10**6).append(EntryKind.DELETE, {"what": "later"})

            files = read_log(path)
            assert check(files).gap is None
            kinds = [one.facts["kind"] for one in entries(files)]
            assert [EntryKind.FILE, EntryKind.DELETE, EntryKind.TORN, EntryKind.DELETE] == kinds
            assert [0, "later"] == told(path)

    def test_a_first_line_that_is_torn_is_the_first_again(self, tmp_path: Path) -> None:
        """This holds for the second file as well: the chain continues where the first one ends."""
        log = write(tmp_path, 9)
        name = files_of(tmp_path)[-1]
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content[:40])
        count = int(name.removesuffix(".log")) - 1

        opened(tmp_path).append(EntryKind.DELETE, {"what": "later"})

        assert check(read_log(tmp_path)).gap is None
        assert count < log.heads.now.count

    def test_more_than_a_torn_line_is_not_mended(self, tmp_path: Path) -> None:
        """Two bad lines are not the result of a power cut. They stay and are named, and the log
        continues.
        """
        log = opened(tmp_path, file_bytes=10**6)
        for number in range(5):
            log.append(EntryKind.DELETE, {"what": number})
        [name] = files_of(tmp_path)
        lines = (tmp_path / name).read_bytes().splitlines(keepends=True)
        damaged = [*lines[:-2], *(line.replace(b'"what"', b'"That"') for line in lines[-2:])]
        (tmp_path / name).write_bytes(b"".join(damaged))

        opened(tmp_path).append(EntryKind.DELETE, {"what": "later"})

        assert b"".join(damaged) == (tmp_path / name).read_bytes()
        gap = check(read_log(tmp_path)).gap
        assert gap is not None
        assert (ChainFault.EDITED, 5, name, 5) == (gap.fault, gap.number, gap.file, gap.line)
        assert told(tmp_path)[-1] == "later"


class TestWhatGoesWrong:
    """A log that cannot be written fails nobody, and says what it lacks."""

    def test_a_full_disk_is_told_by_the_next_entry(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Half a line is taken back; how many are missing is in the chain."""
        log = write(tmp_path, 1)

        def full(fd: int, data: bytes, offset: int) -> None:
            os.pwrite(fd, data[:50], offset)
            raise OSError(errno.ENOSPC, "no space")

        with monkeypatch.context() as patch:
            patch.setattr(log_module, "write_all", full)
            log.append(EntryKind.DELETE, {"what": "lost"})
            log.append(EntryKind.DELETE, {"what": "lost"})
        missed_count = log.heads.missed_count
        log.append(EntryKind.DELETE, {"what": "later"})

        assert missed_count == 2
        assert log.heads.missed_count == 0
        files = read_log(tmp_path)
        assert check(files).gap is None
        assert [0, "later"] == told(tmp_path)
        assert list(entries(files))[-1].facts["missed"] == 2

    def test_a_file_that_was_changed_under_it_is_left_and_named(self, tmp_path: Path) -> None:
        """The chain goes on from what was written, so the change is not covered up."""
        log = opened(tmp_path, file_bytes=10**6)
        for number in range(4):
            log.append(EntryKind.DELETE, {"what": number})
        [name] = files_of(tmp_path)
        lines = (tmp_path / name).read_bytes().splitlines(keepends=True)
        (tmp_path / name).write_bytes(b"".join(lines[:-1]))

        log.append(EntryKind.DELETE, {"what": "later"})

        gap = check(read_log(tmp_path)).gap
        assert gap is not None
        assert (ChainFault.REMOVED, len(lines)) == (gap.fault, gap.number)

    @pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO, errno.EACCES])
    def test_an_end_that_could_not_be_read_is_read_later(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
    ) -> None:
        """One failed read at a start must not begin a new chain in place of one of years."""
        write(tmp_path, 9)
        before = {name: (tmp_path / name).read_bytes() for name in files_of(tmp_path)}
        real = log_module.open_file

        def refuse(path: Path) -> int:
            raise OSError(code, os.strerror(code), str(path))

        monkeypatch.setattr(log_module, "open_file", refuse)
        log = opened(tmp_path)
        log.append(EntryKind.DELETE, {"what": "missed"})
        assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        monkeypatch.setattr(log_module, "open_file", real)

        log.append(EntryKind.DELETE, {"what": "later"})

        assert check(read_log(tmp_path)).gap is None
        assert [*range(9), "later"] == told(tmp_path)
        assert [] == [path for path in tmp_path.iterdir() if ".aside-" in path.name]
        last = list(entries(read_log(tmp_path)))[-1]
        assert last.facts["missed"] >= 1
        assert (last.head, 0) == (log.heads.now, log.heads.missed_count)

    @pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.EIO])
    def test_a_torn_line_that_could_not_be_cut_off_is_cut_off_later(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
    ) -> None:
        """A power cut must not read as tampering for ever because the first start met a disk that
        took no change."""
        write(tmp_path, 9)
        newest = tmp_path / files_of(tmp_path)[-1]
        newest.write_bytes(newest.read_bytes() + b"deadbeef {torn")
        before = newest.read_bytes()
        with monkeypatch.context() as patch:
            refuse_cuts(patch, code)
            log = opened(tmp_path, file_bytes=10**6)
            log.append(EntryKind.DELETE, {"what": "missed"})
        assert before == newest.read_bytes()

        log.append(EntryKind.DELETE, {"what": "later"})

        files = read_log(tmp_path)
        assert check(files).gap is None
        assert [EntryKind.TORN, EntryKind.DELETE] == [one.facts["kind"] for one in entries(files)][
            -2:
        ]
        assert [*range(9), "later"] == told(tmp_path)
        assert list(entries(files))[-1].head == log.heads.now

    def test_half_a_line_that_could_not_be_taken_back_is_taken_back_later(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A file system that becomes read-only during a write, and is mounted again, is no
        manipulation.
        """
        log = write(tmp_path, 1)

        def torn(fd: int, data: bytes, offset: int) -> None:
            os.pwrite(fd, data[:50], offset)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        with monkeypatch.context() as patch:
            patch.setattr(log_module, "write_all", torn)
            refuse_cuts(patch, errno.EROFS)
            log.append(EntryKind.DELETE, {"what": "lost"})

        log.append(EntryKind.DELETE, {"what": "later"})

        files = read_log(tmp_path)
        assert check(files).gap is None
        assert [0, "later"] == told(tmp_path)
        assert EntryKind.TORN in [one.facts["kind"] for one in entries(files)]
        assert 0 == log.heads.missed_count

    def test_an_old_file_that_cannot_be_read_keeps_nothing_from_being_logged(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Only the newest file decides where the log ends, so a bad sector in an old one must
        not end the log.
        """
        write(tmp_path, 9)
        oldest, real = files_of(tmp_path)[0], log_module.open_file

        def refuse(path: Path) -> int:
            if path.name == oldest:
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            return real(path)

        with monkeypatch.context() as patch:
            patch.setattr(log_module, "open_file", refuse)
            log = opened(tmp_path)
            log.append(EntryKind.DELETE, {"what": "later"})

        assert [*range(9), "later"] == told(tmp_path)
        assert 0 == log.heads.missed_count

    def test_a_link_in_the_place_of_the_newest_file_begins_no_other_chain(
        self, tmp_path: Path
    ) -> None:
        """The files before it are the log still, and the first of them is its only beginning."""
        write(tmp_path, 9)
        names = files_of(tmp_path)
        first = (tmp_path / names[0]).read_bytes()
        (tmp_path / names[-1]).unlink()
        (tmp_path / names[-1]).symlink_to("/etc/passwd")

        opened(tmp_path).append(EntryKind.DELETE, {"what": "later"})

        assert first == (tmp_path / names[0]).read_bytes()
        assert names == files_of(tmp_path)
        assert "later" == told(tmp_path)[-1]

    @pytest.mark.parametrize("keep_ms", [0, DAY_MS])
    @pytest.mark.parametrize("left", ["nothing", "link", "pipe", "directory", "no log at all"])
    def test_a_newest_file_that_is_gone_is_followed_by_another(
        self, tmp_path: Path, left: str, keep_ms: int
    ) -> None:
        """Later entries are logged at once, and the missing file is reported."""
        path = tmp_path / "log"
        log = write(path, 9, keep_ms=keep_ms)
        before, newest = log.heads.now, path / files_of(path)[-1]
        newest.unlink()
        match left:
            case "link":
                newest.symlink_to("/dev/null")
            case "pipe":
                os.mkfifo(newest)
            case "directory":
                newest.mkdir()
            case "no log at all":
                shutil.rmtree(path)

        with logged() as said:
            log.append(EntryKind.DELETE, {"what": "later"})
            log.append(EntryKind.DELETE, {"what": "last"})

        assert ["verification_file_changed"] == [line["event"] for line in said]
        if os.path.lexists(
            newest
        ):  # what stands in its place is left there, and named by who reads
            with pytest.raises(FileNotFoundError, match="is in its place"):
                read_log(path)
            newest.rename(tmp_path / "aside")
        assert ["later", "last"] == told(path)[-2:]
        assert before.count + 3 == log.heads.now.count, "a file's first entry, and two"
        assert 0 == log.heads.missed_count
        assert ChainFault.REMOVED is getattr(check(read_log(path)).gap, "fault", None)


class TestFiles:
    """Files follow each other, and old ones go."""

    def test_the_chain_goes_on_across_files_and_starts(self, tmp_path: Path) -> None:
        """Each file begins by saying whose log it is."""
        for start in range(5):
            write(tmp_path, 3)
            assert check(read_log(tmp_path)).gap is None, start

        files = read_log(tmp_path)
        assert len(files) > 3
        assert all(next(entries([file])).facts["kind"] == EntryKind.FILE for file in files)
        assert list(range(3)) * 5 == told(tmp_path)

    def test_closed_log_file_has_a_head_to_anchor(self, tmp_path: Path) -> None:
        """The head of a full file can be anchored, also after a restart."""
        log = write(tmp_path, 9)
        names = files_of(tmp_path)
        end = int(names[-1].removesuffix(".log")) - 1

        assert end == log.heads.closed.count
        assert log.heads.closed == opened(tmp_path).heads.closed
        assert check(read_log(tmp_path), [log.heads.closed, log.heads.now]).gap is None

    def test_files_that_are_too_old_go_and_the_log_tells_so(self, tmp_path: Path) -> None:
        """All whose every entry is; then it is whole without them."""
        time = Time()
        log = opened(tmp_path, time, keep_ms=10 * DAY_MS)
        for day in range(40):
            log.append(EntryKind.DELETE, {"what": day})
            time.ms += DAY_MS

        checked = check(read_log(tmp_path), [log.heads.now])
        days = told(tmp_path)
        assert checked.gap is None
        assert checked.first > 1
        assert list(range(min(map(int, map(str, days))), 40)) == days
        assert 10 <= len(days) < 20

    def test_a_clock_that_is_ahead_for_a_while_takes_nothing_away(self, tmp_path: Path) -> None:
        """Evidence cannot be had again; a clock is set right within minutes."""
        time = Time()
        log = opened(tmp_path, time, keep_ms=365 * DAY_MS)
        for day in range(20):
            log.append(EntryKind.DELETE, {"what": day})
        begun = len(files_of(tmp_path))
        time.ms += 2_000 * DAY_MS
        while len(files_of(tmp_path)) == begun:
            log.append(EntryKind.DELETE, {"what": 20})
        time.ms -= 2_000 * DAY_MS
        begun = len(files_of(tmp_path))
        while len(files_of(tmp_path)) < begun + 2:
            log.append(EntryKind.DELETE, {"what": 20})

        assert begun + 2 == len(files_of(tmp_path))
        assert list(range(20)) == told(tmp_path)[:20]

    @pytest.mark.parametrize("begun", ["ahead", "nowhere"])
    def test_a_file_that_says_not_when_it_began_keeps_no_older_one(
        self, tmp_path: Path, begun: str
    ) -> None:
        """A file from an hour with the clock ten years ahead, or with a damaged first line, must
        not prevent the deletion of old files.
        """
        time = Time()
        log = opened(tmp_path, time, keep_ms=10 * DAY_MS)
        for day in range(5):
            log.append(EntryKind.DELETE, {"what": day})
            time.ms += DAY_MS
        before = files_of(tmp_path)
        time.ms += 3_650 * DAY_MS
        while files_of(tmp_path) == before:
            log.append(EntryKind.DELETE, {"what": 5})
        time.ms -= 3_650 * DAY_MS
        if begun == "nowhere":
            newest = tmp_path / files_of(tmp_path)[-1]
            newest.write_bytes(b"x" + newest.read_bytes()[1:])

        counts = []
        for day in range(5, 60):
            log.append(EntryKind.DELETE, {"what": day})
            counts.append(len(files_of(tmp_path)))
            oldest = int(str(told(tmp_path)[0]))
            assert day - oldest >= min(day, 10), "what is to be kept is gone"
            time.ms += DAY_MS

        days = [int(str(day)) for day in told(tmp_path)]
        assert max(counts) < 12
        assert check(read_log(tmp_path)).gap is None
        assert list(range(min(days), 60)) == days
        assert 10 <= len(days) < 20

    def test_a_clock_that_is_behind_for_a_while_takes_nothing_away(self, tmp_path: Path) -> None:
        """A machine that begins in 1970 and learns the time later loses none of its evidence."""
        time = Time()
        log = opened(tmp_path, time, keep_ms=10 * DAY_MS)
        for day in range(6):
            log.append(EntryKind.DELETE, {"what": day})
            time.ms += DAY_MS
        before, now_ms = files_of(tmp_path), time.ms
        time.ms = 0
        while files_of(tmp_path) == before:
            log.append(EntryKind.DELETE, {"what": 6})
        time.ms = now_ms
        begun = len(files_of(tmp_path))
        while len(files_of(tmp_path)) < begun + 2:
            log.append(EntryKind.DELETE, {"what": 7})

        assert begun + 2 == len(files_of(tmp_path))
        assert list(range(6)) == told(tmp_path)[:6]

    def test_old_files_that_somebody_removed_are_missed(self, tmp_path: Path) -> None:
        """No entry of the log announced their removal."""
        write(tmp_path, 12)
        (tmp_path / files_of(tmp_path)[0]).unlink()

        gap = check(read_log(tmp_path)).gap

        assert gap is not None
        assert gap.fault is ChainFault.REMOVED

    def test_an_anchor_behind_the_end_shows_what_was_cut_off(self, tmp_path: Path) -> None:
        """Whole entries that are gone from the end leave a chain that holds."""
        log = write(tmp_path, 6)
        anchor = log.heads.now
        name = files_of(tmp_path)[-1]
        lines = (tmp_path / name).read_bytes().splitlines(keepends=True)
        (tmp_path / name).write_bytes(b"".join(lines[:-1]))

        assert check(read_log(tmp_path)).gap is None
        gap = check(read_log(tmp_path), [anchor, Head(1, Random(1).randbytes(32).hex())]).gap
        assert gap is not None
