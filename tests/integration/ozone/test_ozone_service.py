"""`suture ozone serve` as systemd runs it: a process that reads, tells, and ends when told to."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from merkle.replica import BlockId, ContainerId
from ozone.disk.layout import find_volume
from ozone.scrub.history import History
from ozone.scrub.meters import HistoryCounts
from ozone.scrub.result import ContainerResult, ScrubStatus
from ozone.scrub.scrub import ScrubOptions
from ozone.scrub.service import ScrubServiceOptions, serve
from ozone.scrub.store import OzoneStore
from scanner.finding import DamageFault, ScanFinding, Verdict
from suture.errors import Code, RefusedError, VolumeFailed
from suture.runtime.clock import SystemClock
from suture.runtime.stop_request import StopRequest
from tests.support.faults.changes_seen import changes
from tests.support.ozone.ozone_scrubs import running_volume, scrubbed
from tests.support.ozone.ozone_volumes import CLUSTER, MadeVolume, golden, snapshot
from tests.support.packaging.monitoring import METRIC, expressions, without_suffix
from tests.support.process_logs import log_events
from tests.support.waiting import wait_until

WAIT_S = 60.0


@contextmanager
def service(
    volumes: Sequence[Path], state: Path, notify: Path, log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the service; it is ended, and waited for, at the end of the block."""
    command = [sys.executable, "-m", "agent.cli.start", "ozone", "serve", *map(str, volumes)]
    command += ["--state-dir", str(state), "--listen", "127.0.0.1:0", "--interval", "1min"]
    environment = {**os.environ, "NOTIFY_SOCKET": str(notify)}
    with log.open("wb") as errors:
        process = subprocess.Popen(command, env=environment, stderr=errors)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(WAIT_S)


