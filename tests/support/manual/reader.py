"""Follows a manual: runs its commands on the right simulated host, and compares the output."""

import shlex
from pathlib import Path
from typing import Final

import pytest

from agent.cli.main import run
from suture.runtime.exit_codes import ExitCode
from tests.support.command_line import CommandLine
from tests.support.manual.hosts import Host, Site
from tests.support.manual.reading import Step, header, words_of
from tests.support.manual.stand_ins import STAND_INS
from tests.support.waiting import wait_until

LISTED: Final = {
    "dpkg --install dist/suture_0.1.0_amd64.deb": "needs root: tools/try_deb.py does it",
    "journalctl --dmesg --lines 50": "the kernel's own lines: test_disk_reports",
    "dmesg --level err --ctime": "the kernel's own lines",
    "df -h /var/lib/suture-scm": "the host's own program, of a disk that is not here",
    "iostat -x 5 3": "another package's, of the disks of a host",
    "ozone admin container reconcile ID": "Ozone's own program: make interop",
}
"""Commands that are not run in the tests, and the reason."""

PACKAGERS: Final = {
    *("make", "dpkg", "apt-get", "rpm", "dnf", "podman", "docker", "pip", "pipx"),
    *("/opt/suture/venv/bin/python", "/opt/suture/make-environment", "podman-compose"),
    "ansible-playbook",
}
"""Commands of the chapters about installing, and commands that only exist in a package or image.
The tests and tools of packaging run them."""

INSTALLING: Final = {"Install", "With Ansible", "In containers", "Install the package"}
"""The chapters with the commands in `PACKAGERS`."""

REFUSED: Final = {
    (
        "SutureParityMismatch",
        "suture scm delete NUMBER --datanode ID --dry-run",
    ): "NOT_ENOUGH_REPLICAS"
}
"""Commands that this cluster refuses, as their chapter says, because the erasure code on three
hosts has only one parity shard."""


class Reader:
    """Follows the manual: runs its commands on the host that the text means."""

    def __init__(
        self, root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.root = root
        self.site = Site(root / "site")
        self.words: dict[str, str] = {}  # replacements of the manual's placeholders
        self.typed: list[str] = []
        self.capsys = capsys
        self.monkeypatch = monkeypatch

    @property
    def host(self) -> Host:
        """The first host, on which most commands run."""
        return self.site.hosts[0]

    @property
    def suture(self) -> CommandLine:
        """The command line of an operator who is logged in on the first host."""
        return self.suture_of(self.host)

    def suture_of(self, host: Host) -> CommandLine:
        """The command line of a user who is logged in on a host."""
        self.be_at(host)
        return CommandLine(host.site.scm, self.capsys)

    def be_at(self, host: Host) -> None:
        """Log in on a host: later commands run there."""
        self.monkeypatch.setenv("HOME", str(host.home))
        self.monkeypatch.setenv("SUTURE_SCM", host.site.scm)
        self.monkeypatch.chdir(host.directory)

    def follow(self, step: Step, host: Host) -> str:
        """Write a file, or run a command unless it is in `LISTED`; return the output."""
        if step.path:
            host.write(step.path, step.content)
            return ""
        self.typed.append(step.command)
        if step.command in LISTED or is_packaging(step):
            return ""
        self.be_at(host)
        program, *words = [self.meant(word, host) for word in shlex.split(step.command)]
        if program == "suture":
            return self._run(step, words, host)
        assert program in STAND_INS, f"{step.chapter}: nothing stands for {step.command}"
        return STAND_INS[program](host, words)

    def meant(self, word: str, host: Host) -> str:
        """Return a word of a command in the manual, with the paths and names of this machine."""
        if word in self.words:
            return host.placed(self.words[word])
        for name in ("TIME", "authority/datanode1"):
            word = word.replace(name, self.words.get(name, name))
        return host.placed(word)

    def _run(self, step: Step, words: list[str], host: Host) -> str:
        """Run a command of this project; return its output. Fail if the output lacks a part of the
        output in the manual."""
        if words[:2] in (["config", "check"], ["config", "show"]) and "--config" not in words:
            words += ["--config", str(host.path("/etc/suture/agent.toml"))]
        if words[:2] == ["scm", "backup"]:
            words += ["--data", str(host.path("/var/lib/suture-scm"))]
        self.capsys.readouterr()
        code, refusal = run(words), REFUSED.get((step.chapter, step.command))
        printed = self.capsys.readouterr()
        said = f"{step.chapter}: {step.command}: {code}\n{printed.out}{printed.err}"
        if refusal is not None:
            assert code == ExitCode.FAILED, said
            assert refusal in printed.out, said
            return printed.out
        is_unknown = code == ExitCode.UNAVAILABLE and printed.out  # an answer, and no error
        assert code in {ExitCode.OK, ExitCode.TO_DO} or is_unknown, said
        assert words_of(header(step.shown)) <= words_of(printed.out), said
        return printed.out

    def registered(self, count: int, host: Host | None = None) -> None:
        """Wait until this many datanodes are healthy, as seen from a host."""

        def is_so() -> bool:
            nodes = self.suture_of(host or self.host).json_any("scm", "nodes")["nodes"]
            return ["HEALTHY"] * count == [node["health"] for node in nodes]

        wait_until(is_so)


def is_packaging(step: Step) -> bool:
    """Return True if a command of a chapter about installing belongs to a package manager."""
    return step.chapter in INSTALLING and step.command.split()[0] in PACKAGERS
