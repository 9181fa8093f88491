"""Keyed hashes that prove current possession of bytes: BLAKE2b with the verifier's nonce as key.

A checksum, a tree or an old answer is not enough to compute one. BLAKE2b has a key input (RFC 7693,
section 2.9), so no second pass is needed as with HMAC. With 16 bytes, a wrong answer matches by
chance once in 2^128.
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
    """Return the proof for `nonce` that these bytes are here."""
    return hashlib.blake2b(data, digest_size=ANSWER_BYTES, key=nonce).digest()


def tree_answer_of(nonce: bytes, container_id: ContainerId, tree: Tree) -> bytes:
    """Return the proof for a tree: over its id and roots, 8 bytes each and big-endian, then its
    columns as in a `.tree` file. The generation is each replica's own and not included.
    """
    proof = hashlib.blake2b(digest_size=ANSWER_BYTES, key=nonce)
    for number in (container_id, tree.root, tree.tombstones_checksum):
        proof.update(number.to_bytes(8, "big"))
    for name in COLUMNS:
        column = getattr(tree, name)
        proof.update(column.astype(column.dtype.newbyteorder("<")).tobytes())
    return proof.digest()
