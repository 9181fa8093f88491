"""Checks chunks again from recorded checksums, by the same code as a scan.

A scan reads bytes, but a bundle has only their checksums. Therefore, `RecordedMedium` returns
filler bytes for each read, and the checksum functions return the recorded checksums.
`scanner.chunk_verdict` then applies its usual rules. Facts that only the bytes show, such as
sectors of zeros, remain unknown.
"""

import errno
import re
from dataclasses import dataclass, replace
from typing import Final

from agent.cli.evidence.bundle_reading import BundledFinding, BundledMedium
from merkle.checksum import Algorithm, checksum_width_bytes, leaf_checksum
from merkle.replica import ChecksumType, ChunkInfo
from merkle.tree import Leaf
from scanner.chunk_verdict import ChunkJudgement, FirstRead, Witnesses, judge_chunk
from scanner.finding import DamageFault, Forensic, Verdict
from scanner.scan_tree import UNREADABLE_LEAF

FILLER: Final = b"\xa5"  # non-zero, so that no sector looks like a zero sector
UNKNOWN_SUMS: Final = "the sums of the windows are not in the bundle, only their fold"
WINDOWS: Final = re.compile(
    r"(\d+) of (\d+) windows differ; window (\d+) at byte (\d+): expected ([0-9a-f]*), "
    r"actual ([0-9a-f]*)"
)
FAILED_READ: Final = re.compile(r"failed with ([A-Z0-9]+)")


@dataclass(frozen=True, slots=True)
class RecordedMedium:
    """Replacement for the block file of a chunk, with the recorded length and read error.

    It implements `scanner.ports.BlockFileReader`. All its data is filler bytes.
    """

    length_bytes: int
    error: OSError | None = None

    @property
    def size_bytes(self) -> int:
        """Recorded length of the block in bytes."""
        return self.length_bytes

    def read(self, offset: int, length_bytes: int) -> memoryview:
        """Return filler bytes. If a read error was recorded, raise it."""
        return memoryview(self.reread_past_cache(offset, length_bytes))

    def reread_past_cache(self, _offset: int, length_bytes: int) -> bytes:
        """Return filler bytes. If a read error was recorded, raise it."""
        if self.error is not None:
            raise self.error
        return FILLER * min(length_bytes, self.length_bytes)

    def close(self) -> None:
        """Do nothing, because there is no file."""


@dataclass(frozen=True, slots=True)
class RecordedChunk:
    """The recorded evidence about a chunk on the disk.

    `basis` names the source of the evidence. `is_whole` is True if the checksums of all windows are
    known. In this case, the text of the recomputed result must also match the recorded text.
    """

    length_bytes: int
    primary: bytes
    second: bytes
    basis: str
    is_whole: bool = True
    error: OSError | None = None


def judged_again(chunk: ChunkInfo, seen: RecordedChunk) -> ChunkJudgement | None:
    """Check a recorded chunk again, and return the result of the check. Return None if the chunk is
    intact."""
    if (seen.length_bytes, seen.primary) == (chunk.length_bytes, chunk.window_checksums):
        return None
    witnesses = Witnesses(lambda *_: seen.primary, lambda *_: seen.second)
    first = FirstRead(seen.length_bytes, seen.primary, seen.error)
    medium = RecordedMedium(seen.length_bytes, seen.error)
    judgement = judge_chunk(medium, chunk, first, witnesses)
    if judgement.forensic in {Forensic.SINGLE_BIT, Forensic.TRUNCATED}:
        return judgement
    return replace(judgement, forensic=Forensic.UNKNOWN)


def evidence_of(
    algorithm: Algorithm,
    chunk: ChunkInfo,
    leaf: Leaf | None,
    medium: BundledMedium | None,
    found: BundledFinding | None,
) -> RecordedChunk:
    """Return the best evidence about a chunk that a bundle has.

    The checksums must match the leaf in the tree. They are searched in this order: in the row, in
    the record of the data on disk, in a finding that names one wrong window. If none match, the
    checksums of the chunk are unknown.
    """
    if leaf is None:
        return RecordedChunk(0, b"", b"", "the tree has no leaf: the file ended before it")
    if leaf.checksum == _fold(algorithm, chunk, leaf.length_bytes, UNREADABLE_LEAF):
        return _device_error(found)
    own = chunk.window_checksums
    if leaf == Leaf(
        chunk.offset, chunk.length_bytes, _fold(algorithm, chunk, chunk.length_bytes, own)
    ):
        return RecordedChunk(chunk.length_bytes, own, own, "the leaf is the fold of the row's sums")
    if medium is not None and not medium.error:
        folded = _fold(algorithm, chunk, medium.length_bytes, medium.primary)
        if (medium.length_bytes, folded) == (leaf.length_bytes, leaf.checksum):
            basis = "read again for the bundle, with the fold that is in the tree"
            return RecordedChunk(medium.length_bytes, medium.primary, medium.second, basis)
    sums = _named_sums(chunk, found)
    if sums and _fold(algorithm, chunk, leaf.length_bytes, sums) == leaf.checksum:
        return RecordedChunk(
            leaf.length_bytes, sums, sums, "the finding names the one wrong window"
        )
    other = _other(chunk, leaf.length_bytes)
    is_cut = leaf.length_bytes < chunk.length_bytes  # the text of a short chunk has no checksums
    return RecordedChunk(leaf.length_bytes, other, other, UNKNOWN_SUMS, is_whole=is_cut)


