"""Putting chunks in their place on a volume of Ozone, and ending what was cut off."""

import errno
import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from agent.store.files import blockfile
from agent.store.index.rows import InstallEntry
from agent.store.operations import overwrite
from merkle.checksum import crc32c
from merkle.replica import BlockId, ContainerId
from ozone.repair import installation
from ozone.repair.installation import Installer
from ozone.repair.journal import Journal, RepairJournalEntry, decode_entry
from suture.errors import BlockFailed, Code, RefusedError, UnavailableError
from tests.support.faults.flips import failing_memory
from tests.support.ozone.ozone_victim import (
    BLOCK,
    CHUNK_BYTES,
    PARTS,
    WHOLE,
    chunk_of,
    file_of,
    installer,
    old_bytes,
    paths_of,
    prepare,
)


def entry_of(
    path: Path, *, kept: str = "", old_length_bytes: int = len(WHOLE)
) -> RepairJournalEntry:
    """Return the journal of the middle chunk."""
    return RepairJournalEntry(
        container_id=ContainerId(1),
        block_id=BLOCK,
        path=file_of(path),
        chunk=chunk_of(1),
        data_checksum=crc32c(PARTS[1]),
        old_length_bytes=old_length_bytes,
        quarantine=kept,
        pending=False,
    )


def begun(path: Path, entry: RepairJournalEntry) -> Installer:
    """Return an installer that finds an entry of an earlier one."""
    one = installer(path)
    Journal(path / "state" / "DS-1" / "journal").begin(entry)
    return one


def test_bytes_that_are_not_the_rows_are_refused(tmp_path: Path) -> None:
    """Nothing is changed or kept, whoever offers the bytes."""
    prepare(tmp_path, "flipped")

    with pytest.raises(RefusedError, match="not match the local row") as refused:
        installer(tmp_path).install(paths_of(tmp_path), BLOCK, chunk_of(1), PARTS[2])

    assert Code.CHECKSUM_MISMATCH is refused.value.code
    assert old_bytes("flipped") == file_of(tmp_path).read_bytes()


def test_bytes_that_verify_are_not_written_over(tmp_path: Path) -> None:
    """A chunk repaired meanwhile is left alone, and its file is not opened for writing."""
    prepare(tmp_path, "flipped")
    before = file_of(tmp_path).stat().st_mtime_ns

    assert not installer(tmp_path).install(paths_of(tmp_path), BLOCK, chunk_of(2), PARTS[2])

    assert before == file_of(tmp_path).stat().st_mtime_ns


def test_replaced_bytes_are_kept_in_quarantine(tmp_path: Path) -> None:
    """The damaged bytes are stored there with their origin."""
    prepare(tmp_path, "flipped")
    one = installer(tmp_path)

    one.install(paths_of(tmp_path), BLOCK, chunk_of(1), PARTS[1])

    (kept,) = one.quarantine.glob("*.bytes")
    assert (old_bytes("flipped") or b"")[CHUNK_BYTES : 2 * CHUNK_BYTES] == kept.read_bytes()


def test_no_hole_is_made(tmp_path: Path) -> None:
    """
    A chunk behind one that is missing waits for it.
    """
    prepare(tmp_path, "short")

    with pytest.raises(RefusedError) as refused:
        installer(tmp_path).install(paths_of(tmp_path), BLOCK, chunk_of(2), PARTS[2])

    assert Code.CHUNK_GAP is refused.value.code
    assert old_bytes("short") == file_of(tmp_path).read_bytes()


def test_bytes_that_do_not_arrive_are_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A disk that loses a write: the old bytes are back, and nothing is left to be ended.
    """
    prepare(tmp_path, "flipped")
    one, write = installer(tmp_path), blockfile.overwrite

    def loses_the_first(path: Path, data: bytes, offset: int) -> None:
        monkeypatch.setattr(blockfile, "overwrite", write)
        write(path, data[:-1] + b"?", offset)

    monkeypatch.setattr(blockfile, "overwrite", loses_the_first)
    with pytest.raises(BlockFailed, match="read back differ"):
        one.install(paths_of(tmp_path), BLOCK, chunk_of(1), PARTS[1])

    assert old_bytes("flipped") == file_of(tmp_path).read_bytes()
    assert [] == one.unfinished()


def test_chunk_corrupted_in_memory_is_restored_from_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host with a bad DIMM takes whole bytes for damaged. The repair must not make Ozone's
    file worse.
    """
    prepare(tmp_path, "flipped")
    file_of(tmp_path).write_bytes(WHOLE)
    one = installer(tmp_path)

    with monkeypatch.context() as bad:
        failing_memory(bad)
        with pytest.raises(BlockFailed, match="read back differ"):
            one.install(paths_of(tmp_path), BLOCK, chunk_of(1), PARTS[1])

    assert WHOLE == file_of(tmp_path).read_bytes()
    assert [] == one.unfinished()


