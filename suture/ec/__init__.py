"""Erasure coding: codes, the geometry of block groups, encoding and decoding, and wrong shards. No
I/O."""
