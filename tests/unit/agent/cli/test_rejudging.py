"""A verdict on a chunk, come to again from sums: what each basis is worth."""

import errno
from dataclasses import dataclass, replace

import pytest

from agent.cli.evidence.bundle_reading import BundledFinding, BundledMedium
from agent.cli.evidence.recorded_reads import UNKNOWN_SUMS, contradiction, evidence_of, judged_again
from merkle.checksum import Algorithm, leaf_checksum, window_checksums
from merkle.tree import Leaf
from scanner.chunk_verdict import WITNESSES, ChunkJudgement, FirstRead, judge_chunk
from scanner.finding import Verdict
from scanner.scan_tree import UNREADABLE_LEAF
from tests.support.storage.replica_reader import chunk_of, noise

DATA = noise(5 * 4096 - 100)
CHUNK = chunk_of(DATA)
FOLDS = Algorithm.XXH3_64


@dataclass(frozen=True)
class Disk:
    """A disk with one chunk on it, which may refuse."""

    content: bytes
    error: OSError | None = None

    @property
    def size_bytes(self) -> int:
        return len(self.content)

    def read(self, offset: int, length_bytes: int) -> memoryview:
        return memoryview(self.reread_past_cache(offset, length_bytes))

    def reread_past_cache(self, offset: int, length_bytes: int) -> bytes:
        if self.error is not None:
            raise self.error
        return self.content[offset : offset + length_bytes]

    def close(self) -> None:
        pass


def sums_of(content: bytes) -> bytes:
    return window_checksums(CHUNK.checksum_type, CHUNK.bytes_per_checksum, content)


def scanned(disk: Disk) -> tuple[BundledFinding, Leaf | None]:
    """Return what a scan of real bytes reports, and the leaf that it leaves."""
    sums = b"" if disk.error else sums_of(disk.content)
    first = FirstRead(len(disk.content), sums, disk.error)
    verdict: ChunkJudgement = judge_chunk(disk, CHUNK, first, WITNESSES)
    found = BundledFinding(
        verdict.verdict,
        verdict.fault,
        1,
        0,
        CHUNK.length_bytes,
        verdict.evidence,
        verdict.forensic,
    )
    if verdict.verdict is Verdict.UNREADABLE:
        checksum = leaf_checksum(FOLDS, 0, CHUNK.length_bytes, UNREADABLE_LEAF)
        return found, Leaf(0, CHUNK.length_bytes, checksum, healthy=False)
    if not disk.content:
        return found, None
    length_bytes = len(disk.content)
    checksum = leaf_checksum(FOLDS, 0, length_bytes, sums_of(disk.content))
    return found, Leaf(0, length_bytes, checksum, healthy=False)


def flipped(*places: int) -> bytes:
    content = bytearray(DATA)
    for place in places:
        content[place] ^= 4
    return bytes(content)


def compared(
    found: BundledFinding, leaf: Leaf | None, medium: BundledMedium | None
) -> tuple[str, str]:
    """Return what differs, and by what it was judged."""
    seen = evidence_of(FOLDS, CHUNK, leaf, medium, found)
    return contradiction(CHUNK, found, judged_again(CHUNK, seen), seen), seen.basis


ACCIDENTS = {
    "one bit": Disk(flipped(5000)),
    "two windows": Disk(flipped(1, 9000)),
    "zeros": Disk(bytes(4096) + DATA[4096:]),
    "cut": Disk(DATA[:7000]),
    "gone": Disk(b""),
    "refused": Disk(b"", OSError(errno.EIO, "medium error")),
    "lost": Disk(b"", OSError(errno.ENODATA, "no data")),
}


@pytest.mark.parametrize("disk", ACCIDENTS.values(), ids=ACCIDENTS)
@pytest.mark.parametrize("is_read_again", [True, False], ids=["with sums", "without"])
def test_verdict_recomputed_from_checksums_equals_the_original(
    disk: Disk, is_read_again: bool
) -> None:
    """The disk was read for the bundle, or could not be read."""
    found, leaf = scanned(disk)
    sums = sums_of(disk.content)
    medium = (
        BundledMedium(len(disk.content), sums, sums)
        if is_read_again
        else BundledMedium(error="gone")
    )

    assert compared(found, leaf, medium)[0] == ""


def test_other_bytes_than_the_scan_saw_are_no_evidence() -> None:
    """Bytes read for the bundle count only if they have the fold of the tree."""
    found, leaf = scanned(Disk(flipped(1, 9000)))
    sums = sums_of(DATA)

    differs, basis = compared(found, leaf, BundledMedium(len(DATA), sums, sums))

    assert ("", UNKNOWN_SUMS) == (differs, basis)


@pytest.mark.parametrize("disk", ACCIDENTS.values(), ids=ACCIDENTS)
def test_another_verdict_is_contradicted(disk: Disk) -> None:
    """Each verdict and each fault but its own; and that all is well."""
    found, leaf = scanned(disk)
    others = [
        replace(found, verdict="UNREADABLE" if found.verdict == "CORRUPT" else "CORRUPT"),
        replace(found, fault="CHUNK_SHORT" if found.fault != "CHUNK_SHORT" else "CHUNK_CHECKSUM"),
        replace(found, verdict="SUSPECT_HOST"),
    ]

    assert all(compared(other, leaf, None)[0] for other in others)


def test_a_finding_on_what_is_well_is_contradicted() -> None:
    """The leaf is the fold of the row's sums, so there was nothing to be found."""
    found, _ = scanned(Disk(flipped(1)))
    well = Leaf(0, len(DATA), leaf_checksum(FOLDS, 0, len(DATA), CHUNK.window_checksums))

    assert compared(found, well, None)[0] == "the medium has what was written"


@pytest.mark.parametrize("accident", ["one bit", "two windows"])
def test_evidence_that_does_not_fit_the_row_is_contradicted(accident: str) -> None:
    """The evidence is contradicted even if the checksums of the windows are unknown."""
    found, leaf = scanned(ACCIDENTS[accident])
    digit = found.evidence.index("expected ") + len("expected ")
    other = "0" if found.evidence[digit] != "0" else "1"
    changed = found.evidence[:digit] + other + found.evidence[digit + 1 :]

    assert compared(replace(found, evidence=changed), leaf, None)[0]
