"""Clients of the gRPC services: channels, datanodes as peers, the control plane."""