def fetched(address: str, path: str) -> tuple[int, str]:
    """Return status and text of a page."""
    with closing(HTTPConnection(address, timeout=WAIT_S)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def test_a_service_reads_tells_and_ends(tmp_path: Path) -> None:
    """The service reports that it is ready, finds the damage, exports it to Prometheus, changes
    nothing on the volume, and ends cleanly at SIGTERM.
    """
    data_dir, log = golden(tmp_path / "golden") / "dn0-damaged", tmp_path / "log"
    before = snapshot(data_dir)
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    manager.settimeout(WAIT_S)

    with (
        closing(manager),
        changes(data_dir) as seen,
        service([data_dir], tmp_path / "state", tmp_path / "notify", log) as process,
    ):
        ready = manager.recv(1000).decode()
        wait_until(lambda: len(log_events(log, "replica_scanned")) == 3, within_s=WAIT_S)
        (served,) = log_events(log, "ozone_metrics_served")
        health, document = fetched(str(served["address"]), "/healthz")
        _, text = fetched(str(served["address"]), "/metrics")
        process.terminate()
        code = process.wait(WAIT_S)

    metrics = {
        (sample.name, sample.labels.get("status") or sample.labels.get("fault")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    asked = {name for text in expressions() for name in METRIC.findall(text)}
    asked = {without_suffix(name) for name in asked if name.startswith("suture_ozone_")}
    assert ready.startswith("READY=1")
    assert 5 < len(asked)
    assert asked <= {without_suffix(name) for name, _ in metrics}, "of alerts and dashboard"
    assert (200, True) == (health, json.loads(document)["is_well"])
    assert 2 == metrics["suture_ozone_containers", ScrubStatus.DAMAGED.value]
    assert 1 == metrics["suture_ozone_containers", ScrubStatus.WHOLE.value]
    assert 2 == metrics["suture_ozone_findings", "BLOCK_FILE_MISSING"]
    assert 3_000_000 < metrics["suture_ozone_scanned_bytes_total", None]
    assert {1, 2} == {
        event["container_id"] for event in log_events(log, "ozone_container_fault_found")
    }
    assert 0 == code
    assert [] == seen
    assert before == snapshot(data_dir)


def test_a_scrape_parses_only_what_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Ten thousand containers would take a second of a core, every fifteen.
    """
    parsed: list[int] = []
    result_of = History.result

    def result(self: History, container_id: ContainerId) -> ContainerResult | None:
        parsed.append(container_id)
        return result_of(self, container_id)

    monkeypatch.setattr(History, "result", result)
    whole = ContainerResult(container_id=ContainerId(1), storage_id="DS-1", read_at_ms=5)
    other = replace(whole, container_id=ContainerId(2))
    lost = ScanFinding(
        ContainerId(1), Verdict.CORRUPT, DamageFault.CHUNK_SHORT, BlockId(9), 0, 7, 5, "short"
    )
    seen, path = HistoryCounts(), tmp_path / "history.sqlite"

    with closing(History(path)) as history:
        history.put(whole, is_whole=True)
        history.put(other, is_whole=True)
        assert {ScrubStatus.WHOLE: 2} == seen.count(path).statuses
        assert {ScrubStatus.WHOLE: 2} == seen.count(path).statuses
        assert [1, 2] == parsed

        history.put(replace(whole, findings=(lost,), finding_count=1), is_whole=False)
        known = seen.count(path)
        assert {ScrubStatus.WHOLE: 1, ScrubStatus.DAMAGED: 1} == known.statuses
        assert {("CORRUPT", "CHUNK_SHORT"): 1} == known.findings

        history.put(
            replace(whole, findings=(replace(lost, verdict=Verdict.UNREADABLE),), finding_count=1),
            is_whole=False,
        )
        assert {("UNREADABLE", "CHUNK_SHORT"): 1} == seen.count(path).findings
        assert [1, 2, 1, 1] == parsed

        history.forget([ContainerId(1)])
        assert {ScrubStatus.WHOLE: 1} == seen.count(path).statuses


def test_containers_that_leave_are_forgotten_and_bad_ones_kept_in_mind(tmp_path: Path) -> None:
    """Containers that have gone are not counted, and unreadable ones keep their reason."""
    with running_volume(tmp_path / "data") as made:
        made.add_container(2)
        made.add_container(3, schemaVersion="'1'")
        wish = ScrubOptions(data_dirs=[made.root], state_dir=tmp_path / "state")
        scrubbed(wish)
        made.folder(2).rename(tmp_path / "moved")
        with closing(History(tmp_path / "state" / "DS-made.sqlite")) as history:
            store = OzoneStore(
                find_volume(made.root),
                history,
                tmp_path / "state" / "views",
                SystemClock(),
                database=made.database,
            )
            known = [result.container_id for result in history.results()]
            ((_, columns),) = store.columns()

            assert [1, 2] == known
            assert [1] == columns.container_ids.tolist()
            assert [1] == [result.container_id for result in history.results()]
        assert ["descriptor of container 3: schemaVersion '1'"] == [
            result.why for result in store.refused
        ]


def unmounted(made: MadeVolume) -> None:
    """Leave an empty mount point."""
    (made.root / "hdds").rename(made.root / "away")


def exchanged(made: MadeVolume) -> None:
    """Mount another volume in its place."""
    unmounted(made)
    version = made.root / "hdds" / "VERSION"
    (version.parent / CLUSTER / "current").mkdir(parents=True)
    text = (made.root / "away" / "VERSION").read_text()
    version.write_text(text.replace("DS-made", "DS-other"))


def emptied(made: MadeVolume) -> None:
    """Have the directory of all containers be gone."""
    (made.root / "hdds" / CLUSTER / "current").rename(made.root / "away")


@pytest.mark.parametrize("leave", [unmounted, exchanged, emptied])
def test_a_volume_that_has_left_is_an_error_and_its_findings_stay(
    tmp_path: Path, leave: Callable[[MadeVolume], None]
) -> None:
    """
    An alert about damage must not end because the disk has failed altogether: a schedule of nothing
    is none, and what is known of its containers is kept.
    """
    with running_volume(tmp_path / "data") as made:
        made.add_container(2)
    made.file(1, 10).unlink()
    scrubbed(ScrubOptions(data_dirs=[made.root], state_dir=tmp_path / "state"))
    volume, views = find_volume(made.root), tmp_path / "state" / "views"
    with closing(History(tmp_path / "state" / "DS-made.sqlite")) as history:
        store = OzoneStore(volume, history, views, SystemClock(), database=made.database)
        before = list(history.results())
        made.folder(2).rename(tmp_path / "moved")
        listing = store.listing()
        leave(made)

        with pytest.raises(VolumeFailed, match="DS-made is no longer at"):
            list(store.columns())
        with pytest.raises(VolumeFailed, match="DS-made is no longer at"):
            store.forget_gone(listing)  # of containers, when it left in the middle of a listing
        assert [ScrubStatus.DAMAGED, ScrubStatus.WHOLE] == [result.status for result in before]
        assert before == list(history.results())


@pytest.mark.parametrize("leave", [unmounted, exchanged])
def test_a_volume_that_left_before_it_was_read_is_an_error(
    tmp_path: Path, leave: Callable[[MadeVolume], None]
) -> None:
    """
    Nothing is known of it that could be missed: it is no volume without containers all the same.
    """
    with running_volume(tmp_path / "data") as made:
        pass
    with closing(History(tmp_path / "history.sqlite")) as history:
        volume = find_volume(made.root)
        store = OzoneStore(volume, history, tmp_path, SystemClock(), database=made.database)
        leave(made)

        with pytest.raises(VolumeFailed, match="DS-made is no longer at"):
            store.listing()


def test_a_volume_without_a_container_yet_is_read(tmp_path: Path) -> None:
    """
    Ozone makes the directory of containers with the first of them.
    """
    with closing(MadeVolume(tmp_path / "data")) as made:
        assert {} == scrubbed(ScrubOptions(data_dirs=[made.root], state_dir=tmp_path / "state"))


def test_a_promise_that_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    """
    The arithmetic is shown before anything is read.
    """
    data_dir = golden(tmp_path / "golden") / "dn0-damaged"
    scrub = ScrubOptions(data_dirs=[data_dir], state_dir=tmp_path / "state", bytes_per_s_max=1000)

    with pytest.raises(
        RefusedError, match=r"within the interval: volume .* --rate gives"
    ) as refused:
        serve(ScrubServiceOptions(scrub=scrub, interval_s=60.0), StopRequest())

    assert Code.INVALID_CONFIG is refused.value.code
