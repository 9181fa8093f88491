"""Chunks that are drawn at random, read off their media and judged one by one."""
