"""The data model, the checksums and the Merkle tree of a replica, and the comparison of two trees.
No I/O."""