def test_a_copy_that_reads_otherwise_each_time_is_not_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes spoiled by memory are kept and reported."""
    prepare(tmp_path, "flipped")
    one, reads = installer(tmp_path), iter(range(100))
    monkeypatch.setattr(overwrite, "read_file", lambda *_, **__: bytes([next(reads)]) * CHUNK_BYTES)
    monkeypatch.setattr(installation, "check_arrived", refuses)

    with pytest.raises(BlockFailed, match="each read returns different bytes"):
        one.install(paths_of(tmp_path), BLOCK, chunk_of(1), PARTS[1])

    assert WHOLE == file_of(tmp_path).read_bytes()
    assert 1 == len(one.unfinished())
    assert 1 == len(list(one.quarantine.glob("*.bytes")))


def refuses(_path: Path, _entries: Sequence[InstallEntry]) -> None:
    """Find that nothing arrived."""
    raise BlockFailed(Code.IO_EXCEPTION, "read back differ")


def test_recovery_keeps_a_chunk_that_was_fully_written(tmp_path: Path) -> None:
    """The kill came between the write and the end of the journal."""
    prepare(tmp_path, "flipped")
    file_of(tmp_path).write_bytes(WHOLE)
    one = begun(tmp_path, entry_of(tmp_path, kept="gone"))

    assert 1 == one.recover()

    assert WHOLE == file_of(tmp_path).read_bytes()


def test_recovery_does_not_recreate_a_deleted_block_file(tmp_path: Path) -> None:
    """Ozone deleted the block after the kill. Recovery ends the journal entry and creates no
    file.
    """
    prepare(tmp_path, "flipped")
    file_of(tmp_path).unlink()
    one = begun(tmp_path, entry_of(tmp_path, kept="gone"))

    one.recover()

    assert not file_of(tmp_path).exists()
    assert [] == one.unfinished()


def test_recovery_does_not_truncate_bytes_written_since(tmp_path: Path) -> None:
    """Ozone's own reconcile extended the file after the kill."""
    prepare(tmp_path, "short")
    damaged = WHOLE[:CHUNK_BYTES] + b"?" * CHUNK_BYTES + PARTS[2]
    file_of(tmp_path).write_bytes(damaged)
    one = begun(tmp_path, entry_of(tmp_path, old_length_bytes=CHUNK_BYTES + 500))

    one.recover()

    assert damaged == file_of(tmp_path).read_bytes()


def test_a_journal_of_another_version_stops_everything(tmp_path: Path) -> None:
    """An unknown journal is not interpreted."""
    data = entry_of(tmp_path).encode()
    assert entry_of(tmp_path) == decode_entry(data, "journal")
    prepare(tmp_path, "flipped")
    one = begun(tmp_path, entry_of(tmp_path))
    (kept,) = (tmp_path / "state" / "DS-1" / "journal").iterdir()

    for garbage in (data.replace(b'"version": 1', b'"version": 2'), data[:-7], b"[]"):
        kept.write_bytes(garbage)
        with pytest.raises(RefusedError, match="as a journal of this version"):
            one.recover()


def test_a_link_in_the_place_of_the_directory_is_not_followed(tmp_path: Path) -> None:
    """
    Nothing is written where it leads.
    """
    prepare(tmp_path, "flipped")
    elsewhere = tmp_path / "elsewhere"
    paths_of(tmp_path).chunks.rename(elsewhere)
    paths_of(tmp_path).chunks.symlink_to(elsewhere)

    with pytest.raises(BlockFailed, match="is a link"):
        installer(tmp_path).install(paths_of(tmp_path), BlockId(7), chunk_of(1), PARTS[1])

    assert old_bytes("flipped") == (elsewhere / "7.block").read_bytes()


