"""Keyed hashes that prove that somebody has bytes now: BLAKE2b, keyed with a nonce of the asker.

Who has only a checksum, a tree or an old answer cannot compute one. BLAKE2b takes a key by itself
(RFC 7693, section 2.9), so no second pass is needed as with HMAC; of 16 bytes, a wrong answer fits
by chance once in 2^128.
"""

import hashlib
from typing import Final

from merkle.checksum import Buffer
from merkle.replica import ContainerId
from merkle.tree import Tree

NONCE_BYTES: Final = 16
ANSWER_BYTES: Final = 16
COLUMNS: Final = (
    *("block_ids", "block_checksums", "chunk_spans", "chunk_checksums", "chunk_starts"),
    "deleted",
)


def answer_of(nonce: bytes, data: Buffer) -> bytes:
    """Return what proves, to who asked with `nonce`, that these bytes are here."""
    return hashlib.blake2b(data, digest_size=ANSWER_BYTES, key=nonce).digest()


def tree_answer_of(nonce: bytes, container_id: ContainerId, tree: Tree) -> bytes:
    """Return the same of a tree: its id and roots, 8 bytes each and big-endian, then its columns as
    a `.tree` file has them. The generation is each replica's own, and no part of it."""
    proof = hashlib.blake2b(digest_size=ANSWER_BYTES, key=nonce)
    for number in (container_id, tree.root, tree.tombstones_checksum):
        proof.update(number.to_bytes(8, "big"))
    for name in COLUMNS:
        column = getattr(tree, name)
        proof.update(column.astype(column.dtype.newbyteorder("<")).tobytes())
    return proof.digest()
