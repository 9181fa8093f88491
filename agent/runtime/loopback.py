"""Which addresses are on this machine for certain: what is said to them, no other host hears."""

import ipaddress


def is_loopback(address: str) -> bool:
    """Whether host:port is loopback: by number, or as localhost. Other names are never resolved."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
