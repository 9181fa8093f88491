"""Integrity check of an index file: its pages and keys, read without LMDB."""
