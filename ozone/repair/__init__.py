"""Repair of one damaged replica on the host of a stopped datanode of Ozone, from its peers."""
