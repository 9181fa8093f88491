"""Files and directories of a volume: durable, past the page cache, one place for each thing."""
