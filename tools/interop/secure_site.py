"""The security of a cluster of Apache Ozone: a KDC, TLS, tokens, and the agents in it.

The KDC is krb5kdc. The host needs an address beside loopback, because Ozone's CA signs no loopback.
"""

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ozone.clients.authentication import Identity
from ozone.clients.datanode import NO_SECURITY, DatanodeAccess
from ozone.clients.kerberos import KerberosIdentity
from ozone.clients.site_config import read_site_config
from ozone.security.datanode_access import datanode_access
from tests.support.ozone.kerberos import REALM, SCM, Kdc, kdc_in, missing_programs
from tools.interop import agents
from tools.interop.cluster import PrerequisiteMissing

HOST: Final = "dn.example.com"  # Ozone's CA wants a name for the addresses that it signs
PROTECTION: Final = "hadoop.rpc.protection"
LEVELS: Final = ("authentication", "integrity", "privacy")
ROTATION_S: Final = 60  # of the secret keys: several within a trial
ADMIN: Final = "admin"
USER: Final = "user"
CONFIG: Final = """[node]
listen = "127.0.0.1:{control}"
advertise = "{address}:{control}"
scm = "ozone://127.0.0.1:{{port}}"
[observe]
listen = "127.0.0.1:0"
[storage]
volumes = ["{{volume}}"]
tree_algorithm = "crc32c"
[scan]
enabled = false
[ozone]
listen = "0.0.0.0:{{door}}"
replication_listen = "0.0.0.0:{archives}"
heartbeat_interval_s = 1
conf = "{conf}"
certificate_dir = "{tls}"
"""  # of an agent; the double braces are filled in by Agent


@dataclass(frozen=True, slots=True)
class SiteSecurity:
    """The security of a cluster; by default it has none. `jvm` are options of its processes."""

    address: str = "127.0.0.1"
    settings: Mapping[str, str] = field(default_factory=dict)
    jvm: Sequence[str] = ()
    keytabs: Mapping[str, Path] = field(default_factory=dict)

    @property
    def login(self) -> Sequence[str]:
        """The arguments of Ozone's client: an administrator's principal and keytab."""
        return (f"{ADMIN}@{REALM}", str(self.keytabs[ADMIN])) if self.keytabs else ()

    def identity(self) -> Identity:
        """Return the identity of a user."""
        if not self.keytabs:
            return agents.USER
        return KerberosIdentity(SCM, f"{USER}@{REALM}", self.keytabs[USER])

    def access(self, conf: Path) -> DatanodeAccess:
        """Return the access to datanodes, as the datanode whose files are in `conf`."""
        if not self.keytabs:
            return NO_SECURITY
        return datanode_access(read_site_config(conf), lambda: int(time.time() * 1000))

    def agent_config(self, place: Path, conf: Path, free_port: Callable[[], int]) -> str:
        """Return the template of an agent's configuration."""
        if not self.keytabs:
            return agents.CONFIG
        return CONFIG.format(
            address=self.address,
            control=free_port(),
            archives=free_port(),
            conf=conf,
            tls=place / "tls",
        )


def settings(kdc: Kdc, address: str) -> dict[str, str]:
    """Return the options that make a cluster secure. Its clients accept each protection level."""
    found = {
        "ozone.security.enabled": "true",
        "hadoop.security.authentication": "kerberos",
        "hadoop.security.authorization": "true",
        PROTECTION: ",".join(reversed(LEVELS)),
        "hdds.grpc.tls.enabled": "true",
        "hdds.block.token.enabled": "true",
        "hdds.container.token.enabled": "true",
        "ozone.administrators": "scm,om,admin",
        "hdds.datanode.hostname": address,
        "hdds.datanode.use.datanode.hostname": "true",
        "hdds.secret.key.rotate.duration": f"{ROTATION_S}s",
        "hdds.secret.key.rotate.check.duration": "10s",
    }
    for part, name in (("hdds.scm", "scm"), ("ozone.om", "om"), ("hdds.datanode", "dn")):
        principal = f"{name}/localhost@{REALM}"
        found[f"{part}.kerberos.principal"] = principal
        found[f"{part}.kerberos.keytab.file"] = str(kdc.keytab(principal))
    return found


def own_address() -> str:
    """Return an address of this host beside loopback. Raise PrerequisiteMissing if it has none."""
    done = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=False)  # noqa: S607
    for word in done.stdout.split():
        if ":" not in word and not word.startswith("127."):
            return word
    raise PrerequisiteMissing("this host has no address beside loopback")


@contextmanager
def secured(place: Path) -> Iterator[SiteSecurity]:
    """Run a KDC below `place`. Raise PrerequisiteMissing if that is not possible here."""
    if missing := missing_programs():
        raise PrerequisiteMissing(f"Kerberos is not installed: {', '.join(missing)}")
    address = own_address()
    (place / "kdc").mkdir()
    with kdc_in(place / "kdc") as kdc:
        os.environ["KRB5_CONFIG"] = kdc.environment["KRB5_CONFIG"]
        names = [("127.0.0.1", "localhost"), ("127.0.0.1", HOST)]
        names += [("127.0.0.1", socket.gethostname()), (address, HOST)]
        hosts = place / "hosts"
        hosts.write_text("".join(f"{ip} {name}\n" for ip, name in names))
        jvm = [
            f"-Djava.security.krb5.conf={os.environ['KRB5_CONFIG']}",
            f"-Djdk.net.hosts.file={hosts}",
            "--add-opens",
            "java.security.jgss/sun.security.krb5=ALL-UNNAMED",
        ]
        keytabs = {name: kdc.keytab(f"{name}@{REALM}") for name in (ADMIN, USER)}
        yield SiteSecurity(address, settings(kdc, address), jvm, keytabs)
