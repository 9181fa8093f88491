"""`suture ozone export`, from what a real SCM said."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from agent.cli.main import run
from ozone.clients.authentication import HadoopIdentity
from ozone.clients.connection import parse_addresses
from ozone.clients.scm import OzoneScmClient, ScmClientOptions
from ozone.cluster.export import ExportOptions, ExportResult, export
from suture.errors import Code, RefusedError, SutureError, UnavailableError
from suture.runtime.exit_codes import ExitCode
from tests.support.ozone.hadoop_server import read_varint, varint
from tests.support.ozone.recorded_scm import (
    RecordedScm,
    recorded,
    recorded_scm,
    replicas_of_ozone,
)
from tests.support.printed_json import document_in
from tests.support.waiting import wait_until

IMPATIENT = ScmClientOptions(timeout_s=0.5, patience_s=0.5, pause_s=0.01)


@pytest.fixture
def scm() -> Iterator[RecordedScm]:
    """An SCM that leads."""
    with recorded_scm() as server:
        yield server


def exported(scm: RecordedScm, target: Path, **wishes: Any) -> ExportResult:
    """Export what it tells."""
    client = OzoneScmClient(parse_addresses(scm.address), HadoopIdentity("suture"), IMPATIENT)
    with closing(client):
        return export(ExportOptions(client, target, **wishes), lambda _count, _total: None)


def rows(target: Path, table: str) -> list[dict[str, Any]]:
    """Read a table back."""
    found: list[dict[str, Any]] = pq.read_table(target / table).to_pylist()
    return found


def test_the_replicas_are_those_that_the_datanodes_have(scm: RecordedScm, tmp_path: Path) -> None:
    """The recording is compared with the datanodes' own data: state, index, commit and root."""
    exported(scm, tmp_path / "snapshot")

    expected = {
        (
            row["container"],
            row["uuid"],
            row["index"],
            row["state"],
            row["dataChecksum"],
            row["bcsid"],
        )
        for row in replicas_of_ozone()
    }
    assert 16 == len(expected)
    assert expected == {
        (
            row["container_id"],
            row["datanode_id"],
            row["replica_index"],
            row["state"],
            row["root"],
            row["bcsid"],
        )
        for row in rows(tmp_path / "snapshot", "replicas")
    }


def test_containers_and_nodes_are_all_there(scm: RecordedScm, tmp_path: Path) -> None:
    """
    Two of three copies, two erasure-coded, and eight that were allocated and never written.
    """
    done = exported(scm, tmp_path / "snapshot")

    assert {"containers": 12, "replicas": 16, "nodes": 5, "pending_ops": 0} == done.rows
    containers = rows(tmp_path / "snapshot", "containers")
    assert ["CLOSED"] * 4 + ["OPEN"] * 8 == [row["state"] for row in containers]
    assert [("RATIS", 3)] * 2 + [("EC", 5)] * 2 == [
        (row["replication_type"], row["replication_factor"]) for row in containers[:4]
    ]
    assert all(row["pipeline_alive"] for row in containers[4:])
    nodes = rows(tmp_path / "snapshot", "nodes")
    assert {("HEALTHY", "IN_SERVICE", True)} == {
        (row["health"], row["op_state"], row["has_reported"]) for row in nodes
    }
    assert all(row["capacity_bytes"] > row["available_bytes"] > 0 for row in nodes)


def test_pages_add_up(scm: RecordedScm, tmp_path: Path) -> None:
    """
    Nothing is left out between two of them, and nothing comes twice.
    """
    exported(scm, tmp_path / "one")
    exported(scm, tmp_path / "three", page_containers=5)

    for table in ("containers", "replicas"):
        one, three = (rows(tmp_path / name, table) for name in ("one", "three"))
        ids = [(row["container_id"], row.get("datanode_id")) for row in three]
        assert len(ids) == len(set(ids))
        assert sorted(ids, key=str) == sorted(
            ((row["container_id"], row.get("datanode_id")) for row in one), key=str
        )


