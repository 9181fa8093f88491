"""Random samples of chunks, which are read from the disks and checked one by one."""
