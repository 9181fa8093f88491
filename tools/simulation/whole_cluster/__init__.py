"""Schedules in which a real control plane leads whole agents: heartbeats, commands, loops."""
