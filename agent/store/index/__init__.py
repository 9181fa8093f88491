"""The metadata index of one volume: LMDB, its row formats, and values read from rows."""
