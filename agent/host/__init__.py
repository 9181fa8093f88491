"""The agent process of one host: its construction, heartbeats and HTTP pages."""