def _fold(algorithm: Algorithm, chunk: ChunkInfo, length_bytes: int, sums: bytes) -> int:
    return leaf_checksum(algorithm, chunk.offset, length_bytes, sums)


def _device_error(found: BundledFinding | None) -> RecordedChunk:
    """Return the evidence about a chunk that could not be read because of a device error.

    The errno is taken from the finding; it is EIO if the finding does not name it.
    """
    name = FAILED_READ.search(found.evidence if found else "")
    number = getattr(errno, name[1], errno.EIO) if name else errno.EIO
    basis = "the leaf is that of a chunk that cannot be read"
    is_named = name is not None
    return RecordedChunk(0, b"", b"", basis, is_named, OSError(number, "recorded"))


def _named_sums(chunk: ChunkInfo, found: BundledFinding | None) -> bytes:
    """Return the checksums of all windows of a chunk with one wrong window.

    The checksum of the wrong window is taken from the finding, and all others from the row. Return
    b"" if the finding does not name exactly one wrong window.
    """
    told = WINDOWS.search(found.evidence) if found else None
    width = checksum_width_bytes(chunk.checksum_type)
    if told is None or told[1] != "1" or len(told[6]) != 2 * width:
        return b""
    start = int(told[3]) * width
    if not 0 <= start < len(chunk.window_checksums):
        return b""
    sums = bytearray(chunk.window_checksums)
    sums[start : start + width] = bytes.fromhex(told[6])
    return bytes(sums)


def _other(chunk: ChunkInfo, length_bytes: int) -> bytes:
    """Return checksums that differ from those in the row. They are used if the checksums are
    unknown."""
    if chunk.checksum_type is ChecksumType.NONE:
        return b"?"
    windows = -(-length_bytes // chunk.bytes_per_checksum)
    kept = chunk.window_checksums[: windows * checksum_width_bytes(chunk.checksum_type)]
    return bytes(byte ^ 0xFF for byte in kept)


def contradiction(
    chunk: ChunkInfo, found: BundledFinding, judgement: ChunkJudgement | None, seen: RecordedChunk
) -> str:
    """Return a text that says how a finding differs from the result of the new check; "" if both
    are equal."""
    if found.verdict == Verdict.SUSPECT_HOST:  # a bundle has no faults that the host saw only once
        return "" if judgement is None else f"the medium is {judgement.verdict.value}"
    if judgement is None:
        return "the medium has what was written"
    if (found.verdict, found.fault) != (judgement.verdict, judgement.fault):
        return f"it is {judgement.verdict.value} {judgement.fault.value}"
    if seen.is_whole:
        return _in_words(found, judgement)
    return _row_named(chunk, found) if judgement.fault is DamageFault.CHUNK_CHECKSUM else ""


def _in_words(found: BundledFinding, judgement: ChunkJudgement) -> str:
    """Compare the text and the kind of fault of a finding with the result of the new check.

    Return a text with the difference. Return "" if they are equal, or if the kind of fault cannot
    be determined from checksums.
    """
    told, again = (
        found.evidence.partition("; cut at")[0],
        judgement.evidence.partition("; cut at")[0],
    )
    if not told.startswith(again):
        return f"the evidence is: {again}"
    if judgement.forensic is Forensic.UNKNOWN or found.forensic == judgement.forensic:
        return ""
    return f"the accident is {judgement.forensic.value}"


def _row_named(chunk: ChunkInfo, found: BundledFinding) -> str:
    """Compare the description of the row in a finding with the row. Return a text with the
    difference.

    Return "" if they are equal. This is used if the checksums of the data on disk are unknown.
    """
    told = WINDOWS.search(found.evidence)
    if told is None:
        return "the evidence names no window"
    width = checksum_width_bytes(chunk.checksum_type)
    index, window_bytes = int(told[3]), chunk.bytes_per_checksum
    expected = chunk.window_checksums[index * width : (index + 1) * width].hex()
    total = -(-chunk.length_bytes // window_bytes)
    named = (int(told[2]), int(told[4]), told[5])
    if named != (total, chunk.offset + index * window_bytes, expected) or told[6] == expected:
        return f"the row has {total} windows, and {expected} at window {index}"
    return ""
