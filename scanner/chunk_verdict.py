"""Decides whether a chunk with a wrong checksum is corrupt on disk.

The cause of a wrong checksum may be memory, a bus, a library or the disk. Only a fault of the disk
is corruption. Therefore, the chunk is read again, past the page cache and into another buffer, and
verified with an independent implementation (`merkle.second_checksum`):

    a repeated read is correct                        SUSPECT_HOST  the first read was wrong
    the implementations compute different values      SUSPECT_HOST  one of them is faulty
    three reads in a row have the same wrong data     CORRUPT       both implementations agree
    repeated reads return different data              SUSPECT_HOST  UNREADABLE if it recurs for long
    the device returns an error twice                 UNREADABLE

Only the range of the wrong windows is read again. The other windows match the row, so they are as
good as those of an undamaged chunk, which is read once.

Google ("Cores that don't count", HotOS 2021) and CERN ("Data integrity", 2007) found hosts that
compute wrong checksums of correct bytes. Therefore, a scan must not rely on a single computation.
"""

import errno
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from merkle.checksum import checksum_width_bytes, window_checksums, window_count, windows_verify
from merkle.checksum_columns import whole_checksums
from merkle.replica import ChecksumType, ChunkInfo
from merkle.second_checksum import witness_checksums
from scanner.finding import DamageFault, Forensic, Verdict
from scanner.forensics import explain, wrong_windows
from scanner.ports import BlockFileReader, Content

AGREEING_READS: Final = 3  # two equal bit flips are rare, three were never observed
REREADS_MAX: Final = 4  # two wrong ones confirm, a correct one clears; more if the reads differ

UNREADABLE_ERRNOS: Final = frozenset(
    {
        errno.EIO,
        errno.ENODATA,  # a medium error, as direct reads report it
        errno.EILSEQ,  # failed integrity check of the block layer
        errno.EREMOTEIO,  # the target refused
        errno.ENOLINK,  # transport to the device lost
        errno.ETIMEDOUT,
        errno.EBADMSG,  # a file system's own checksum failed
        errno.EUCLEAN,  # the file system's structure is damaged
        errno.ENXIO,
        errno.ENODEV,
    }
)

HOST_ERRNOS: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN, errno.EINTR}
)
"""Error numbers that mean that the host lacks a resource. Such an error says nothing about the
data."""

HOST_NAMES: Final = frozenset(errno.errorcode[code] for code in HOST_ERRNOS)

Windows = Callable[[ChecksumType, int, bytes | memoryview], bytes]
Former = Callable[[], Iterable[bytes]]
Verify = Callable[[ChecksumType, int, bytes, bytes | memoryview], bool]
Wholes = Callable[[Sequence[ChunkInfo]], Sequence[int]]


@dataclass(frozen=True, slots=True)
class Witnesses:
    """The two implementations of the window checksums. They must not share code.

    `quick` is a faster function that returns True if data has the given checksums; its results must
    agree with those of `primary`. `wholes` returns the expected CRC of the complete data of each
    chunk, which the caller compares with the CRC of the data that it read (`long_crcs`). The value
    is NO_WHOLE for a chunk that must be compared with `quick`. `quick` and `wholes` may be None.
    """

    primary: Windows
    second: Windows
    quick: Verify | None = None
    wholes: Wholes | None = None

    def verify(
        self,
        checksum_type: ChecksumType,
        bytes_per_checksum: int,
        expected: bytes,
        data: bytes | memoryview,
    ) -> bool:
        """Return True if `primary` computes the checksums `expected` for `data`. Scans use this
        method if `quick` is None."""
        return self.primary(checksum_type, bytes_per_checksum, data) == expected


WITNESSES: Final = Witnesses(
    primary=window_checksums,
    second=witness_checksums,
    quick=windows_verify,
    wholes=whole_checksums,
)


@dataclass(frozen=True, slots=True)
class ChunkJudgement:
    """The result of the check of one chunk, and the length and checksums of its content on disk.

    `is_disagreement` is True if the two libraries computed different checksums of the same bytes.
    `is_decided` is False if the content on disk is unknown. `is_wavering` is True if it is unknown
    because repeated reads returned different data.
    """

    verdict: Verdict
    fault: DamageFault
    evidence: str
    length_bytes: int
    window_checksums: bytes
    is_disagreement: bool = False
    is_decided: bool = True
    is_wavering: bool = False
    forensic: Forensic = Forensic.UNKNOWN
    wrong_windows: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FirstRead:
    """The length and the checksums of the data that the first read of a chunk returned. `error` is
    not None if the read failed. `data` has the bytes, if the caller still has them."""

    length_bytes: int
    window_checksums: bytes
    error: OSError | None = None
    data: Content = b""


class RepeatedError(OSError):
    """A read failure that occurred several times over a long time, so that it is not transient."""


