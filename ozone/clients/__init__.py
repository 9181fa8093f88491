"""Clients of Ozone's services, and the connections and messages that they use."""
