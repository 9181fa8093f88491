"""Shadow hashing: other code in another process computes the checksums of some reads again."""
