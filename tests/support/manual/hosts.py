"""Hosts of the manual, simulated on this machine: addresses, directories, and running units.

The left column is in the manual; the right column is its replacement in the tests:

    scm.example.org, datanode1.example.org   addresses of loopback, with the ports of the manual
    /etc/suture, /var, /srv, /data, /mnt the same, below a directory of the host
    ~                                        a directory of the host
    a unit                                   the command of its file in systemd/, with its settings,
                                             as a child process: no systemd, no other user
    the journal of a unit                    the stderr of that process
"""

import json
import os
import re
import shlex
import signal
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from string import Template
from typing import Final
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from tests.support.nursery import forked
from tests.support.process_logs import log_lines
from tests.support.waiting import wait_until
from tools.demo.cluster import Process, launched

ROOT: Final = Path(__file__).resolve().parents[3]
UNITS: Final = ROOT / "systemd"
PORTS: Final = (9859, 9860, 9861, 9862, 9866)  # ports of the manual and the units
PLACES: Final = (
    r"(?<![\w./~-])/(etc/suture|etc/systemd|usr/share/suture|var/lib|var/log|srv|data|mnt|tmp)\b"
)
PROGRAMS: Final = {"suture-agent": "agent.main", "suture-scm": "scm.main"}
SITES_MAX: Final = 64 * 256


def free_network() -> str:
    """Return the first three numbers of a loopback network in which no server listens on the
    manual's ports."""
    for number in range(SITES_MAX):
        site = (os.getpid() + number) % SITES_MAX
        network = f"127.{64 + site // 256}.{site % 256}"
        if all(_is_free(f"{network}.1", port) for port in PORTS):
            return network
    raise AssertionError("no network of loopback is free")


def _is_free(address: str, port: int) -> bool:
    with closing(socket.socket()) as probe:
        try:
            probe.bind((address, port))
        except OSError:
            return False
        return True


class Host:
    """A simulated host: an address, a directory for everything below `/`, and the processes of its
    units."""

    def __init__(self, site: "Site", number: int) -> None:
        self.site = site
        self.name = f"datanode{number}.example.org"
        self.address = f"{site.network}.{10 + number}"
        self.root = site.root / f"host{number}"
        self.home = self.root / "root"
        self.directory = self.home  # working directory of typed commands
        self.running: dict[str, Process] = {}
        self.home.mkdir(parents=True)

    def placed(self, text: str) -> str:
        """Return a text of the manual or of a unit, with the paths and names of this host."""
        for name, address in self.site.names().items():
            text = text.replace(name, address)
        text = text.replace("/opt/suture/venv/bin/", "").replace("127.0.0.1", self.address)
        placed_already = f"(?!{re.escape(str(self.root))})"
        return re.sub(placed_already + PLACES, rf"{self.root}/\1", text)

    def path(self, name: str) -> Path:
        """Return the path of a file of the manual on this host."""
        return Path(self.placed(name))

    def write(self, path: str, content: str) -> None:
        """Write a file of the manual."""
        file = self.path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(self.placed(content))

    def journal(self, unit: str) -> Path:
        """Return the file with the stderr of a unit's process."""
        return self.root / f"{unit}.log"

    def command_of(self, unit: str) -> list[str]:
        """Return the command line of a unit, with its settings inserted."""
        text = (UNITS / unit).read_text()
        for drop_in in sorted(self.path(f"/etc/systemd/system/{unit}.d").glob("*.conf")):
            text += drop_in.read_text()
        settings = {"OPTIONS": ""}
        for line in re.findall(r"^Environment=(.+)$", text, re.MULTILINE):
            settings |= dict(word.split("=", 1) for word in shlex.split(line))
        for path in re.findall(r"^EnvironmentFile=-?(.+)$", text, re.MULTILINE):
            file = self.path(path)
            lines = file.read_text() if file.exists() else ""
            settings |= dict(re.findall(r"^(\w+)=(.*)$", lines, re.MULTILINE))
        for kind, names in re.findall(r"^(State|Logs)Directory=(.+)$", text, re.MULTILINE):
            for name in names.split():
                folder = "lib" if kind == "State" else "log"
                self.path(f"/var/{folder}/{name}").mkdir(parents=True, exist_ok=True)
        *_, command = re.findall(r"^ExecStart=(.+)$", text, re.MULTILINE)
        return shlex.split(self.placed(Template(command).safe_substitute(settings)))

    def start(self, unit: str) -> None:
        """Start a unit if it does not run, and wait until it serves."""
        if unit in self.running:
            return
        program, *words = self.command_of(f"{unit}.service")
        module = PROGRAMS.get(program, "agent.cli.start")
        launch = forked if program in PROGRAMS else launched
        process = Process(unit, [module, *words], self.journal(unit), launch=launch)
        self.running[unit] = process
        if program in PROGRAMS:
            process.start()
        else:
            process.spawn()
            wait_until(lambda: self.answers("9866/healthz") != "")

    def stop(self, unit: str) -> None:
        """Stop a unit as systemd does. It must drain, and end without an error."""
        code = self.running.pop(unit).stop()
        assert code == 0, f"{unit} ended with {code}: {self.journal(unit).read_text()[-2000:]}"

    def reload(self, unit: str) -> None:
        """Make a unit's process reload its configuration."""
        popen = self.running[unit].popen
        assert popen is not None
        popen.send_signal(signal.SIGHUP)

    def is_running(self, unit: str) -> bool:
        """Return True if a unit's process is running."""
        process = self.running.get(unit)
        return process is not None and process.popen is not None and process.popen.poll() is None

    def answers(self, port_and_path: str) -> str:
        """Return the body of this host's response to an HTTP request, of any status; "" if there is
        no response."""
        with suppress(URLError):
            try:
                with urlopen(f"http://{self.address}:{port_and_path}", timeout=10) as answer:
                    return str(answer.read().decode())
            except HTTPError as error:
                return error.read().decode()
        return ""

    def events(self, unit: str) -> Iterator[str]:
        """Yield the lines of a unit's journal, each of which is an event."""
        for line in log_lines(self.journal(unit)):
            json.loads(line)
            yield line


class Site:
    """Several hosts; the first one also runs the control plane."""

    def __init__(self, root: Path, *, hosts: int = 3) -> None:
        self.root = root
        self.network = free_network()
        self.hosts = [Host(self, number) for number in range(1, hosts + 1)]

    def names(self) -> dict[str, str]:
        """Return the manual's host names with their addresses on this machine."""
        own = {host.name: host.address for host in self.hosts}
        scm = {f"scm{number}.example.org": f"{self.network}.{number or 1}" for number in ("", 2)}
        return own | scm

    @property
    def scm(self) -> str:
        """The address of the control plane."""
        return f"{self.network}.1:9860"

    def stop(self) -> None:
        """Stop all processes, the control plane last."""
        for host in self.hosts:
            for unit in [unit for unit in host.running if unit != "suture-scm"]:
                host.running.pop(unit).stop()
        for host in self.hosts:
            for unit in list(host.running):
                host.running.pop(unit).stop()
