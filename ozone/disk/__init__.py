"""The on-disk format of an Ozone datanode's volume: paths, rows, descriptors and tree files."""
