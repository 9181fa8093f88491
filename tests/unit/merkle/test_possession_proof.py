"""Keyed hashes: those of RFC 7693, computed here once more and otherwise, word by word."""

from random import Random
from typing import Final

from merkle.checksum import Algorithm
from merkle.possession_proof import ANSWER_BYTES, NONCE_BYTES, answer_of, tree_answer_of
from merkle.replica import ContainerId
from merkle.tree import Tree
from merkle.tree_building import TreeBuilder

MASK: Final = 2**64 - 1
START: Final = (
    *(0x6A09E667F3BCC908, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B, 0xA54FF53A5F1D36F1),
    *(0x510E527FADE682D1, 0x9B05688C2B3E6C1F, 0x1F83D9ABFB41BD6B, 0x5BE0CD19137E2179),
)
SIGMA: Final = [
    "0123456789abcdef",
    "ea489fd61c02b753",
    "b8c052fdae367194",
    "7931dcbe265a40f8",
    "905724afe1bc683d",
    "2c6a0b834d75fe19",
    "c51fed4a0763928b",
    "db7ec13950f4862a",
    "6fe9b308c2d714a5",
    "a2847615fb9e3cd0",
]
ROUNDS: Final = (*SIGMA, *SIGMA[:2])
SHIFTS: Final = (32, 24, 16, 63)
COLUMNS: Final = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
DIAGONALS: Final = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))


def turned(word: int, by: int) -> int:
    """Return a word, rotated to the right."""
    return (word >> by | word << (64 - by)) & MASK


def blake2b(key: bytes, data: bytes, size_bytes: int) -> bytes:
    """Return BLAKE2b as section 3 of RFC 7693 writes it down."""
    padded = key.ljust(128, b"\0") + data if key else data
    state = [START[0] ^ 0x01010000 ^ len(key) << 8 ^ size_bytes, *START[1:]]
    blocks = [padded[at : at + 128] for at in range(0, len(padded), 128)] or [b""]
    count = 0
    for number, block in enumerate(blocks, 1):
        count += len(block)
        words = [
            int.from_bytes(block.ljust(128, b"\0")[at : at + 8], "little")
            for at in range(0, 128, 8)
        ]
        v = [*state, *START]
        v[12] ^= count & MASK
        v[13] ^= count >> 64
        if number == len(blocks):
            v[14] ^= MASK
        for sigma in ROUNDS:
            order = [int(digit, 16) for digit in sigma]
            for index, (a, b, c, d) in enumerate((*COLUMNS, *DIAGONALS)):
                x, y = words[order[2 * index]], words[order[2 * index + 1]]
                v[a] = v[a] + v[b] + x & MASK
                v[d] = turned(v[d] ^ v[a], SHIFTS[0])
                v[c] = v[c] + v[d] & MASK
                v[b] = turned(v[b] ^ v[c], SHIFTS[1])
                v[a] = v[a] + v[b] + y & MASK
                v[d] = turned(v[d] ^ v[a], SHIFTS[2])
                v[c] = v[c] + v[d] & MASK
                v[b] = turned(v[b] ^ v[c], SHIFTS[3])
        state = [state[i] ^ v[i] ^ v[i + 8] for i in range(8)]
    return b"".join(word.to_bytes(8, "little") for word in state)[:size_bytes]


def test_the_reference_is_the_one_of_the_rfc() -> None:
    """
    Appendix A of RFC 7693: "abc", without a key.
    """
    assert "ba80a53f981c4d0d6a2797b69f12f6e9" in blake2b(b"", b"abc", 64).hex()


def test_an_answer_is_blake2b_with_the_nonce_as_its_key() -> None:
    """The data is empty, part of a block, whole blocks, and more."""
    dice = Random(7)
    for length_bytes in (0, 1, 127, 128, 129, 256, 1_000):
        nonce, data = dice.randbytes(NONCE_BYTES), dice.randbytes(length_bytes)

        assert blake2b(nonce, data, ANSWER_BYTES) == answer_of(nonce, data)


def test_nonces_and_answers_have_the_size_that_others_expect() -> None:
    """
    Peers of other versions refuse any other.
    """
    assert (16, 16) == (NONCE_BYTES, ANSWER_BYTES)
    assert 16 == len(answer_of(bytes(16), b""))


def tree(*, checksum: int = 77, generation: int = 1, healthy: bool = True) -> Tree:
    """Return a tree of one block of two chunks, and a tombstone."""
    builder = TreeBuilder(Algorithm.XXH3_64)
    builder.add_block(3)
    builder.add_chunk(0, 100, checksum.to_bytes(4, "big"), healthy)
    builder.add_chunk(100, 50, b"abcd")
    builder.add_tombstone(5, 9)
    return builder.build(generation)


def test_the_answer_of_a_tree_is_of_its_columns_as_its_file_has_them() -> None:
    """
    Another implementation can make it out of the `.tree` file alone.
    """
    nonce, one = bytes(range(NONCE_BYTES)), tree()
    whole = b"".join(n.to_bytes(8, "big") for n in (4, one.root, one.tombstones_checksum))
    for number in (3, 5):
        whole += number.to_bytes(8, "little")
    whole += b"".join(int(n).to_bytes(8, "little") for n in one.block_checksums)
    whole += b"".join(
        (offset << 28 | length << 1 | 1).to_bytes(8, "little")
        for offset, length in ((0, 100), (100, 50))
    )
    whole += b"".join(int(n).to_bytes(8, "little") for n in one.chunk_checksums)
    whole += b"".join(n.to_bytes(4, "little") for n in (0, 2, 2)) + b"\0\1"

    assert blake2b(nonce, whole, ANSWER_BYTES) == tree_answer_of(nonce, ContainerId(4), one)


def test_only_what_a_replica_holds_makes_its_answer() -> None:
    """The answer covers each checksum and whether the chunks were healthy, but not how often the
    tree was changed.
    """
    nonce, mine = bytes(NONCE_BYTES), tree()

    def answer(other: Tree, container: int = 4, key: bytes = nonce) -> bytes:
        return tree_answer_of(key, ContainerId(container), other)

    assert answer(mine) == answer(tree(generation=9))
    others = [
        answer(tree(checksum=78)),
        answer(tree(healthy=False)),
        answer(mine, 5),
        answer(mine, key=b"1" * NONCE_BYTES),
    ]
    assert answer(mine) not in others
    assert len(others) == len(set(others))
