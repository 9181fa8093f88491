"""Whether the file of an index can be used: its pages and keys, read without LMDB."""
