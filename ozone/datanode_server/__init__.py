"""Serves an agent's store as a datanode of Ozone, to Ozone's peers and clients."""
