"""`suture ozone scrub` as an operator types it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agent.cli.main import run
from suture.runtime.exit_codes import ExitCode
from tests.support.ozone.ozone_volumes import golden


@pytest.fixture(scope="module")
def volumes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real volumes."""
    return golden(tmp_path_factory.mktemp("golden"))


def scrub(volume: Path, state: Path, *more: str) -> int:
    """Run the command in this process; return its exit code."""
    return run(["ozone", "scrub", str(volume), "--state-dir", str(state), *more])


def test_a_whole_volume_is_said_to_be_whole(
    volumes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Exit code 0, one paragraph, nothing to look at.
    """
    code = scrub(volumes / "dn4", tmp_path / "state")

    assert ExitCode.OK == code
    said = capsys.readouterr().out
    assert "2 containers: 2 WHOLE; 12.1 KiB" in said
    assert "equal to the rows" in said or "for a known reason" in said


def test_damage_is_shown_with_what_it_means(
    volumes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Exit code 2; block, place, kind and evidence, and a sentence on each kind.
    """
    code = scrub(volumes / "dn0-damaged", tmp_path / "state")

    assert ExitCode.TO_DO == code
    said = capsys.readouterr().out
    assert "container 1 (UNHEALTHY): DAMAGED" in said
    assert "bit 2 of byte 33548 is flipped" in said
    assert "CHUNK_CHECKSUM: the bytes are not those that the client wrote" in said
    assert "4 containers: 1 WHOLE, 2 DAMAGED, 1 MISSING" in said


def test_the_json_document_has_everything(
    volumes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The document has each container's standing, findings and tree, and the totals."""
    code = scrub(volumes / "dn0-damaged", tmp_path / "state", "--json", "--container", "1")

    document = json.loads(capsys.readouterr().out)
    (volume,) = document["volumes"]
    (container,) = volume["containers"]
    assert ExitCode.TO_DO == code
    others = dict.fromkeys(("WHOLE", "DOUBTFUL", "MISSING", "NOT_READ", "SKIPPED"), 0)
    assert {**others, "DAMAGED": 1} == document["standings"]
    assert (1, "DAMAGED", "UNHEALTHY", 3) == (
        container["container_id"],
        container["standing"],
        container["state"],
        container["schema"],
    )
    assert ("DAMAGE", {"LAST_CHUNK": 1}) == (
        container["tree"]["agreement"],
        container["tree"]["reasons"],
    )
    assert 11 == container["finding_count"] == len(container["findings"])


def test_a_container_that_is_nowhere_is_no_success(
    volumes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    A typing error, or a replica that is gone, is not "all is whole".
    """
    named = ["--container", "777", "--container", "1"]
    codes = [scrub(volumes / "dn4", tmp_path / "state", *named[:2])]
    said = capsys.readouterr().out
    codes += [scrub(volumes / "dn4", tmp_path / "state", *named, "--json")]

    assert [ExitCode.TO_DO] * 2 == codes
    assert "container 777: NOT_FOUND" in said
    assert [1, 777] == json.loads(capsys.readouterr().out)["not_found"]


def test_a_second_look_says_the_same(
    volumes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The history returns what was found."""
    scrub(volumes / "dn0-damaged", tmp_path / "state", "--json")
    first = json.loads(capsys.readouterr().out)
    scrub(volumes / "dn0-damaged", tmp_path / "state", "--json", "--restart")
    second = json.loads(capsys.readouterr().out)

    def steady(document: dict[str, object]) -> str:
        return "".join(
            line
            for line in json.dumps(document, indent=1).splitlines(keepends=True)
            if "_at_ms" not in line
        )

    assert steady(first) == steady(second)


def test_without_the_library_one_line_says_what_to_install(
    volumes: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    The extra is optional: its absence is no traceback.
    """
    monkeypatch.setitem(sys.modules, "rocksdict", None)  # as if it were not installed

    code = scrub(volumes / "dn4", tmp_path / "state")

    assert ExitCode.FAILED == code
    assert "pip install 'suture[ozone]'" in capsys.readouterr().err
    assert not (tmp_path / "state").exists()


def test_scrub_refuses_a_path_that_is_no_data_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is 1, and the error has the path and the option to look at."""
    code = scrub(tmp_path, tmp_path / "state")

    said = capsys.readouterr().err
    assert ExitCode.FAILED == code
    assert "holds no hdds/VERSION [INCONSISTENT_VOLUME]" in said
    assert "hdds.datanode.dir" in said


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None,
    reason="files are given to another user, and a capability to a process: root and setpriv",
)
def test_the_capability_of_the_service_is_enough(tmp_path: Path) -> None:
    """
    A user who owns nothing reads volumes that only Ozone's user may enter, as the unit has it.
    """
    data_dir, state = golden(tmp_path / "golden") / "dn4", tmp_path / "state"
    state.mkdir()
    os.chown(state, 65534, 65534)
    for path in [tmp_path, *tmp_path.parents[:-1]]:
        path.chmod(path.stat().st_mode | 0o011)
    for path in [data_dir, *data_dir.rglob("*")]:
        path.chmod(0o700)
    only = "-all,+dac_read_search"
    rights = [f"--inh-caps={only}", f"--ambient-caps={only}", f"--bounding-set={only}"]
    command = ["setpriv", "--reuid=65534", "--clear-groups", "--no-new-privs", *rights]
    command += [sys.executable, "-m", "agent.cli.start", "ozone", "scrub", str(data_dir)]

    ended = subprocess.run(
        [*command, "--state-dir", str(state)], capture_output=True, text=True, timeout=60
    )

    assert (0, "") == (ended.returncode, ended.stderr)
    assert "2 containers: 2 WHOLE" in ended.stdout
