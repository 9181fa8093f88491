"""The agent of one host: its construction, its heartbeats, and its HTTP pages."""
