"""Files and directories of a volume: layout, durable changes, and direct I/O."""
