"""Random samples of chunks, read from their media and judged one by one."""
