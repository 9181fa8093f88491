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
from tests.support.ozone.ozone_volumes import OF_1_4, golden, unpack
from tests.support.printed_json import document_in


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
    """The document has each container's status, findings and tree, and the totals."""
    code = scrub(volumes / "dn0-damaged", tmp_path / "state", "--json", "--container", "1")

    document = document_in(capsys.readouterr().out, "ozone scrub")
    (volume,) = document["volumes"]
    (container,) = volume["containers"]
    assert ExitCode.TO_DO == code
    others = dict.fromkeys(("WHOLE", "DOUBTFUL", "MISSING", "NOT_READ", "SKIPPED"), 0)
    assert {**others, "DAMAGED": 1} == document["statuses"]
    assert (1, "DAMAGED", "UNHEALTHY", 3) == (
        container["container_id"],
        container["status"],
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
    assert [1, 777] == document_in(capsys.readouterr().out, "ozone scrub")["not_found"]


def test_missing_trees_of_a_volume_of_ozone_1_4_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before 2.1 no container has a tree, so none is named for lacking one. A directory of a
    deleted container without any file is a note.
    """
    data = unpack(OF_1_4, tmp_path) / "1.4.1-v3"
    shutil.rmtree(next(data.glob("hdds/CID-*/current/containerDir0")) / "2", ignore_errors=True)
    (next(data.glob("hdds/CID-*/current/containerDir0")) / "9" / "chunks").mkdir(parents=True)

    code = scrub(data, tmp_path / "state", "--container", "1", "--container", "9")

    said = capsys.readouterr().out
    assert ExitCode.OK == code
    assert "TREE_MISSING" not in said
    assert "1 container without a tree: Ozone before 2.1 makes none" in said
    assert "container 1" not in said
    assert "empty directories, as of deleted containers: 9" in said


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("clusterID", "is of cluster CID-other, and"),
        ("datanodeUuid", "is of datanode other, and"),
    ],
)
def test_volumes_that_do_not_belong_together_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, words: str
) -> None:
    """Container ids mean other containers there, or other replicas."""
    for folder, uuid in (("a", "u"), ("b", "other" if name == "datanodeUuid" else "u")):
        cluster = "CID-other" if name == "clusterID" and folder == "b" else "CID-1"
        hdds = tmp_path / folder / "hdds"
        (hdds / cluster / "current").mkdir(parents=True)
        (hdds / "VERSION").write_text(
            f"storageID=DS-{folder}\nclusterID={cluster}\ndatanodeUuid={uuid}\n"
        )

    command = ["ozone", "scrub", str(tmp_path / "a"), str(tmp_path / "b")]
    code = run([*command, "--state-dir", str(tmp_path / "state")])

    assert ExitCode.FAILED == code
    assert words in capsys.readouterr().err


def test_container_on_two_volumes_of_a_datanode_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ozone loads one of them, and nobody knows which."""
    one = unpack(OF_1_4, tmp_path) / "1.4.1-v3"
    two = shutil.copytree(one, tmp_path / "two")
    version = two / "hdds" / "VERSION"
    (storage,) = two.glob("hdds/CID-*/DS-*")
    version.write_text(version.read_text().replace(storage.name, "DS-two"))
    storage.rename(storage.with_name("DS-two"))

    arguments = ["ozone", "scrub", str(one), f"[DISK]{two}", "--container", "1"]
    code = run([*arguments, "--state-dir", str(tmp_path / "state")])

    assert ExitCode.TO_DO == code
    said = capsys.readouterr().out
    assert f"container 1 is on several volumes: {one}/hdds, {two}/hdds" in said
    assert ExitCode.TO_DO == run([*arguments, "--state-dir", str(tmp_path / "state"), "--json"])
    document = document_in(capsys.readouterr().out, "ozone scrub")
    assert {"1": [f"{one}/hdds", f"{two}/hdds"]} == document["on_several_volumes"]


def test_a_second_look_says_the_same(
    volumes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The history returns what was found."""
    scrub(volumes / "dn0-damaged", tmp_path / "state", "--json")
    first = document_in(capsys.readouterr().out, "ozone scrub")
    scrub(volumes / "dn0-damaged", tmp_path / "state", "--json", "--restart")
    second = document_in(capsys.readouterr().out, "ozone scrub")

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
    assert "has no hdds/VERSION [INCONSISTENT_VOLUME]" in said
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
