"""Skips that CI accepts, each with its reason. Every other skip fails CI (`--known-skips`).

A test that is always skipped tests nothing. Therefore tools/bootstrap.sh installs everything that
tests need and apt provides. A skip may be listed only if its test needs something that apt cannot
provide: a kernel, an image, another Python.
"""

from typing import Final

import pytest

KNOWN: Final = {
    "only root": "the suite also runs for users who may not mount",
    "by root only": "the same",
    "root and setpriv": "the same",
    "files are given to the user suture": "the same",
    "the kernel has no": "apt brings no kernel",
    "no loop devices here": "the same",
    "(FIEMAP)": "tmpfs and overlayfs cannot say it",
    "this C library has no": "another C library than glibc gives memory back as it likes",
    "there is no memory to write to": "a container may have no /dev/shm",
    "no host can be renamed here": "a container may have no user namespace",
    "no network can be made here": "the same",
    "the filter knows no numbers of this machine": "it is for x86-64 and AArch64",
    "podman": "a host may not be allowed to run containers",
    "there is no image": "the same",
    "has no library for Spark": "formats of tables follow Spark's releases months later",
    "the whole set of real volumes is not here": "it is too large for the repository",
    "Go is not installed": "Debian's Go is older than gRPC needs",
    "the Go peer": "the same",
    "buf is not installed": "npm brings it, or Go compiles it",
    "needs Java and Maven": "what Maven fetches needs a registry",
    "Maven could not fetch": "the same",
    "Kerberos is not installed": "gssapi is compiled, and a host may lack headers of its Python",
    "no package index answers": "a host may have no way to one",
}
"""By a part of the reason that a test gives: the reason why CI accepts the skip."""


class KnownSkips:
    """Plugin of pytest that fails a run if a test was skipped for a reason that is not in
    `KNOWN`."""

    def __init__(self) -> None:
        self._unknown: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Check the report of a test for a skip."""
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Check the report of a module for a skip, because a whole module may be skipped."""
        self._note(report)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            said = report.longrepr
            text = str(said[2]) if isinstance(said, tuple) else str(said)
            reason = text.removeprefix("Skipped: ")
            if not is_known(reason):
                self._unknown[report.nodeid] = reason

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail the run if there was an unknown skip."""
        if self._unknown and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the unknown skips."""
        if self._unknown:
            terminalreporter.section(f"skipped for a reason that {__name__} does not have")
            for nodeid, reason in sorted(self._unknown.items()):
                terminalreporter.write_line(f"{nodeid}: {reason}")


def is_known(reason: str) -> bool:
    """Return whether CI accepts a skip with this reason."""
    return any(part in reason for part in KNOWN)
