"""Integrity check of an index file: reads its pages and keys without LMDB."""
