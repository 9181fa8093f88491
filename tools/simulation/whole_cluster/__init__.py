"""Schedules with a real control plane and complete agents: heartbeats, commands, worker loops."""
