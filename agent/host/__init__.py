"""The agent process of one host: construction of its parts, heartbeats, HTTP pages."""
