"""Limits of one client call. Control planes reject larger calls, and clients do not send them."""

from typing import Final

KEY_BYTES_MAX: Final = 1_024  # maximum length of a key in UTF-8
SIZES_MAX: Final = 10_000  # maximum number of blocks per AllocateBlocks
