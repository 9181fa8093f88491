"""Serves the store of an agent to Ozone's datanodes and clients, like a datanode of Ozone."""