def test_a_holder_that_the_scm_lists_no_more_is_a_dead_node(tmp_path: Path) -> None:
    """The replicas of such a holder would otherwise be on a datanode that the snapshot does not
    contain.
    """
    answers = recorded("scm")
    listed = next(request for request in answers if b"\x08\x06" in request[-8:])
    answers[listed] = without_first_node(answers[listed])
    with recorded_scm(answers=answers) as scm:
        exported(scm, tmp_path / "snapshot")

    nodes = {row["datanode_id"]: row for row in rows(tmp_path / "snapshot", "nodes")}
    held = {row["datanode_id"] for row in rows(tmp_path / "snapshot", "replicas")}
    assert nodes.keys() == held
    assert 5 == len(nodes)
    assert 1 == sum(row["health"] == "DEAD" for row in nodes.values())


def without_first_node(frame: bytes) -> bytes:
    """Return the answer without the first of its nodes, cut by hand."""
    header_bytes, at = read_varint(frame, 0)
    body_at = at + header_bytes
    _, at = read_varint(frame, body_at)
    body = frame[at:]
    start = body.index(b"\x5a")  # field 11 of the response: the nodes
    _, inner = read_varint(body, start + 1)
    first_bytes, first = read_varint(body, inner + 1)
    nodes = body[first + first_bytes :]
    body = body[:start] + b"\x5a" + varint(len(nodes)) + nodes
    return frame[:body_at] + varint(len(body)) + body


def test_a_snapshot_is_whole_or_not_there(tmp_path: Path) -> None:
    """An SCM that stops answering midway leaves nothing that a reader could take for a snapshot."""
    with recorded_scm(silent_after=12) as scm, pytest.raises(UnavailableError):
        exported(scm, tmp_path / "snapshot")

    assert [] == list(tmp_path.iterdir())


def test_a_killed_export_is_not_believed_and_not_in_the_way(tmp_path: Path) -> None:
    """The killed export left a hidden directory without a manifest, which the next export
    removes.
    """
    target = tmp_path / "snapshot"
    with recorded_scm(silent_after=8) as scm:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "agent.cli.start", "ozone", "export"),
                *("--scm", scm.address, "--to", str(target)),
            ],
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
        )
        wait_until(lambda: len(scm.calls) > 8)
        process.send_signal(signal.SIGKILL)
        process.wait()
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".")
    assert not (left / "manifest.json").exists()

    with recorded_scm() as scm:
        exported(scm, target)

    assert [target] == list(tmp_path.iterdir())


def test_two_exports_to_one_place_do_not_meet(scm: RecordedScm, tmp_path: Path) -> None:
    """
    The second is refused while the first writes, and when it is done.
    """
    target = tmp_path / "snapshot"
    met: list[SutureError] = []

    def again(_count: int, _total: int) -> None:
        with pytest.raises(UnavailableError) as caught:
            exported(scm, target)
        met.append(caught.value)

    client = OzoneScmClient(parse_addresses(scm.address), HadoopIdentity("suture"), IMPATIENT)
    with closing(client):
        export(ExportOptions(client, target), again)
    with pytest.raises(RefusedError, match="exists"):
        exported(scm, target)

    assert [Code.BUSY] == [error.code for error in met]
    assert 12 == len(rows(target, "containers"))


def test_export_prints_its_target_and_cost_as_json(
    scm: RecordedScm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The document has the target, the number of requests and the peak memory."""
    target = tmp_path / "snapshot"

    code = run(["ozone", "export", "--scm", scm.address, "--to", str(target), "--json"])

    told = document_in(capsys.readouterr().out, "ozone export")
    assert ExitCode.OK == code
    assert str(target) == told["snapshot"]
    assert len(scm.calls) == told["requests"]
    assert told["peak_memory_bytes"] > 1024**2
    assert {"left_out": [], "is_safe_mode": False, "gone_count": 0}.items() <= told.items()


@pytest.mark.parametrize("address", ["nowhere", "host:port", ""])
def test_export_refuses_an_invalid_scm_address(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is that of a usage error, and the message names the option."""
    code = run(["ozone", "export", "--scm", address, "--to", str(tmp_path / "snapshot")])

    assert ExitCode.USAGE == code
    assert "--scm" in capsys.readouterr().err
