"""Calling others: channels, datanodes as peers, the control plane."""
