"""Determines the probable cause of damage from the bytes of a damaged chunk.

    content of the wrong windows                             class
    one flipped bit in each, by the CRCs                     SINGLE_BIT
    zero sectors, up to the chunk's end                      TORN_512 or TORN_4096
    other zero sectors                                       ZEROED
    earlier data of this position                            STALE
    earlier data from a sector on, up to the chunk's end     TORN_512 or TORN_4096
    window checksums are those of another chunk              MISDIRECTED

The correct bytes are rarely known. If they are known, a torn write is recognised whatever data is
in its place. The cause changes no verdict. It shows an operator whether to suspect memory, a cable,
a controller's cache or a disk ("An Analysis of Data Corruption in the Storage Stack", FAST 2008).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from merkle.blockrow import WORD_BYTES, batches, decode_block
from merkle.checksum import checksum_width_bytes
from merkle.checksum_columns import flipped_bit
from merkle.damaged_data import DamagedData
from merkle.replica import BlockId, ChunkInfo
from scanner.finding import Forensic

Octets = npt.NDArray[np.uint8]

SECTOR_BYTES: Final = 512
PAGE_BYTES: Final = 4096
ZERO_SECTOR: Final = bytes(SECTOR_BYTES)
FLIPPED_WINDOWS_MAX: Final = 8  # windows with one wrong bit each; more are not bit flips
BIT_WINDOW_BYTES_MAX: Final = 1024**2  # maximum size of a window that is searched for one wrong bit
SOUGHT_WINDOWS_MAX: Final = 16  # wrong windows per chunk that are searched in the replica
KEY_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Explanation:
    """The probable cause of damage with its description, and the indexes of the wrong windows."""

    forensic: Forensic
    words: str
    wrong_windows: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class UnexplainedChunk:
    """A damaged chunk whose cause is unknown, and which may contain the data of another chunk.

    `windows` has a pair (index of the window, checksum of the data on disk) for each wrong window.
    `position` is a number that the caller chooses to identify the chunk.
    """

    position: int
    block_id: BlockId
    chunk: ChunkInfo
    windows: tuple[tuple[int, bytes], ...]


def explain(
    chunk: ChunkInfo,
    medium: bytes | memoryview,
    sums: bytes,
    *,
    former: Iterable[bytes] = (),
    good: bytes | None = None,
) -> Explanation:
    """Return the probable cause of the damage of a chunk.

    `medium` is the content of the chunk on disk, and `sums` are its window checksums. `former` has
    known earlier contents at this position. `good` is the correct content; None if it is unknown.
    """
    if len(medium) < chunk.length_bytes:
        edge = chunk.offset + len(medium)
        return Explanation(Forensic.TRUNCATED, f"cut at byte {edge}{_grain(edge)}")
    wrong = wrong_windows(chunk, sums)
    if not wrong:
        return Explanation(Forensic.UNKNOWN, "")
    octets = np.frombuffer(medium, dtype=np.uint8)
    known = None if good is None else np.frombuffer(good, dtype=np.uint8)
    found = (
        _single_bits(chunk, sums, wrong)
        or _zeroed(chunk, octets, wrong, known)
        or _former(chunk, octets, wrong, former)
        or _torn(chunk, octets, known)
    )
    if found is None:
        return Explanation(Forensic.UNKNOWN, "", wrong)
    return Explanation(*found, wrong)


def wrong_windows(chunk: ChunkInfo, sums: bytes) -> tuple[int, ...]:
    """Return the indexes of the windows whose checksum differs from the stored checksum."""
    width = checksum_width_bytes(chunk.checksum_type)
    if not width or len(sums) != len(chunk.window_checksums):
        return ()
    sum_type = f"V{width}"  # compared byte by byte, without an interpretation
    expected = np.frombuffer(chunk.window_checksums, sum_type)
    return tuple((expected != np.frombuffer(sums, sum_type)).nonzero()[0].tolist())


def _window(chunk: ChunkInfo, index: int) -> slice:
    start = index * chunk.bytes_per_checksum
    return slice(start, min(start + chunk.bytes_per_checksum, chunk.length_bytes))


def _sum(chunk: ChunkInfo, sums: bytes, index: int) -> bytes:
    width = checksum_width_bytes(chunk.checksum_type)
    return sums[index * width : (index + 1) * width]


def _single_bits(
    chunk: ChunkInfo, sums: bytes, wrong: Sequence[int]
) -> tuple[Forensic, str] | None:
    if len(wrong) > FLIPPED_WINDOWS_MAX or chunk.bytes_per_checksum > BIT_WINDOW_BYTES_MAX:
        return None
    places = []
    for index in wrong:
        window = _window(chunk, index)
        place = flipped_bit(
            chunk.checksum_type,
            window.stop - window.start,
            _sum(chunk, chunk.window_checksums, index),
            _sum(chunk, sums, index),
        )
        if place is None:
            return None
        places.append(f"bit {place[1]} of byte {chunk.offset + window.start + place[0]}")
    words = f"{', '.join(places)} {'is' if len(places) == 1 else 'are'} flipped, nothing else"
    return Forensic.SINGLE_BIT, words


def _zeroed(
    chunk: ChunkInfo, octets: Octets, wrong: Sequence[int], good: Octets | None
) -> tuple[Forensic, str] | None:
    """Return ZEROED, TORN_512 or TORN_4096, with a text, if every wrong window has zero sectors.
    Otherwise return None.

    If the correct content `good` is None, the result is a guess, because correct data may have zero
    sectors, too.
    """
    if good is not None and len(good) == len(octets) and octets[octets != good].any():
        return None
    if not all(_zero_run(chunk, octets, _window(chunk, index)) for index in wrong):
        return None
    start, _ = _zero_run(chunk, octets, _window(chunk, wrong[0])) or (0, 0)
    _, end = _zero_run(chunk, octets, _window(chunk, wrong[-1])) or (0, 0)
    first, behind = chunk.offset + start, chunk.offset + end
    if end == len(octets) and start and not octets[start:].any():
        return _tear(first), f"zero from byte {first} to the chunk's end{_grain(first)}"
    is_page = end - start == PAGE_BYTES and first % PAGE_BYTES == 0
    if is_page:
        return Forensic.ZEROED, f"the {PAGE_BYTES}-byte page at byte {first} is all zero"
    return Forensic.ZEROED, f"zero from byte {first} to {behind}"


def _zero_run(chunk: ChunkInfo, octets: Octets, window: slice) -> tuple[int, int] | None:
    """Return the start and end of the longest run of zero sectors in a window, as offsets in the
    chunk.

    Sectors are aligned to the start of the file. Return None if the window has no complete sector
    of zeros. A partial sector at the start or end of the window counts if it adjoins such a sector,
    or if the complete window is zero.
    """
    part = octets[window]
    if len(part) >= SECTOR_BYTES and ZERO_SECTOR not in part.tobytes():
        return None
    used = np.flatnonzero(part)
    if not len(used):
        return window.start, window.stop
    edges = np.concatenate([[-1], used, [len(part)]])
    longest = int(np.argmax(np.diff(edges)))
    start, end = int(edges[longest]) + 1 + window.start, int(edges[longest + 1]) + window.start
    if start > window.start:
        start += -(chunk.offset + start) % SECTOR_BYTES
    if end < window.stop:
        end -= (chunk.offset + end) % SECTOR_BYTES
    return (start, end) if end - start >= SECTOR_BYTES else None


def _former(
    chunk: ChunkInfo, octets: Octets, wrong: Sequence[int], former: Iterable[bytes]
) -> tuple[Forensic, str] | None:
    for old in former:
        size = min(len(old), len(octets))
        same = octets[:size] == np.frombuffer(old, dtype=np.uint8)[:size]
        windows = [_window(chunk, index) for index in wrong]
        if all(window.stop <= size and same[window].all() for window in windows):
            return Forensic.STALE, "it is what was here before the last write"
        if size == len(octets) and same[-1]:
            start = int(np.flatnonzero(~same)[-1]) + 1
            edge = chunk.offset + start + -(chunk.offset + start) % SECTOR_BYTES
            if edge < chunk.offset + len(octets):
                words = f"from byte {edge} on it is what was here before{_grain(edge)}"
                return _tear(edge), words
    return None


def _torn(chunk: ChunkInfo, octets: Octets, good: Octets | None) -> tuple[Forensic, str] | None:
    """Return TORN_512 or TORN_4096, with a text, if the data differs from the correct content
    `good` from the start of a sector up to the chunk's end. Otherwise return None."""
    if good is None or len(good) != len(octets):
        return None
    different = octets != good
    places = np.flatnonzero(different)
    if not len(places):
        return None
    first = int(places[0])
    edge = first - (chunk.offset + first) % SECTOR_BYTES
    if edge <= 0 or first - edge >= 8 or len(octets) - int(places[-1]) > 8:
        return None
    if different[edge:].mean() < 0.9:  # unrelated data agrees in few bytes by chance
        return None
    at = chunk.offset + edge
    return _tear(at), f"from byte {at} to the chunk's end it is something else{_grain(at)}"


