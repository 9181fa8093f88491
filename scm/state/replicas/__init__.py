"""The replicas in memory and on disk, in binary form because there are millions of them."""
