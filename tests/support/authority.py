"""A private certificate authority, and certificates from it, made by the product's own code."""

from datetime import timedelta
from pathlib import Path

from suture.wire.security import pki
from suture.wire.security.caller import Role
from suture.wire.security.tls import Security, TlsFiles, load_security

HOSTS = ("127.0.0.1", "localhost")


class Authority:
    """A certificate authority in a directory. Its certificates are for this machine."""

    def __init__(self, directory: Path, name: str = "Test CA") -> None:
        self.directory = directory
        self.ca = pki.create_authority(directory, name=name, days=30, now=pki.now())

    def issue(
        self,
        name: str,
        *roles: Role,
        node_id: str = "",
        hosts: tuple[str, ...] = HOSTS,
        age_days: int = 0,
        days: int = 10,
    ) -> TlsFiles:
        """Issue a certificate whose validity began `age_days` ago and lasts `days`; return its
        files."""
        order = pki.CertificateRequest(
            name=name, roles=roles, hosts=hosts, node_id=node_id, days=days
        )
        at = pki.now() - timedelta(days=age_days)
        certificate, key = pki.issue(self.directory, order, now=at)
        return TlsFiles(certificate, key, self.ca)

    def security(self, name: str, *roles: Role, node_id: str = "", age_days: int = 0) -> Security:
        """Issue a certificate; return the TLS settings with which its holder calls and serves."""
        return load_security(self.issue(name, *roles, node_id=node_id, age_days=age_days))


def arguments(files: TlsFiles) -> list[str]:
    """Return the command line options of `suture` that select the certificate, key and CA."""
    return [
        f"--tls-certificate={files.certificate}",
        f"--tls-key={files.key}",
        f"--tls-ca={files.ca}",
    ]
