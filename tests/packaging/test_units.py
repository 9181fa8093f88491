"""The systemd files are right: systemd's own tools say so."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from agent.config.options import AgentConfig
from tests.support.packaging.commands import BIN, faults_of

FOLDER = Path(__file__).resolve().parents[2] / "systemd"
SERVICES = sorted(FOLDER.glob("*.service"))
INSTALLED_BIN = "/opt/suture/venv/bin"
EXPOSURE_MAX = 15  # of 100, as systemd rates it; an unconfined service has about 96

needs_analyzer = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="files are given to the user suture")


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run one of systemd's tools."""
    return subprocess.run(words, capture_output=True, text=True, timeout=60)


def start_commands(service: Path) -> list[str]:
    """Return what the unit starts, with the folder of the executables left out."""
    (line,) = re.findall(r"^ExecStart=(.+)$", service.read_text(), re.MULTILINE)
    return [
        re.sub(r"""["')$].*""", "", command).strip()
        for command in re.findall(rf"{INSTALLED_BIN}/(.+?)(?={INSTALLED_BIN}|$)", line)
    ]


@needs_analyzer
@pytest.mark.parametrize("service", SERVICES, ids=lambda path: path.name)
def test_a_unit_is_accepted(service: Path, tmp_path: Path) -> None:
    """
    systemd knows every option of the unit and finds its executable.
    """
    here = tmp_path / service.name
    here.write_text(service.read_text().replace(INSTALLED_BIN, str(BIN)))

    verified = run("systemd-analyze", "verify", "--man=no", here)

    assert (0, "") == (verified.returncode, verified.stderr)


@needs_analyzer
@pytest.mark.parametrize("job", ["suture-verify", "suture-scm-backup"])
def test_a_timer_is_accepted(job: str, tmp_path: Path) -> None:
    """
    systemd understands when it is to run, and finds the service of that name.
    """
    for name in (f"{job}.service", f"{job}.timer"):
        text = (FOLDER / name).read_text().replace(INSTALLED_BIN, str(BIN))
        (tmp_path / name).write_text(text)

    verified = run("systemd-analyze", "verify", "--man=no", tmp_path / f"{job}.timer")

    assert (0, "") == (verified.returncode, verified.stderr)


@needs_analyzer
@pytest.mark.parametrize("service", SERVICES, ids=lambda path: path.name)
def test_a_unit_is_confined(service: Path) -> None:
    """
    systemd rates what a broken-into service could still reach as little.
    """
    rated = run(
        "systemd-analyze", "security", "--offline=yes", f"--threshold={EXPOSURE_MAX}", service
    )

    assert 0 == rated.returncode, rated.stdout


@pytest.mark.parametrize("service", SERVICES, ids=lambda path: path.name)
def test_long_running_services_may_open_many_files(service: Path) -> None:
    """A thousand datanodes and their clients need more connections than systemd's default limit
    permits.
    """
    text = service.read_text()
    limits = re.findall(r"^LimitNOFILE=(\d+)$", text, re.MULTILINE)

    assert "Type=oneshot" in text or [limit for limit in limits if int(limit) >= 65_536]


@pytest.mark.parametrize("service", SERVICES, ids=lambda path: path.name)
def test_a_unit_passes_options_that_exist(service: Path) -> None:
    """
    The command that the unit starts offers every option that it is given.
    """
    commands = start_commands(service)

    assert commands
    assert [] == [fault for command in commands for fault in faults_of(command)]


@needs_analyzer
def test_the_drop_in_verifies_and_changes_nothing_else(tmp_path: Path) -> None:
    """
    systemd accepts the unit with it; the control plane is started as ever, and with `--verify`.
    """
    unit, drop_in = FOLDER / "suture-scm.service", FOLDER / "suture-scm-verify.conf"
    (tmp_path / "suture-scm.service.d").mkdir()
    for source, target in ((unit, unit.name), (drop_in, "suture-scm.service.d/verify.conf")):
        (tmp_path / target).write_text(source.read_text().replace(INSTALLED_BIN, str(BIN)))

    verified = run("systemd-analyze", "verify", "--man=no", tmp_path / unit.name)

    assert (0, "") == (verified.returncode, verified.stderr)
    (plain,) = re.findall(r"^ExecStart=(.+)$", unit.read_text(), re.MULTILINE)
    (verifying,) = re.findall(r"^ExecStart=(.+)$", drop_in.read_text(), re.MULTILINE)
    assert plain == verifying.replace(" --verify ${VERIFY}", "")
    (program,) = re.findall(r"VERIFY=(.+)\"$", drop_in.read_text(), re.MULTILINE)
    assert [] == list(faults_of(program.removeprefix(f"{INSTALLED_BIN}/")))


def test_systemd_waits_longer_than_the_agent_takes_to_stop() -> None:
    """
    A clean stop is not cut off by the unit.
    """
    unit = (FOLDER / "suture-agent.service").read_text()
    (waited_s,) = re.findall(r"^TimeoutStopSec=(\d+)s$", unit, re.MULTILINE)

    assert 2 * AgentConfig.model_fields["stop_deadline_s"].default < int(waited_s)


@needs_root
@pytest.mark.skipif(
    shutil.which("systemd-sysusers") is None or shutil.which("systemd-tmpfiles") is None,
    reason="systemd-sysusers or systemd-tmpfiles is not installed",
)
def test_user_and_folder_are_made(tmp_path: Path) -> None:
    """
    The user exists in an empty root, and the folder of the options is his to read only.
    """
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)

    users = run("systemd-sysusers", f"--root={root}", FOLDER / "sysusers.d" / "suture.conf")
    folders = run(
        "systemd-tmpfiles", f"--root={root}", "--create", FOLDER / "tmpfiles.d" / "suture.conf"
    )

    assert (0, 0) == (users.returncode, folders.returncode), users.stderr + folders.stderr
    assert "suture:x:" in (root / "etc" / "passwd").read_text()
    assert 0o750 == (root / "etc" / "suture").stat().st_mode & 0o777
