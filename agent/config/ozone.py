"""Checks of the options of an agent that belongs to a cluster of Apache Ozone."""

from collections.abc import Iterator, Sequence

from agent.config.options import OZONE_SCHEME, AgentConfig
from merkle.checksum import Algorithm
from suture.config.toml_file import Key
from suture.runtime.loopback import is_loopback


def ozone_scms(scm: Sequence[str]) -> tuple[str, ...]:
    """Return the addresses in `scm` that belong to storage container managers of Ozone."""
    return tuple(address for address in scm if address.startswith(OZONE_SCHEME))


def unsupported_security(config: AgentConfig) -> Iterator[tuple[tuple[Key, ...], str]]:
    """Yield options whose values contradict each other because of Ozone's security.

    If `ozone.conf` is set, yield the options that a secure cluster needs and that are not set.
    Otherwise, yield options that need TLS, because the agent then serves Ozone only in plaintext.
    Each group of options comes with a text for the error message.
    """
    ozone, tls = config.ozone, config.tls
    if ozone.conf:
        yield from _incomplete(config)
        return
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


def _incomplete(config: AgentConfig) -> Iterator[tuple[tuple[Key, ...], str]]:
    """Yield the options that a secure cluster needs and that are not set, with a text for the
    error."""
    ozone = config.ozone
    needed = {
        "listen": ozone.listen,
        "replication_listen": ozone.replication_listen,
        "certificate_dir": ozone.certificate_dir,
    }
    for name, value in needed.items():
        if not value:
            yield ((("ozone", "conf"), ("ozone", name)), f"a secure cluster needs ozone.{name}")
    if not ozone_scms(config.node.scm):
        yield (
            (("ozone", "conf"), ("node", "scm")),
            f"in a secure cluster an agent is led by Ozone's SCM: name it with {OZONE_SCHEME}",
        )


def external_scm_conflicts(config: AgentConfig) -> Iterator[tuple[tuple[Key, ...], str]]:
    """Yield options that cannot be combined with an SCM of Ozone, with a text for the error
    message."""
    scm, theirs = config.node.scm, ozone_scms(config.node.scm)
    if not theirs:
        return
    if len(theirs) < len(scm):
        yield (
            (("node", "scm"),),
            "an agent is led by Suture's control plane or by Ozone's, never by both: name only "
            f"addresses with {OZONE_SCHEME}, or none",
        )
    if config.ozone.conf:
        pass  # no conflict, because the SCM is called with Kerberos
    elif config.tls.certificate is not None:
        yield (
            (("node", "scm"), ("tls", "certificate")),
            "this agent has certificates, so it is meant to be secure; without ozone.conf it calls "
            "Ozone's SCM in plaintext: set ozone.conf to the directory of its ozone-site.xml",
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
