"""Loopback addresses, whose traffic never leaves this machine."""

import ipaddress


def is_loopback(address: str) -> bool:
    """Return whether host:port is loopback, by number or as localhost. Other names are never
    resolved."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