def persistent_error(error: OSError) -> OSError:
    """Return `error` as a RepeatedError. If its errno means that the host lacks a resource, return
    `error` itself."""
    if error.errno in HOST_ERRNOS:
        return error
    return RepeatedError(error.errno, error.strerror, error.filename)


def is_lasting(stopped_because: str) -> bool:
    """Return True if a scan ended because of a read failure that may occur again.

    Return False if the host lacked a resource, the scan was stopped, or the replica changed.
    `stopped_because` is the field of the scan's outcome.
    """
    verdict, _, name = stopped_because.partition(": ")
    return verdict == Verdict.TRANSIENT and name not in HOST_NAMES


def read_failure(error: OSError) -> Verdict:
    """Return UNREADABLE if a read failed because of the device, else TRANSIENT.

    An unlisted errno is TRANSIENT, because an unknown error must not cause a repair. If such an
    error occurs again over a long time, it becomes UNREADABLE (`scanner.unreadable_verdict`).
    """
    if isinstance(error, RepeatedError):
        return Verdict.UNREADABLE
    return Verdict.UNREADABLE if error.errno in UNREADABLE_ERRNOS else Verdict.TRANSIENT


def judge_chunk(
    file: BlockFileReader,
    chunk: ChunkInfo,
    first: FirstRead,
    witnesses: Witnesses,
    former: Former = tuple,
    *,
    insists: bool = False,
) -> ChunkJudgement:
    """Read a chunk again until enough reads agree, and return whether it is corrupt.

    `first` is the result of the first read. `former` is called if the chunk is corrupt, and returns
    earlier contents at the chunk's position. If `insists` is True, earlier scans could not decide
    for a long time, and reads that never agree result in UNREADABLE. Raise OSError if a read fails
    for a transient reason.
    """
    part, seen = _wrong_part(chunk, first)
    previous = None if first.error else seen
    alike = 0 if first.error else 1
    for _ in range(REREADS_MAX):
        try:
            medium = file.reread_past_cache(part.offset, part.length_bytes)
        except OSError as error:
            if read_failure(error) is Verdict.TRANSIENT:
                raise
            return _unreadable(first.error or error, error)
        primary = witnesses.primary(chunk.checksum_type, chunk.bytes_per_checksum, medium)
        second = witnesses.second(chunk.checksum_type, chunk.bytes_per_checksum, medium)
        if primary != second:
            is_decided = part.window_checksums in (primary, second)
            return _disagreement(chunk, primary, second, is_decided=is_decided)
        if len(medium) == part.length_bytes and second == part.window_checksums:
            return _cleared(chunk, first)
        alike = alike + 1 if (len(medium), second) == previous else 1
        if alike == AGREEING_READS:
            return _corrupt(chunk, *_completed(chunk, first, part, medium, second), former)
        previous = (len(medium), second)
    return _undecided(chunk, is_final=insists)


def _wrong_part(chunk: ChunkInfo, first: FirstRead) -> tuple[ChunkInfo, tuple[int, bytes]]:
    """Return the range from the first to the last wrong window, as a chunk with its checksums in
    the row, and the length and checksums that were read there.

    Return the complete chunk if the first read was short or had no wrong window.
    """
    is_complete = len(first.data) == chunk.length_bytes
    wrong = wrong_windows(chunk, first.window_checksums) if is_complete else ()
    if not wrong:
        return chunk, (first.length_bytes, first.window_checksums)
    width, window_bytes = checksum_width_bytes(chunk.checksum_type), chunk.bytes_per_checksum
    start, end = wrong[0] * window_bytes, min((wrong[-1] + 1) * window_bytes, chunk.length_bytes)
    sums = slice(wrong[0] * width, (wrong[-1] + 1) * width)
    part = chunk._replace(
        offset=chunk.offset + start,
        length_bytes=end - start,
        window_checksums=chunk.window_checksums[sums],
    )
    return part, (part.length_bytes, first.window_checksums[sums])


def _completed(
    chunk: ChunkInfo, first: FirstRead, part: ChunkInfo, medium: Content, sums: bytes
) -> tuple[Content, bytes]:
    """Return the content of the chunk and its checksums: those of `part` from the reread (`medium`,
    `sums`), the others from the first read. Nothing follows a reread that is short."""
    if part is chunk:
        return medium, sums
    width, is_whole = checksum_width_bytes(chunk.checksum_type), len(medium) == part.length_bytes
    start = part.offset - chunk.offset
    end = start + part.length_bytes if is_whole else chunk.length_bytes
    index = start // chunk.bytes_per_checksum * width
    rest = first.window_checksums[index + len(sums) :] if is_whole else b""
    all_sums = first.window_checksums[:index] + sums + rest
    if bytes(medium) == bytes(first.data[start:end]):
        return first.data, all_sums
    return b"".join((first.data[:start], medium, first.data[end:])), all_sums


