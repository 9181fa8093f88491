"""Computes keyed hashes with which a peer proves that it has certain bytes now.

The hash is BLAKE2b, and its key is a random number (nonce) that the verifier chooses. A peer
without the bytes cannot compute the proof from a checksum, a tree or an earlier proof. BLAKE2b has
an input for a key (RFC 7693, section 2.9), so it needs no second pass over the data, unlike HMAC. A
proof has 16 bytes, so a wrong proof matches with probability 2^-128.
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
    """Return the proof that the caller has the bytes `data`: their BLAKE2b hash with the key
    `nonce`."""
    return hashlib.blake2b(data, digest_size=ANSWER_BYTES, key=nonce).digest()


def tree_answer_of(nonce: bytes, container_id: ContainerId, tree: Tree) -> bytes:
    """Return the proof that the caller has a tree: a BLAKE2b hash with the key `nonce`.

    The input of the hash is the container id, the root and the tombstones' checksum (8 bytes each,
    big-endian), then the columns of the `.tree` file. The generation is not included, because it
    differs between replicas.
    """
    proof = hashlib.blake2b(digest_size=ANSWER_BYTES, key=nonce)
    for number in (container_id, tree.root, tree.tombstones_checksum):
        proof.update(number.to_bytes(8, "big"))
    for name in COLUMNS:
        column = getattr(tree, name)
        proof.update(column.astype(column.dtype.newbyteorder("<")).tobytes())
    return proof.digest()
