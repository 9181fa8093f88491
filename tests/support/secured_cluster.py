"""A control plane and agents in separate processes that use mutual TLS for all connections."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from merkle.checksum import Algorithm
from suture.wire.security.caller import Role
from suture.wire.security.tls import TlsFiles
from tests.support.authority import Authority, arguments
from tests.support.command_line import CommandLine
from tests.support.nursery import forked
from tools.demo.cluster import Cluster

SECTIONS: Final = """
[scan]
enabled = false
watch = false
[observe]
listen = "127.0.0.1:0"
audit_file = "{audit}"
[tls]
certificate = "{certificate}"
key = "{key}"
ca = "{ca}"
"""


class SecuredCluster(Cluster):
    """A cluster whose processes each have their own certificate and audit log."""

    def __init__(
        self, root: Path, authority: Authority, algorithm: Algorithm = Algorithm.XXH3_64
    ) -> None:
        self.authority = authority
        self.algorithm = algorithm
        scm = authority.issue("scm", Role.SCM)
        super().__init__(
            root,
            agents=3,
            volumes=1,
            heartbeat_interval_ms=100,
            scm_settings={
                "tls_certificate": str(scm.certificate),
                "tls_key": str(scm.key),
                "tls_ca": str(scm.ca),
                "audit_file": str(root / "scm-audit.jsonl"),
            },
            launch=forked,
        )

    def write_config(self, index: int, listen: str = "") -> Path:
        """Write the config of one agent, with its certificate."""
        path = super().write_config(index, listen)
        files = self.authority.issue(f"datanode{index + 1}", Role.PEER)
        text = path.read_text().replace('[observe]\nlisten = "127.0.0.1:0"\n', "")
        text = text.replace("[storage]\n", f'[storage]\ntree_algorithm = "{self.algorithm}"\n')
        path.write_text(
            text
            + SECTIONS.format(
                audit=self.root / f"audit{index + 1}.jsonl",
                certificate=files.certificate,
                key=files.key,
                ca=files.ca,
            )
        )
        return path


@dataclass(frozen=True, slots=True)
class SecuredCommandLine(CommandLine):
    """Runs commands of `suture` with the TLS options of one user."""

    files: TlsFiles

    def words(self, *given: str) -> list[str]:
        """Return all words of a command, with the certificate."""
        return [*arguments(self.files), *CommandLine.words(self, *given)]
