"""Detects loopback addresses. Their traffic never leaves this machine."""

import ipaddress


def is_loopback(address: str) -> bool:
    """Return True if the host in host:port is a loopback address or `localhost`. Other names are
    not resolved."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
