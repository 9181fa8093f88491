"""An agent that exports what it holds: when, what it says of failures, and what these cost."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from agent.config.loading import load
from agent.host.datanode_identity import DatanodeIdentity
from agent.host.host import AgentProcess
from agent.host.report_export import NEEDED, REBUILD_CHECK_S, check_export
from agent.store import volume_set
from agent.store.recovery import startup_recovery
from merkle.replica import ContainerId
from suture.errors import RefusedError
from suture.observe.metric_table import exposition
from suture.runtime.loop import NoMoreWork, ProgressMarker, RetryAfter
from suture.runtime.sd_notify import SystemdNotifier
from suture.wire.clients.peer import Peer
from suture.wire.clients.scm import ScmClient
from tests.support.heard import logged
from tests.support.waiting import wait_until

NOWHERE = "127.0.0.1:1"  # nobody listens there
WHO = DatanodeIdentity("dn1", "CID-1", version="1", boot_id=1)
WAIT_S = 60.0
METRIC = "suture_report_export_timestamp_seconds"


def written(folder: Path, export: str) -> Path:
    """Write the config of an agent with one volume that exports."""
    volume = folder / "volume"
    volume.mkdir(parents=True, exist_ok=True)
    config = folder / "agent.toml"
    config.write_text(
        f"""[node]
listen = "127.0.0.1:0"
scm = "{NOWHERE}"
rack = "/r7"
[observe]
listen = "127.0.0.1:0"
[storage]
volumes = ["{volume}"]
reserve_bytes = 0
[report]
export = "{export}"
interval_s = 1
"""
    )
    return config


@contextmanager
def exporting(folder: Path, export: Path) -> Iterator[AgentProcess]:
    """Run an agent that holds container 7 and exports; it must end in time."""
    host = AgentProcess(
        load(written(folder, str(export))), WHO, [ScmClient(NOWHERE)], SystemdNotifier()
    )
    host.store.create_container(ContainerId(7))
    try:
        host.start()
        yield host
    finally:
        assert [] == host.stop()


def test_report_waits_for_the_rebuild_of_a_lost_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the replicas that are not loaded yet, the job would consider them lost."""
    for module in (startup_recovery, volume_set):
        monkeypatch.setattr(module, "ADOPTED_MAX", 1)
    export = tmp_path / "reports"
    config = load(written(tmp_path, str(export)))
    for is_first in (True, False):
        host = AgentProcess(config, WHO, [ScmClient(NOWHERE)], SystemdNotifier())
        if is_first:
            for number in (1, 2):
                host.store.create_container(ContainerId(number))
            assert [] == host.stop()
            shutil.rmtree(tmp_path / "volume/hdds/CID-1/db")
    worker = host._built_export(ProgressMarker())

    assert RetryAfter(REBUILD_CHECK_S) == worker.step()
    assert not export.exists()

    while host.rebuild.step() != NoMoreWork():
        pass
    worker.step()
    rows = newest(export)
    assert [] == host.stop()
    assert [1, 2, None] == [row["container_id"] for row in rows]


def exported_at_s(host: AgentProcess) -> float:
    """Return when a report was exported last, as the metric says; 0: never."""
    lines = exposition(host.meters.registry).decode().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"{METRIC} ")))


def test_an_agent_exports_after_its_start_and_again(tmp_path: Path) -> None:
    """
    The reports say what is there at their time, and where peers reach the datanode.
    """
    export = tmp_path / "reports"
    with exporting(tmp_path, export) as host:
        wait_until(lambda: exported_at_s(host) > 0, within_s=WAIT_S)
        first = sorted((export / "dn1").iterdir())[0]
        held = pq.read_table(first).to_pylist()
        host.store.create_container(ContainerId(8))
        wait_until(lambda: (tables := newest(export)) and 3 == len(tables), within_s=WAIT_S)
        rows = newest(export)

    assert [7, None] == [row["container_id"] for row in held]
    assert [7, 8, None] == [row["container_id"] for row in rows]
    assert {"dn1"} == {row["datanode_id"] for row in rows}
    datanode = rows[-1]
    assert (host.address, "/r7", "CID-1", "1", "IN_SERVICE", 1, 2) == tuple(
        datanode[name]
        for name in (
            *("address", "rack", "cluster_id", "version", "op_state", "interval_s"),
            "replica_count",
        )
    )
    assert datanode["capacity_bytes"] > datanode["available_bytes"] > 0


def newest(export: Path) -> list[dict[str, object]]:
    """Return the rows of the newest report."""
    rows: list[dict[str, object]] = pq.read_table(max((export / "dn1").iterdir())).to_pylist()
    return rows


def test_an_export_that_fails_is_told_and_harms_nothing(tmp_path: Path) -> None:
    """
    A file lies where the directory should be. The agent serves, its status and its log name place
    and reason, and the export goes on when the way is free.
    """
    export = tmp_path / "reports"
    export.write_text("")
    with logged() as heard, exporting(tmp_path, export) as host, Peer(host.address) as peer:

        def last_error() -> str:
            workers = {worker.name: worker for worker in peer.status().workers}
            return workers["report-export"].last_error

        wait_until(lambda: bool(last_error()), within_s=WAIT_S)
        told = last_error()
        assert 0 == exported_at_s(host)
        export.unlink()
        wait_until(lambda: exported_at_s(host) > 0, within_s=WAIT_S)

    assert f"cannot write a report to {export}" in told
    failed = [one for one in heard if one["event"] == "worker_step_failed"]
    assert {"report-export"} == {one["worker"] for one in failed}
    assert str(export) in failed[0]["error"]
    assert any(one["event"] == "report_exported" for one in heard)


def test_a_stopping_agent_does_not_wait_for_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Its process hangs, as on a file system that is away. It is killed, and leaves no report.
    """
    hanging = tmp_path / "python"
    hanging.write_text(f"#!/bin/sh\ntouch {tmp_path}/begun\nexec sleep 1000\n")
    hanging.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(hanging))
    processes: list[subprocess.Popen[bytes]] = []
    with exporting(tmp_path, tmp_path / "reports") as host:
        wait_until((tmp_path / "begun").exists, within_s=WAIT_S)
        (loop,) = (one for one in host.loops._loops if "report-export" == one.status().name)
        assert not loop.status().is_stalled(10.0)
        worker: Any = loop._worker
        wait_until(lambda: worker._process is not None, within_s=WAIT_S)  # Popen returns later
        processes.append(worker._process)

    assert processes[0].poll() is not None
    assert not (tmp_path / "reports").exists()


def test_the_package_that_writes_reports_is_named_where_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent does not start. One sentence names the missing package, and another the command
    to type.
    """
    monkeypatch.setitem(sys.modules, NEEDED, None)
    config = load(written(tmp_path, "s3a://cluster/reports"))

    with pytest.raises(RefusedError) as refused:
        check_export(config.report)

    assert f"needs the package {NEEDED}, which is not installed" in str(refused.value)
    assert "s3a://cluster/reports" in str(refused.value)
    assert "pip install 'suture[reports]'" in refused.value.hint
    check_export(config.report.model_copy(update={"export": ""}))
