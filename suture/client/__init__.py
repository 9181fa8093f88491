"""Client library: store files and read them back; callers use `client` and `writer`."""
