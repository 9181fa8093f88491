"""Clients of the gRPC services of datanodes and of the control plane."""
