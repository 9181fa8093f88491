"""Random samples of chunks, read from the media and judged one by one."""
