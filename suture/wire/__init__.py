"""The communication between processes: messages, their conversion, clients, servers and
certificates."""
