"""Options of an agent that is a datanode among those of Apache Ozone."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from agent.config.section import Address, Section
from agent.config.toml_file import Key
from agent.runtime.loopback import is_loopback


class OzoneConfig(Section):
    """An agent as a datanode of Apache Ozone: it serves Ozone's datanodes and clients."""

    listen: Literal[""] | Address = Field(
        "",
        description="Address for Ozone's datanodes and clients, host:port, in plaintext; Ozone's "
        'own default port is 9859; "": none.',
    )


def unspoken(
    ozone: OzoneConfig, *, has_certificates: bool, allows_plaintext: bool
) -> Iterator[tuple[tuple[Key, ...], str]]:
    """Yield what Ozone would have to be served with, and is not: its tokens and its TLS."""
    if not ozone.listen:
        return
    if has_certificates:
        yield (
            (("ozone", "listen"), ("tls", "certificate")),
            "this agent has certificates, so it serves nobody without one; Ozone's protocol is "
            "spoken in plaintext only, without its tokens: remove one of the two",
        )
    elif not allows_plaintext and not is_loopback(ozone.listen):
        yield (
            (("ozone", "listen"), ("tls", "allow_plaintext")),
            f"{ozone.listen} is not loopback, and Ozone's protocol is spoken in plaintext only: "
            "anybody on the network could read and change what is there; set tls.allow_plaintext "
            "if that is meant",
        )
