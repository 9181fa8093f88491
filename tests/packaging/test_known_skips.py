"""A test that is skipped for a reason that is not listed fails CI."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.packaging.known_skips import KNOWN, is_known

ROOT = Path(__file__).resolve().parents[2]
BROWSER = "tests/spark/test_report_browser.py"
WHOLE_SET = "tests/integration/ozone/test_ozone_whole_set.py"
LISTED_MAX = 25
INSTALLED = ("chromium", "mkfs.btrfs", "rpmbuild", "filefrag of e2fsprogs", "man", "promtool")


def exit_code(*words: str) -> tuple[int, str]:
    """Run tests whose programs and files are not there; return the exit code and what is said."""
    nothing = {**os.environ, "PATH": "/nowhere", "SUTURE_OZONE_GOLDEN": "/nowhere"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words],
        cwd=ROOT,
        env=nothing,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("processes", [[], ["-n", "1"]], ids=["one process", "several"])
def test_a_skip_that_is_not_listed_fails_the_run_and_is_named(processes: list[str]) -> None:
    """This holds only with the option, because a developer's machine need not have a browser."""
    code, said = exit_code(BROWSER, *processes, "--known-skips")
    without = exit_code(BROWSER, *processes)

    assert pytest.ExitCode.TESTS_FAILED == code, said
    assert re.search(rf"{BROWSER}::\w+: chromium is not installed", said), said
    assert pytest.ExitCode.OK == without[0], without[1]


@pytest.mark.slow
def test_a_skip_that_is_listed_is_accepted() -> None:
    """
    A large set of files that the repository does not have.
    """
    code, said = exit_code(WHOLE_SET, "--known-skips")

    assert pytest.ExitCode.OK == code, said
    assert "1 skipped" in said


def test_installed_program_is_no_reason_to_skip() -> None:
    """These are the programs that tools/bootstrap.sh installs. Without one of them CI fails."""
    assert [] == [name for name in INSTALLED if is_known(f"{name} is not installed")]
    assert [] == [
        name
        for name in INSTALLED
        if is_known(f"no disk here can give EIO: {name} is not installed")
    ]


def test_the_list_is_short_and_each_entry_is_one_of_a_test() -> None:
    """A reason that no test gives any more is removed."""
    sources = "".join(
        path.read_text() for path in (ROOT / "tests").rglob("*.py") if path.name != "known_skips.py"
    )

    assert len(KNOWN) <= LISTED_MAX
    assert [] == [part for part in KNOWN if part not in sources]


@pytest.mark.parametrize("may_install", [True, False])
def test_programs_of_tests_are_installed_with_apt(tmp_path: Path, may_install: bool) -> None:
    """
    Each package that lacks its command is asked for; where apt may not run, the command to run is
    printed, and no test fails for it.
    """
    for name, does in {
        "id": f"echo {0 if may_install else 1000}",
        "apt-get": f'echo "$@" >> {tmp_path}/asked',
        "apt-cache": 'echo "Candidate: 1.0"',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    for name in ("bash", "dirname", "mktemp", "rm", "cat", "env", "sh", "mkfs.btrfs"):
        (tmp_path / name).unlink(missing_ok=True)
        (tmp_path / name).symlink_to(
            f"/usr/bin/{name}" if name != "mkfs.btrfs" else "/usr/bin/true"
        )

    done = subprocess.run(
        ["/bin/bash", str(ROOT / "tools" / "bootstrap.sh"), "programs"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert 0 == done.returncode, done.stderr
    asked = (tmp_path / "asked").read_text() if may_install else done.stderr
    assert "chromium" in asked
    assert "rpm" in asked
    assert "btrfs-progs" not in asked
