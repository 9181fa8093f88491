"""The store: the only code that accesses volumes."""
