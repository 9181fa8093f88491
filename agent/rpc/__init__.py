"""The wire: protobuf messages to values and back, servers and clients."""
