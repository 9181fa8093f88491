"""Datanodes, their replicas, and the commands to datanodes."""