# --- what cannot be ended ------------------------------------------------------------------------


def test_old_bytes_that_are_kept_no_more_stop_no_repair(tmp_path: Path) -> None:
    """
    A person cleared the quarantine after the kill: what is there is left, the scan will judge it,
    and the message names the file that is gone.
    """
    prepare(tmp_path, "flipped")
    one = begun(tmp_path, entry_of(tmp_path, kept="1-7-20000-1"))

    one.recover()

    assert [] == one.unfinished()
    assert old_bytes("flipped") == file_of(tmp_path).read_bytes()
    (remark,) = one.remarks
    assert f"{one.quarantine / '1-7-20000-1.bytes'} is gone" in remark


def test_old_bytes_are_written_where_the_medium_gives_none_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bad sector is the one to be repaired, so its read error does not stop the repair."""
    prepare(tmp_path, "flipped")
    one = installer(tmp_path)
    kept = "1-7-20000-1"
    (one.quarantine / f"{kept}.bytes").write_bytes(b"o" * CHUNK_BYTES)
    begun(tmp_path, entry_of(tmp_path, kept=kept))

    def bad_sector(path: Path, _offset: int, _length_bytes: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(blockfile, "read_past_cache", bad_sector)
    one.recover()

    assert [] == one.unfinished()
    assert WHOLE[:CHUNK_BYTES] + b"o" * CHUNK_BYTES + PARTS[2] == file_of(tmp_path).read_bytes()
    assert "EIO" in one.remarks[0]
    assert [f"{kept}.bytes"] == [path.name for path in one.quarantine.iterdir()]


def test_unfinishable_journal_entry_is_put_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The medium rejects the write. The chunk stays damaged as it was, its journal entry is kept
    for the operator, and all other chunks of the volume are repaired.
    """
    prepare(tmp_path, "flipped")
    one = installer(tmp_path)
    kept = "1-7-20000-1"
    (one.quarantine / f"{kept}.bytes").write_bytes(b"o" * CHUNK_BYTES)
    begun(tmp_path, entry_of(tmp_path, kept=kept))
    write = blockfile.overwrite

    def bad_sector(path: Path, _data: bytes, _offset: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(blockfile, "overwrite", bad_sector)
    assert 1 == one.recover(ContainerId(1))
    monkeypatch.setattr(blockfile, "overwrite", write)

    assert [] == one.unfinished()
    (aside,) = (tmp_path / "state" / "DS-1" / "journal").iterdir()
    assert decode_entry(aside.read_bytes(), aside.name).quarantine == kept
    assert str(aside) in one.remarks[0]
    assert [f"{kept}.bytes"] == [path.name for path in one.quarantine.iterdir()]
    assert one.install(paths_of(tmp_path), BLOCK, chunk_of(1), PARTS[1])


def test_recovery_leaves_no_hole_in_a_truncated_file(tmp_path: Path) -> None:
    """The file was truncated after the kill. Recovery writes nothing behind its end."""
    prepare(tmp_path, "flipped")
    file_of(tmp_path).write_bytes(b"short")
    one = installer(tmp_path)
    (one.quarantine / "kept.bytes").write_bytes(b"o" * CHUNK_BYTES)
    begun(tmp_path, entry_of(tmp_path, kept="kept"))

    one.recover()

    assert ([], []) == (one.unfinished(), one.remarks)
    assert b"short" == file_of(tmp_path).read_bytes()


@pytest.mark.parametrize("is_own", [True, False])
def test_retryable_journal_entry_blocks_only_its_own_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_own: bool
) -> None:
    """The host is short of descriptors. The journal entry stays, and other containers are
    repaired.
    """
    prepare(tmp_path, "flipped")
    one = begun(tmp_path, entry_of(tmp_path))

    def no_descriptor(path: Path, _offset: int, _length_bytes: int) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    monkeypatch.setattr(blockfile, "read_past_cache", no_descriptor)
    with pytest.raises(UnavailableError, match="EMFILE") if is_own else nullcontext():
        one.recover(ContainerId(1 if is_own else 2))

    assert 1 == len(one.unfinished())
    assert is_own or "EMFILE" in one.remarks[0]
