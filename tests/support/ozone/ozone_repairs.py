"""Runs `suture ozone repair` on a damaged volume of Ozone, with peers that have intact replicas."""

import json
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent.cli.main import run
from tests.support.ozone.ozone_datanode import FIRST, OzoneDatanode, Served, golden_peers, original
from tests.support.ozone.ozone_volumes import ROOT, each
from tests.support.printed_json import document_in

HOLD = """
import sys
from rocksdict import Options, Rdict
names = Rdict.list_cf(sys.argv[1])
families = {name: Options(raw_mode=True) for name in names}
database = Rdict(sys.argv[1], Options(raw_mode=True), column_families=families)
print("open", flush=True)
sys.stdin.read()
"""
"""Program that keeps a RocksDB open, as a running datanode does."""


@dataclass(frozen=True)
class DamagedVolume:
    """A copy of the damaged volume of the golden set, for one test."""

    data_dir: Path
    state_dir: Path
    damage: Sequence[dict[str, Any]]

    def file(self, container_id: int, number: int) -> Path:
        """Return the path of a block, by its number in the golden set."""
        pattern = f"hdds/*/current/containerDir0/{container_id}/chunks"
        (chunks,) = each(self.data_dir, pattern)
        return chunks / f"{FIRST + number}.block"

    def descriptor(self, container_id: int) -> Path:
        """Return the path of a container's descriptor."""
        pattern = f"hdds/*/current/containerDir0/{container_id}/metadata/{container_id}.container"
        (path,) = each(self.data_dir, pattern)
        return path

    @property
    def database(self) -> Path:
        """The volume's RocksDB."""
        (path,) = each(self.data_dir, "hdds/*/DS-*/container.db")
        return path

    def damaged_numbers(self, container_id: int) -> set[int]:
        """The numbers of the blocks that lost bytes. Blocks to which bytes were only appended are
        left out."""
        names = {
            name
            for item in self.damage
            if item["container"] == container_id and item["kind"] != "append"
            for name in (item["file"], item.get("with"))
            if name
        }
        return {int(name.removesuffix(".block")) - FIRST for name in names}

    def is_whole(self, container_id: int, number: int, length_bytes: int) -> bool:
        """Return True if a block file begins with the `length_bytes` bytes of the client."""
        path = self.file(container_id, number)
        wanted = original(FIRST + number, length_bytes)
        return path.is_file() and path.read_bytes()[:length_bytes] == wanted

    def repair(self, container_id: int, peers: Sequence[str], *more: str) -> int:
        """Run `ozone repair` in this process; return its exit code."""
        return run(self.command(container_id, peers, *more))

    def command(self, container_id: int, peers: Sequence[str], *more: str) -> list[str]:
        """Return the arguments of `ozone repair` for a container."""
        named = [word for peer in peers for word in ("--peer", peer)]
        place = ["--state-dir", str(self.state_dir)]
        container = ["--container", str(container_id)]
        return ["ozone", "repair", str(self.data_dir), *container, *named, *place, *more]

    def document(
        self, capsys: pytest.CaptureFixture[str], container_id: int, peers: Sequence[str],
        *more: str,
    ) -> dict[str, Any]:  # fmt: skip
        """Run `ozone repair` with --json; return the document."""
        capsys.readouterr()
        self.repair(container_id, peers, "--json", *(more or ("--yes",)))
        return document_in(capsys.readouterr().out, "ozone repair")


def damaged_volume(golden: Path, target: Path) -> DamagedVolume:
    """Copy the damaged volume of the golden set below `target`; return the copy."""
    shutil.copytree(golden / "dn0-damaged", target / "data")
    damage = json.loads((golden / "damage.json").read_text())
    return DamagedVolume(target / "data", target / "state", damage)


def addresses(peers: Sequence[OzoneDatanode]) -> list[str]:
    """Return the addresses on which peers listen."""
    return [peer.address for peer in peers]


@contextmanager
def peers_of(golden: Path, *, table: str = "closed") -> Iterator[list[OzoneDatanode]]:
    """Run the two datanodes with intact replicas."""
    with serving(golden_peers(golden, table=table)) as running:
        yield running


@contextmanager
def serving(
    replicas: Sequence[dict[int, Served]], *, knows_trees: bool = True
) -> Iterator[list[OzoneDatanode]]:
    """Run a datanode for each replica; without `knows_trees`, datanodes of Ozone before 2.1."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(OzoneDatanode(each_one, knows_trees=knows_trees))
            for each_one in replicas
        ]


@contextmanager
def closing_port() -> Iterator[int]:
    """Run a server that closes each connection after the first received byte, like a server that
    expects TLS; yield its port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):  # closed at the end
                while True:
                    connection, _ = listening.accept()
                    connection.recv(1)
                    connection.close()

        server = threading.Thread(target=serve, daemon=True)
        server.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
    server.join(5)


@contextmanager
def held_open(database: Path) -> Iterator[int]:
    """Run a process that keeps a database open; yield the process id."""
    command = [sys.executable, "-c", HOLD, str(database)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert "open" == holder.stdout.readline().strip()
        yield holder.pid
        holder.stdin.close()
