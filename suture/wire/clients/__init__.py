"""Outgoing calls: channels, datanodes as peers, the control plane."""
