"""What lies on a volume of an Ozone datanode: its places, rows, descriptors and tree files."""