def _corrupt(chunk: ChunkInfo, medium: Content, sums: bytes, former: Former) -> ChunkJudgement:
    if not medium:
        fault, evidence = (
            DamageFault.CHUNK_MISSING,
            f"the file ends at or before byte {chunk.offset}",
        )
    elif len(medium) < chunk.length_bytes:
        fault = DamageFault.CHUNK_SHORT
        evidence = f"the file ends after {len(medium)} of {chunk.length_bytes} bytes"
    else:
        fault, evidence = DamageFault.CHUNK_CHECKSUM, describe_windows(chunk, sums)
    explained = explain(chunk, medium, sums, former=former() if medium else ())
    return ChunkJudgement(
        Verdict.CORRUPT,
        fault,
        f"{evidence}; {explained.words}" if explained.words else evidence,
        len(medium),
        sums,
        forensic=explained.forensic,
        wrong_windows=explained.wrong_windows,
    )


def _cleared(chunk: ChunkInfo, first: FirstRead) -> ChunkJudgement:
    if first.error is not None:
        why = f"the first read failed ({name_of(first.error)})"
    elif first.length_bytes != chunk.length_bytes:
        why = f"the first read gave {first.length_bytes} of {chunk.length_bytes} bytes"
    elif first.window_checksums == chunk.window_checksums:
        why = "the checksum of the whole was wrong although that of every window is right"
    else:
        count, index, expected, actual = _differing(chunk, first.window_checksums)
        why = f"the first read had {count} wrong windows, window {index}: {expected} was {actual}"
    return ChunkJudgement(
        Verdict.SUSPECT_HOST,
        DamageFault.CHUNK_CHECKSUM if first.error is None else DamageFault.CHUNK_UNREADABLE,
        f"{why}; read again, the medium verifies with both libraries",
        chunk.length_bytes,
        chunk.window_checksums,
    )


def _disagreement(
    chunk: ChunkInfo, primary: bytes, second: bytes, *, is_decided: bool
) -> ChunkJudgement:
    return ChunkJudgement(
        Verdict.SUSPECT_HOST,
        DamageFault.CHUNK_CHECKSUM,
        f"two {chunk.checksum_type.name} libraries disagree on the same bytes: "
        f"{_short(primary)} and {_short(second)}",
        chunk.length_bytes,
        chunk.window_checksums,
        is_disagreement=True,
        is_decided=is_decided,
    )


def _undecided(chunk: ChunkInfo, *, is_final: bool) -> ChunkJudgement:
    """Return the result for a chunk whose reads never agree: UNREADABLE if `is_final` is True, else
    undecided."""
    told = f"{REREADS_MAX + 1} reads, none verifies and no {AGREEING_READS} in a row agree"
    if is_final:
        told = f"{told}, as in scans before"
        return ChunkJudgement(Verdict.UNREADABLE, DamageFault.CHUNK_UNREADABLE, told, 0, b"")
    return ChunkJudgement(
        Verdict.SUSPECT_HOST,
        DamageFault.CHUNK_CHECKSUM,
        told,
        chunk.length_bytes,
        chunk.window_checksums,
        is_decided=False,
        is_wavering=True,
    )


def _unreadable(first: OSError, second: OSError) -> ChunkJudgement:
    return ChunkJudgement(
        Verdict.UNREADABLE,
        DamageFault.CHUNK_UNREADABLE,
        f"read failed with {name_of(first)}, then with {name_of(second)}",
        0,
        b"",
    )


def describe_windows(chunk: ChunkInfo, sums: bytes) -> str:
    """Return a text with the number of wrong windows, and the expected and actual checksum of the
    first one."""
    count, index, expected, actual = _differing(chunk, sums)
    total = window_count(chunk.length_bytes, chunk.bytes_per_checksum)
    return (
        f"{count} of {total} windows differ; window {index} at byte "
        f"{chunk.offset + index * chunk.bytes_per_checksum}: expected {expected}, actual {actual}"
    )


def _differing(chunk: ChunkInfo, sums: bytes) -> tuple[int, int, str, str]:
    """Compare the window checksums `sums` with the stored ones.

    Return the number of wrong windows, and of the first wrong window its index, its expected
    checksum and its actual checksum, both hexadecimal. If no window is wrong, the numbers are 0 and
    the checksums are "".
    """
    width = checksum_width_bytes(chunk.checksum_type)
    expected = chunk.window_checksums
    starts = [
        start
        for start in range(0, max(len(expected), len(sums)), width or 1)
        if expected[start : start + width] != sums[start : start + width]
    ]
    if not starts:
        return 0, 0, "", ""
    first = slice(starts[0], starts[0] + width)
    return len(starts), starts[0] // width, expected[first].hex(), sums[first].hex()


def name_of(error: OSError) -> str:
    """Return the symbol of an error's errno, for instance "EIO", which an operator can search
    for."""
    name = errno.errorcode.get(error.errno or 0, f"errno {error.errno}")
    return f"{name}, as again and again before" if isinstance(error, RepeatedError) else name


def _short(sums: bytes) -> str:
    return sums[:8].hex() + ("..." if len(sums) > 8 else "")
