"""The data model, checksums and Merkle tree of a replica, and the diff of two trees. No I/O."""
