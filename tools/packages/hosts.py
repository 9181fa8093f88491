"""Debian roots in which packages are tried: no systemd runs there, but its units' commands do."""

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from string import Template

STOP_S = 60
RUN_S = 1200  # the package of the Spark job has a gigabyte


class Fault(Exception):
    """Raised if a package does not behave as documented."""


class Host:
    """A Debian root, and the processes of its units."""

    def __init__(self, root: Path, number: int) -> None:
        self.root = root
        self.address = f"127.0.0.{number}"
        self.name = f"datanode{number}.example.org"
        self._running: list[subprocess.Popen[str]] = []

    def run(self, command: str) -> str:
        """Run a shell command on this host; return its output. Raise Fault if it fails."""
        done = subprocess.run(
            ["chroot", self.root, "/bin/bash", "-c", command],  # noqa: S607
            capture_output=True,
            text=True,
            timeout=RUN_S,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        )
        if done.returncode not in {0, 2, 3}:  # 2: there is work to do; 3: not all is known yet
            raise Fault(f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def start(self, unit: str) -> None:
        """Start the command of a unit, and wait until it reports that it listens. Raise Fault if it
        does not."""
        text = (self.root / "usr/lib/systemd/system" / unit).read_text()
        (command,) = re.findall(r"^ExecStart=(.+)$", text, re.MULTILINE)
        (folder,) = re.findall(r"^StateDirectory=(.+)$", text, re.MULTILINE)
        (logs,) = re.findall(r"^LogsDirectory=(.+)$", text, re.MULTILINE)
        self.run(f"install -d -m 0750 -o suture -g suture /var/lib/{folder} /var/log/{logs}")
        declared = " ".join(re.findall(r"^Environment=(.+)$", text, re.MULTILINE))
        settings = dict(word.split("=", 1) for word in declared.split())
        for path in re.findall(r"^EnvironmentFile=-(.+)$", text, re.MULTILINE):
            file = self.root / path.removeprefix("/")
            if file.exists():
                settings |= dict(re.findall(r"^(\w+)=(.+)$", file.read_text(), re.MULTILINE))
        log = self.root / "var/log" / f"{unit}.log"
        process = subprocess.Popen(
            ["chroot", "--userspec=suture:suture", self.root,  # noqa: S607
             *Template(command).safe_substitute({"OPTIONS": "", **settings}).split()],
            stdout=subprocess.PIPE,
            stderr=log.open("w"),
            text=True,
        )  # fmt: skip
        self._running.append(process)
        assert process.stdout is not None
        if "listening" not in process.stdout.readline():
            raise Fault(f"{unit} does not listen: {log.read_text()}")

    def stop(self) -> None:
        """Stop the units' processes, which drain first. Raise Fault if one does not end cleanly."""
        for process in reversed(self._running):
            process.terminate()
            if process.wait(STOP_S) != 0:
                raise Fault(f"{process.args!r}: exit code {process.returncode} when stopped")
        self._running.clear()

    def kill(self) -> None:
        """Kill all remaining processes."""
        for process in self._running:
            process.kill()
            process.wait()


def this_suite() -> str:
    """Return the name of this machine's Debian release."""
    codename = re.search(r"VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text())
    assert codename is not None
    return codename[1]


def made(base: Path, suite: str) -> Path:
    """Return a Debian root, created by mmdebstrap unless it exists."""
    if not (base / "usr/bin/dpkg").exists():
        base.mkdir(parents=True, exist_ok=True)
        run("mmdebstrap", "--quiet", "--variant=minbase", "--include=python3,systemd", suite, base)
    return base


@contextmanager
def a_host(base: Path, number: int) -> Iterator[Host]:
    """Mount an overlay of the common root; remove it at the end."""
    with tempfile.TemporaryDirectory(prefix="suture-host-", dir=base.parent) as scratch:
        upper, work, root = (Path(scratch) / name for name in ("upper", "work", "root"))
        for folder in (upper, work, root):
            folder.mkdir()
        options = f"lowerdir={base},upperdir={upper},workdir={work}"
        run("mount", "-t", "overlay", "overlay", "-o", options, root)
        run("mount", "--bind", "/dev", root / "dev")
        run("mount", "-t", "proc", "proc", root / "proc")
        host = Host(root, number)
        try:
            yield host
        finally:
            host.kill()
            for mounted in (root / "proc", root / "dev", root):
                run("umount", mounted)


def run(*command: str | Path) -> None:
    """Run a command of this machine."""
    subprocess.run(command, check=True)
