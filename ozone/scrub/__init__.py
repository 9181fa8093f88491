"""Scrubs of the volumes of Ozone's datanodes: once, or all the time as a service."""
