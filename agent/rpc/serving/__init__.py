"""What every server of ours has: an address, limits, who may call what, health."""
