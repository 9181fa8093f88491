"""Shadow hashing: a sample of the reads is hashed again, by other code in another process."""
