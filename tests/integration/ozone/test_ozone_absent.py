"""Data directories that hold no volume that can be read, beside others that do: a disk that is not
mounted costs its own containers, and is told by name."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agent.cli.main import run
from ozone.disk.layout import find_volume
from ozone.scrub.scrub import ScrubOptions
from ozone.scrub.service import ScrubServiceOptions, serve
from suture.errors import RefusedError
from suture.runtime.exit_codes import ExitCode
from suture.runtime.stop_request import StopRequest
from tests.integration.ozone.test_ozone_service import WAIT_S, fetched, service
from tests.support.ozone.ozone_volumes import golden
from tests.support.printed_json import document_in
from tests.support.process_logs import log_events
from tests.support.waiting import wait_until


@pytest.fixture
def volumes(tmp_path: Path) -> Path:
    """Real volumes, here of one datanode; each test may change them."""
    found = golden(tmp_path / "golden")
    uuid = find_volume(found / "dn4").datanode_id
    version = found / "dn0-damaged" / "hdds" / "VERSION"
    version.write_text(
        version.read_text().replace(find_volume(found / "dn0-damaged").datanode_id, uuid)
    )
    return found


def empty(path: Path) -> str:
    """Leave a mount point without its disk; return what is said of it."""
    path.mkdir()
    return "it is empty: it has no hdds/VERSION"


def nowhere(_path: Path) -> str:
    """Leave nothing at all."""
    return "has no hdds/VERSION"


def garbage(path: Path) -> str:
    """Leave a volume of which nobody can say whose it is."""
    (path / "hdds").mkdir(parents=True)
    (path / "hdds" / "VERSION").write_bytes(b"\xff" * 100)
    return "lacks storageID"


def unreadable(path: Path) -> str:
    """Leave a volume whose file gives an error when it is opened."""
    (path / "hdds").mkdir(parents=True)
    (path / "hdds" / "VERSION").symlink_to("/proc/self/mem")
    return "Input/output error"


@pytest.mark.parametrize("leave", [empty, nowhere, garbage, unreadable])
def test_a_disk_that_is_not_mounted_costs_no_other(
    volumes: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    leave: Callable[[Path], str],
) -> None:
    """
    The others are read; what could not be is named, in the document too, and it is no success.
    """
    absent = tmp_path / "absent"
    why = leave(absent)
    command = ["ozone", "scrub", str(absent), str(volumes / "dn4"), str(tmp_path / "beside")]
    command += ["--state-dir", str(tmp_path / "state")]

    codes = [run(command)]
    said = capsys.readouterr().out.splitlines()
    codes.append(run([*command, "--json"]))
    document = document_in(capsys.readouterr().out, "ozone scrub")

    assert [ExitCode.FAILED] * 2 == codes
    assert any("2 containers: 2 WHOLE" in line for line in said)
    (line,) = [line for line in said if line.startswith(f"{absent}: ABSENT: ")]
    assert why in line
    assert [str(absent), str(tmp_path / "beside")] == document["absent"]
    assert why in document["failed"][str(absent)]
    assert 2 == document["statuses"]["WHOLE"]


def test_disks_that_are_all_absent_are_all_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is read, and one run names all disks to mount."""
    paths = [tmp_path / name for name in ("1", "2")]
    for path in paths:
        empty(path)

    code = run(["ozone", "scrub", *map(str, paths), "--state-dir", str(tmp_path / "state")])

    said = capsys.readouterr().out
    assert ExitCode.FAILED == code
    assert all(f"{path}: ABSENT: cannot read volume {path}: it is empty" in said for path in paths)
    assert "mount the disk" in said


def test_a_service_reads_the_others_and_waits_for_a_disk(volumes: Path, tmp_path: Path) -> None:
    """The service exports the absent disk to Prometheus, keeps trying, and reads it once it is
    mounted, without a restart.
    """
    absent, log = tmp_path / "absent", tmp_path / "log"
    empty(absent)
    place = str(absent / "hdds")
    dirs = [volumes / "dn4", absent]

    def of_metric(address: str, name: str) -> dict[str, float]:
        _, text = fetched(address, "/metrics")
        return {
            sample.labels["volume"]: sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name
        }

    with service(dirs, tmp_path / "state", tmp_path / "nobody", log) as process:
        wait_until(lambda: len(log_events(log, "replica_scanned")) == 2, within_s=WAIT_S)
        (served,) = log_events(log, "ozone_metrics_served")
        address = str(served["address"])
        wait_until(
            lambda: bool(of_metric(address, "suture_ozone_scan_errors_total").get(place)),
            within_s=WAIT_S,
        )
        before = of_metric(address, "suture_ozone_volume_missing")
        _, health = fetched(address, "/healthz")
        wait_until(lambda: bool(log_events(log, "ozone_volume_missing")), within_s=WAIT_S)
        (told,) = log_events(log, "ozone_volume_missing")
        absent.rmdir()
        (volumes / "dn0-damaged").rename(absent)
        wait_until(
            lambda: len(log_events(log, "ozone_container_fault_found")) == 2, within_s=WAIT_S
        )
        after = of_metric(address, "suture_ozone_volume_missing")
        process.terminate()
        code = process.wait(60)

    assert {str(volumes / "dn4" / "hdds"): 0, place: 1} == before
    assert {str(volumes / "dn4" / "hdds"): 0, place: 0} == after
    shown = json.loads(health)["volumes"][place]
    assert "absent" == shown["state"]
    assert "it is empty: it has no hdds/VERSION" in shown["last_error"]
    assert str(absent) == told["path"]
    assert 0 == code


def test_a_volume_whose_history_cannot_be_read_stops_no_service_of_others(
    volumes: Path, tmp_path: Path
) -> None:
    """A failure at the start is handled like a later one: it is reported and retried."""
    state, log = tmp_path / "state", tmp_path / "log"
    state.mkdir()
    version = (volumes / "dn0-damaged" / "hdds" / "VERSION").read_text()
    (name,) = [line[10:] for line in version.splitlines() if line.startswith("storageID=")]
    (state / f"{name}.sqlite").write_bytes(b"garbage" * 100)
    dirs = [volumes / "dn0-damaged", volumes / "dn4"]

    with service(dirs, state, tmp_path / "nobody", log):
        wait_until(lambda: len(log_events(log, "replica_scanned")) == 2, within_s=WAIT_S)
        wait_until(lambda: bool(log_events(log, "ozone_volume_missing")), within_s=WAIT_S)
        told = log_events(log, "ozone_volume_missing")[0]

    assert "file is not a database" in str(told["why"])


def test_a_service_of_nothing_is_refused(tmp_path: Path) -> None:
    """
    None of the directories has a volume: that is rather a wrong command than so many lost disks.
    """
    paths = [tmp_path / name for name in ("1", "2")]
    scrub = ScrubOptions(data_dirs=paths, state_dir=tmp_path / "state")

    with pytest.raises(RefusedError, match="has no hdds/VERSION"):
        serve(ScrubServiceOptions(scrub=scrub, interval_s=60.0), StopRequest())
