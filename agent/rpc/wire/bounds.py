"""What one call of a client may have: control planes refuse more, and clients ask for no more."""

from typing import Final

KEY_BYTES_MAX: Final = 1_024  # of a key, in UTF-8
SIZES_MAX: Final = 10_000  # blocks per AllocateBlocks
