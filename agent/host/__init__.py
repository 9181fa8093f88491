"""The agent of one host, put together; its heartbeats, and what it shows."""
