"""Random samples of chunks, read from the disks and judged one by one."""
