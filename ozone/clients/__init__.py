"""Clients of Ozone's services: frames, messages, connections."""
