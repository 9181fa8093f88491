"""Limits of one call of a client, which control planes enforce and clients respect."""

from typing import Final

KEY_BYTES_MAX: Final = 1_024  # of a key in UTF-8
SIZES_MAX: Final = 10_000  # blocks per AllocateBlocks
