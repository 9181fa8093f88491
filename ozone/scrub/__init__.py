"""Scrubs volumes of Ozone's datanodes, once or continuously as a service."""
