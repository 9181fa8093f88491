"""Whose file it is that lies in a block's place."""

import random
import zlib
from collections.abc import Sequence

from merkle.replica import Bcsid, BlockData, BlockId, ChecksumType, ChunkInfo
from ozone.scrub.swapped_files import TRIED_MAX, MisplacedFile, exchanges

WINDOW_BYTES = 64
CHUNK_BYTES = 4 * WINDOW_BYTES


def block(
    number: int,
    data: bytes,
    chunk_bytes: int = CHUNK_BYTES,
    kind: ChecksumType = ChecksumType.CRC32,
) -> BlockData:
    """Return a block as its client described it."""
    chunks = []
    for at in range(0, len(data), chunk_bytes):
        part = data[at : at + chunk_bytes]
        windows = [part[n : n + WINDOW_BYTES] for n in range(0, len(part), WINDOW_BYTES)]
        sums = b"".join(zlib.crc32(window).to_bytes(4, "big") for window in windows)
        sums = b"" if kind is ChecksumType.NONE else sums
        chunks.append(ChunkInfo(at, len(part), kind, WINDOW_BYTES, sums))
    return BlockData(BlockId(number), Bcsid(1), tuple(chunks))


class Disk:
    """Files of blocks, and what was read of them."""

    def __init__(self, files: dict[int, bytes]) -> None:
        self.files = files
        self.read_bytes: dict[int, int] = dict.fromkeys(files, 0)

    def read(self, block_id: BlockId, offset: int, length_bytes: int) -> bytes:
        """Return bytes of a file."""
        data = self.files[block_id][offset : offset + length_bytes]
        self.read_bytes[block_id] += len(data)
        return data


def found(blocks: Sequence[BlockData], disk: Disk) -> dict[BlockId, BlockId]:
    """Ask for all of these blocks."""
    items = {one.block_id: MisplacedFile(one, len(disk.files[one.block_id])) for one in blocks}
    return exchanges(items, disk.read)


def test_damaged_files_are_read_once_however_many_there_are() -> None:
    """A hundred damaged blocks of one length were tried on each other's files. A file of no
    known block is read up to its first window only, and a swapped file once.
    """
    dice = random.Random(20_261_127)
    data = {number: dice.randbytes(3 * CHUNK_BYTES) for number in range(TRIED_MAX)}
    blocks = [block(number, data[number]) for number in data]
    ring = [5, 17, 60]  # their files went round
    files = {number: bytes([octets[0] ^ 1]) + octets[1:] for number, octets in data.items()}
    for at, owner in zip(ring, [*ring[1:], ring[0]], strict=True):
        files[at] = data[owner]
    disk = Disk(files)

    exchanged = found(blocks, disk)

    assert {5: 17, 17: 60, 60: 5} == exchanged
    for number, count in disk.read_bytes.items():
        assert count == (3 * CHUNK_BYTES + WINDOW_BYTES if number in ring else WINDOW_BYTES)


def test_file_that_is_alike_only_at_its_beginning_is_no_match() -> None:
    """Files of one program begin alike, and a wrong match would point to the wrong disk."""
    head = bytes(CHUNK_BYTES)
    one, other = (block(number, head + bytes([number]) * CHUNK_BYTES) for number in (1, 2))
    disk = Disk({1: head + b"?" * CHUNK_BYTES, 2: head + b"!" * CHUNK_BYTES})

    assert {} == found([one, other], disk)


def test_blocks_that_are_cut_otherwise_are_tried_too() -> None:
    """The blocks have the same length and come from another client. A block without checksums
    cannot be matched.
    """
    one, other = block(1, bytes(range(256)) * 4), block(2, b"other" * 200 + bytes(24), 128)
    silent = block(3, bytes(1024), kind=ChecksumType.NONE)
    disk = Disk({1: b"other" * 200 + bytes(24), 2: bytes(range(256)) * 4, 3: bytes(1024)})

    assert {1: 2, 2: 1} == found([one, other, silent], disk)


def test_a_file_that_is_shorter_when_it_is_read_is_nobodys() -> None:
    """The file was truncated after it was measured."""
    one, other = block(1, b"1" * 512), block(2, b"2" * 512)
    disk = Disk({1: b"2" * 512, 2: b"1" * 512})
    items = {BlockId(n): MisplacedFile(item, 512) for n, item in ((1, one), (2, other))}
    disk.files = {1: b"2" * 300, 2: b""}

    assert {} == exchanges(items, disk.read)
