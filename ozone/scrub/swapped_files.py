"""Finds damaged blocks whose path has the file of another block, for instance after a restore.

All chunks of such a block seem to be damaged. If the file has the length of other damaged blocks,
it is verified against the checksums of these blocks. Each chunk is read once for all of them, and
reading stops at the first window that matches none. The caller reads the bytes. No I/O.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, TypeAlias

from merkle.checksum import checksum_width_bytes, window_checksums
from merkle.replica import BlockData, BlockId, ChecksumType
from scanner.finding import DamageFault, Forensic, ScanFinding

OF_BYTES: Final = frozenset(
    {DamageFault.CHUNK_CHECKSUM, DamageFault.CHUNK_SHORT, DamageFault.CHUNK_MISSING}
)
TRIED_MAX: Final = 100  # blocks to compare per container; damage to more blocks has another cause
TRIED_BYTES_MAX: Final = 64 * 1024**2  # compared bytes of a file: too many to match by accident
FORMS_MAX: Final = 4  # forms per block length; a client divides all its blocks alike

Read = Callable[[BlockId, int, int], bytes | memoryview]
"""Function that reads a block's file, given the block id, the offset and the length in bytes."""

Place: TypeAlias = tuple[int, int, int, ChecksumType, int]
"""The form of a chunk: its index in the block, offset, length, checksum type, and window size."""


@dataclass(frozen=True, slots=True)
class MisplacedFile:
    """A damaged block whose path may have the file of another block.

    `file_bytes` is the length of the file at its path.
    """

    block: BlockData
    file_bytes: int


def exchanges(damaged: Mapping[BlockId, MisplacedFile], read: Read) -> dict[BlockId, BlockId]:
    """Return the damaged blocks whose path has the file of another damaged block.

    The result has the id of that other block, by the id of the damaged block. Raise OSError if a
    file cannot be read.
    """
    tried = list(islice(damaged.values(), TRIED_MAX))
    forms: dict[int, dict[tuple[Place, ...], list[BlockData]]] = {}
    for item in tried:
        form = _form(item.block)
        if form:
            alike = forms.setdefault(item.block.length_bytes, {})
            alike.setdefault(form, []).append(item.block)
    found = {}
    for item in tried:
        at = item.block.block_id
        for form, blocks in islice(forms.get(item.file_bytes, {}).items(), FORMS_MAX):
            others = [block for block in blocks if block.block_id != at]
            owners = _owners(form, others, at, read)
            if owners:
                found[at] = owners[0].block_id
                break
    return found


def _form(block: BlockData) -> tuple[Place, ...]:
    """Return the form (index, offset, length, checksum type, window size) of each chunk in a block.

    Omit chunks without checksums, and chunks that end after TRIED_BYTES_MAX.
    """
    return tuple(
        (index, chunk.offset, chunk.length_bytes, chunk.checksum_type, chunk.bytes_per_checksum)
        for index, chunk in enumerate(block.chunks)
        if chunk.checksum_type is not ChecksumType.NONE and chunk.end <= TRIED_BYTES_MAX
    )


def _owners(
    form: Sequence[Place], others: Sequence[BlockData], at: BlockId, read: Read
) -> Sequence[BlockData]:
    """Return the blocks in `others` whose checksums match the file at the path of block `at`."""
    index, offset, length_bytes, kind, window_bytes = form[0]
    first = (index, offset, min(window_bytes, length_bytes), kind, window_bytes)
    for index, offset, length_bytes, kind, window_bytes in (first, *form):
        if not others:
            break
        sums = window_checksums(kind, window_bytes, read(at, offset, length_bytes))
        size = checksum_width_bytes(kind) * -(-length_bytes // window_bytes)
        others = [one for one in others if one.chunks[index].window_checksums[:size] == sums]
    return others


def explained(
    findings: Sequence[ScanFinding], theirs: Mapping[BlockId, BlockId]
) -> Iterator[ScanFinding]:
    """Yield the findings. If the path of a block has the file of another block, name that block.

    `theirs` has the id of that other block, by the id of the damaged block.
    """
    for item in findings:
        if item.fault in OF_BYTES and item.block_id in theirs:
            whose = f"the file in its place has the bytes of block {theirs[item.block_id]}"
            evidence = f"{item.evidence}; {whose}"
            yield replace(item, forensic=Forensic.MISDIRECTED, evidence=evidence)
        else:
            yield item