def _tear(edge: int) -> Forensic:
    return Forensic.TORN_4096 if edge % PAGE_BYTES == 0 else Forensic.TORN_512


def _grain(edge: int) -> str:
    if edge % PAGE_BYTES == 0:
        return f": torn at a {PAGE_BYTES}-byte page"
    return f": torn at a {SECTOR_BYTES}-byte sector" if edge % SECTOR_BYTES == 0 else ""


# -- misdirected: the replica's own rows show where these bytes belong ---------------------------


def unexplained_chunk(
    position: int, block_id: BlockId, chunk: ChunkInfo, sums: bytes, wrong: Sequence[int]
) -> UnexplainedChunk | None:
    """Return the damaged chunk with the checksums of at most SOUGHT_WINDOWS_MAX wrong windows.
    Return None if no window is wrong."""
    windows = tuple((index, _sum(chunk, sums, index)) for index in wrong[:SOUGHT_WINDOWS_MAX])
    return UnexplainedChunk(position, block_id, chunk, windows) if windows else None


def find_places(
    rows: Iterable[tuple[BlockId, bytes]], wanted: Sequence[UnexplainedChunk]
) -> dict[int, str]:
    """Search the rows of a replica for chunks whose data is in one of the damaged chunks in
    `wanted`.

    Return, by the `position` of the damaged chunk, a text that names the chunk that the data
    belongs to. The rows are read once. All checksums of a batch of rows are compared at once, and
    only matching rows are parsed.
    """
    keys = {window[:KEY_BYTES] for item in wanted for _, window in item.windows}
    values = np.array([int.from_bytes(key) for key in keys], dtype=np.uint32)
    places: dict[int, str] = {}
    for block_ids, raws in batches(rows):
        whole = [len(row) % WORD_BYTES == 0 for row in raws]
        kept = [index for index, fits in enumerate(whole) if fits]
        words = np.frombuffer(b"".join(raws[index] for index in kept), dtype=">u4")
        ends = np.cumsum([len(raws[index]) // KEY_BYTES for index in kept])
        hits = np.unique(np.searchsorted(ends, np.flatnonzero(np.isin(words, values)), "right"))
        for hit in hits.tolist():
            index = kept[hit]
            _match(block_ids[index], raws[index], wanted, places)
    return places


def _match(
    block_id: BlockId, row: bytes, wanted: Sequence[UnexplainedChunk], places: dict[int, str]
) -> None:
    try:
        chunks = decode_block(block_id, row).chunks
    except DamagedData:
        return
    for chunk in chunks:
        width = checksum_width_bytes(chunk.checksum_type)
        own = chunk.window_checksums
        at = {
            own[start : start + width]: start // width for start in range(0, len(own), width or 1)
        }
        for item in wanted:
            kind = (item.chunk.checksum_type, item.chunk.bytes_per_checksum)
            if item.position in places or kind != (chunk.checksum_type, chunk.bytes_per_checksum):
                continue
            matches = [(index, at[window]) for index, window in item.windows if window in at]
            if matches:
                index, other = matches[0]
                places[item.position] = (
                    f"window {index} is window {other} of the chunk at {chunk.offset} "
                    f"of block {block_id}; {len(matches)} of {len(item.windows)} are of that chunk"
                )
