"""Repairs a damaged replica from its peers, on the host of a stopped datanode of Ozone."""
