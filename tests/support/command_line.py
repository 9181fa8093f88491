"""Runs `suture` in this process, as a user does, against one cluster."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from agent.cli.main import run
from suture.runtime.exit_codes import ExitCode
from tests.support.command_tree import command_of
from tests.support.printed_json import document_in
from tests.support.waiting import wait_until


@dataclass(frozen=True, slots=True)
class CommandLine:
    """Runs commands of `suture` with the option `--scm` of one cluster."""

    scm: str
    capsys: pytest.CaptureFixture[str]

    def words(self, *arguments: str) -> list[str]:
        """Return the arguments of a command, with `--scm` added."""
        return [*arguments, "--scm", self.scm]

    def __call__(self, *arguments: str, code: int = ExitCode.OK) -> str:
        """Run a command; return its stdout. Fail if its exit code is not `code`."""
        self.capsys.readouterr()
        actual = run(self.words(*arguments))
        shown = self.capsys.readouterr()
        assert code == actual, shown.out + shown.err
        return shown.out

    def json(self, *arguments: str, code: int = ExitCode.OK) -> Any:
        """Run a command with --json; return the document. Fail if its exit code is not `code`."""
        return document_in(self(*arguments, "--json", code=code), " ".join(command_of(arguments)))

    def json_any(self, *arguments: str) -> Any:
        """Run a command with --json; return the document whatever the exit code is."""
        self.capsys.readouterr()
        run(self.words(*arguments, "--json"))
        return document_in(self.capsys.readouterr().out, " ".join(command_of(arguments)))

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Poll a condition of the cluster until it is true."""
        wait_until(condition)

    def status_when_well(self, *, within_s: float | None = None) -> str:
        """Run `status` until it finds no fault; return its output. This may take some seconds,
        because the cluster may still be repairing damage that an earlier test left."""
        shown = ""

        def is_well() -> bool:
            nonlocal shown
            self.capsys.readouterr()
            code = run(self.words("status"))
            shown = self.capsys.readouterr().out
            return code == ExitCode.OK

        try:
            wait_until(is_well, within_s=within_s)
        except AssertionError as error:
            raise AssertionError(f"the cluster is still not well:\n{shown}") from error
        return shown

    def wait_until_reported(self, container_id: int, replica_count: int = 3) -> dict[str, Any]:
        """Wait until the control plane knows all replicas, because the report of a new replica
        takes a moment. Return the control plane's record of the container."""
        found: dict[str, Any] = {}

        def reported() -> bool:
            found.update(self.json("scm", "containers", str(container_id)))
            return replica_count == len(found["replicas"])

        self.wait_until(reported)
        return found

    def wait_until_closed(self, container_ids: list[int]) -> list[dict[str, Any]]:
        """Wait until the containers are closed and compared; return the SCM's records of them."""
        found: list[dict[str, Any]] = []

        def closed() -> bool:
            found[:] = [
                container
                for container in self.json("scm", "containers")["containers"]
                if int(container["container_id"]) in container_ids
            ]
            return len({*container_ids}) == len(found) and all(
                c["state"] == "CLOSED" and c["checksums"] == "match" for c in found
            )

        self.wait_until(closed)
        return found
