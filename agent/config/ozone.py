"""Options of an agent that is a datanode among those of Apache Ozone."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field, StringConstraints

from agent.config.section import Address, Count, Seconds, Section
from agent.config.toml_file import Key
from agent.runtime.loopback import is_loopback
from merkle.checksum import Algorithm

if TYPE_CHECKING:
    from agent.config.options import AgentConfig

OZONE_SCHEME: Final = "ozone://"
ScmAddress = Annotated[
    str, StringConstraints(pattern=r"^(ozone://)?(\[[0-9a-fA-F:]+\]|[^:/\s]+):\d{1,5}$")
]


class OzoneConfig(Section):
    """An agent as a datanode of Apache Ozone: it serves Ozone's datanodes and clients, and may be
    led by Ozone's storage container manager (node.scm = "ozone://host:9861")."""

    listen: Literal[""] | Address = Field(
        "",
        description="Address for Ozone's datanodes and clients, host:port, in plaintext; Ozone's "
        'own default port is 9859; "": none.',
    )
    heartbeat_interval_s: Seconds = Field(
        30.0,
        ge=0.1,
        le=300,
        description="Longest time between two heartbeats to Ozone's SCM; that of its own datanodes "
        "is hdds.heartbeat.interval.",
    )
    layout_version: Count = Field(
        10,
        ge=1,
        le=1_000,
        description="Layout version of the software of Ozone's SCM, which lets in no other: 10 for "
        "Ozone 2.2, 9 for 2.1.",
    )


def ozone_scms(scm: Sequence[str]) -> tuple[str, ...]:
    """Return those of the addresses that are of Ozone's storage container managers."""
    return tuple(address for address in scm if address.startswith(OZONE_SCHEME))


def unspoken(config: "AgentConfig") -> Iterator[tuple[tuple[Key, ...], str]]:
    """Yield what Ozone would have to be served with, and is not: its tokens and its TLS."""
    ozone, tls = config.ozone, config.tls
    if not ozone.listen:
        return
    if tls.certificate is not None:
        yield (
            (("ozone", "listen"), ("tls", "certificate")),
            "this agent has certificates, so it serves nobody without one; Ozone's protocol is "
            "spoken in plaintext only, without its tokens: remove one of the two",
        )
    elif not tls.allow_plaintext and not is_loopback(ozone.listen):
        yield (
            (("ozone", "listen"), ("tls", "allow_plaintext")),
            f"{ozone.listen} is not loopback, and Ozone's protocol is spoken in plaintext only: "
            "anybody on the network could read and change what is there; set tls.allow_plaintext "
            "if that is meant",
        )


def misled(config: "AgentConfig") -> Iterator[tuple[tuple[Key, ...], str]]:
    """Yield why an agent cannot be led by the storage container managers that it names."""
    scm, theirs = config.node.scm, ozone_scms(config.node.scm)
    if not theirs:
        return
    if len(theirs) < len(scm):
        yield (
            (("node", "scm"),),
            "an agent is led by Suture's control plane or by Ozone's, never by both: name only "
            f"addresses with {OZONE_SCHEME}, or none",
        )
    if config.tls.certificate is not None:
        yield (
            (("node", "scm"), ("tls", "certificate")),
            "this agent has certificates, so it is meant to be secure; with Ozone's SCM it speaks "
            "plaintext only, without Kerberos, tokens and TLS: a secure cluster of Ozone cannot "
            "lead it yet",
        )
    elif not config.tls.allow_plaintext:
        for address in theirs:
            if not is_loopback(address.removeprefix(OZONE_SCHEME)):
                yield (
                    (("node", "scm"), ("tls", "allow_plaintext")),
                    f"{address} is not loopback, and Ozone's SCM is spoken to in plaintext only: "
                    "anybody on the network could give this agent orders; set "
                    "tls.allow_plaintext if that is meant",
                )
    if not config.ozone.listen:
        yield (
            (("node", "scm"), ("ozone", "listen")),
            "Ozone's SCM sends Ozone's datanodes and clients here: set ozone.listen",
        )
    if config.storage.tree_algorithm is not Algorithm.CRC32C:
        yield (
            (("node", "scm"), ("storage", "tree_algorithm")),
            "Ozone compares trees of CRC-32C, and no others: set storage.tree_algorithm to crc32c",
        )
