"""Scrubs of all hosts beside what the SCM says: damage is known, and why roots differ."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from agent.cli.main import run
from merkle.checksum import Algorithm
from merkle.replica import BlockId, ContainerId
from merkle.tree_building import TreeBuilder
from ozone.clients.authentication import HadoopIdentity
from ozone.clients.connection import parse_addresses
from ozone.clients.scm import OzoneScmClient
from ozone.cluster.export import ExportOptions, export
from ozone.cluster.scrubs import read_scrubs
from ozone.disk.blockrow import decode_stored
from ozone.disk.treefile import decode_tree
from ozone.scrub.comparison import Agreement, Comparison, TreeComparisonBuilder
from spark_verify.pipeline import VerifyRequest, verify
from suture.errors import RefusedError
from suture.runtime.exit_codes import ExitCode
from tests.support.ozone.ozone_volumes import golden, lines
from tests.support.ozone.recorded_scm import recorded_scm, replicas_of_ozone
from tests.support.printed_json import document_in
from tests.support.verification.judged import judged
from tests.support.verification.snapshots import (
    ContainerRow,
    NodeRow,
    ReplicaRow,
    SnapshotRows,
    gather,
)

DAMAGED = {(0, 1), (0, 2)}  # datanode and container: what damage.json names


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables of a real cluster, before and after Ozone's own scan of everything."""
    return golden(tmp_path_factory.mktemp("golden"))


def compared(replica: dict[str, Any]) -> Comparison:
    """Compare a replica's tree with its rows, as a scrub of its whole bytes does."""
    container_id = ContainerId(replica["container"])
    ledger, builder = TreeComparisonBuilder(), TreeBuilder(Algorithm.CRC32C)
    for item in replica["blocks"]:
        row = bytes.fromhex(item["proto"])
        stored = decode_stored(container_id, BlockId(item["id"]), row, None)
        ledger.add(stored)
        builder.add_block(stored.block.block_id)
        for chunk in stored.block.chunks:
            builder.add_chunk(chunk.offset, chunk.length_bytes, chunk.window_checksums)
    tree = decode_tree(bytes.fromhex(replica["tree"]), container_id)
    return ledger.compare(tree, replica["dataChecksum"], builder.build())


def test_a_root_is_settled_whoever_made_the_tree(tables: Path) -> None:
    """
    Before Ozone's scan and after, each whole replica has one: the root with which it closed.
    """
    closed = {(r["dn"], r["container"]): r for r in lines(tables / "closed.jsonl")}
    differing = 0
    for replica in lines(tables / "scanned.jsonl"):
        key = (replica["dn"], replica["container"])
        before, after = compared(closed[key]), compared(replica)

        assert closed[key]["dataChecksum"] == before.settled_root
        if key in DAMAGED:
            continue
        assert Agreement.UNEXPLAINED is not after.agreement
        assert closed[key]["dataChecksum"] == after.settled_root
        differing += replica["dataChecksum"] != closed[key]["dataChecksum"]
    assert differing > 0


@pytest.mark.parametrize(("name", "datanode"), [("dn0-damaged", 0), ("dn4", 4)])
def test_damaged_bytes_have_a_root_of_their_own(
    name: str, datanode: int, tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The damaged replica has a different root, and not the one that Ozone scanned."""
    closed = {
        r["container"]: f"{r['dataChecksum']:08x}"
        for r in lines(tables / "closed.jsonl")
        if r["dn"] == datanode
    }

    run(["ozone", "scrub", str(tables / name), "--state-dir", str(tmp_path / "s"), "--json"])

    document = document_in(capsys.readouterr().out, "ozone scrub")
    listed = [c for volume in document["volumes"] for c in volume["containers"]]
    found = [container for container in listed if container["status"] != "MISSING"]
    assert len(found) >= 2
    for container in found:
        number, settled = container["container_id"], container["tree"]["settled_root"]
        assert settled is not None
        is_damaged = (datanode, number) in DAMAGED
        assert is_damaged == (container["status"] == "DAMAGED")
        assert is_damaged == (settled != closed[number])


def half_scanned(tables: Path, *, is_read: bool) -> Iterator[SnapshotRows]:
    """Yield the containers of that cluster, the replicas as Ozone would report them if it had
    scanned every second one; `is_read`: all were scrubbed, too."""
    scanned = {(r["dn"], r["container"]): r for r in lines(tables / "scanned.jsonl")}
    by_container: dict[int, list[dict[str, Any]]] = {}
    for replica in lines(tables / "closed.jsonl"):
        by_container.setdefault(replica["container"], []).append(replica)
    for container_id, replicas in by_container.items():
        rows = SnapshotRows()
        width = 3 if replicas[0]["index"] == 0 else 5
        code = {"ec_data": 3, "ec_parity": 2} if width == 5 else {}
        kind = "EC" if code else "RATIS"
        rows.containers.append(
            ContainerRow(container_id, kind, width, state="CLOSED", sequence_id=1, **code)
        )
        for place, replica in enumerate(sorted(replicas, key=lambda r: str(r["uuid"]))):
            key = (replica["dn"], container_id)
            reported = scanned[key] if place % 2 and key not in DAMAGED else replica
            rows.nodes.append(NodeRow(f"dn{container_id}-{place}", rack=f"/r{place}"))
            rows.replicas.append(
                ReplicaRow(
                    container_id,
                    f"dn{container_id}-{place}",
                    replica_index=replica["index"],
                    bcsid=1,
                    tree_algorithm="crc32c",
                    root=reported["dataChecksum"] or None,
                    settled_root=compared(reported).settled_root if is_read else None,
                    tombstones_checksum=None,
                )
            )
        yield rows


def test_no_real_replica_is_called_different_because_ozone_scanned_another(tables: Path) -> None:
    """
    With the scrubs no container is a mismatch; without them some are: it was no easy case.
    """
    told = judged(list(half_scanned(tables, is_read=True)))
    untold = judged(list(half_scanned(tables, is_read=False)))

    words = {number: row.opinion.checksum_class for number, row in told.items()}
    assert {"EXPLAINED", "MATCH", "NOT_COMPARABLE"} >= set(words.values())
    explained = {number for number, word in words.items() if word == "EXPLAINED"}
    assert explained
    assert explained == {
        number
        for number, row in untold.items()
        if row.opinion.checksum_class.startswith("MISMATCH")
    }
    assert not any(row.is_wanted for row in told.values())


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_suture_verify_shows_it(tables: Path, tmp_path: Path) -> None:
    """
    In the tables, in the summary and in the report; and the plan has nothing to reconcile.
    """
    gather(half_scanned(tables, is_read=True)).write(tmp_path / "snapshot")

    done = verify(VerifyRequest(str(tmp_path / "snapshot"), tmp_path / "out"))

    for name in ("health", "replica_class"):
        rows = pq.read_table(done.table(name)).to_pylist()
        assert "EXPLAINED" in {row["checksum_class"] for row in rows}
    classes = done.summary["checksum_classes"]
    assert classes["EXPLAINED"] > 0
    assert 0 == classes["MISMATCH_MINORITY"] == classes["MISMATCH_SPLIT"]
    assert "EXPLAINED" in (done.directory / "report.html").read_text()
    assert 0 == done.summary["plan"]["reconcile"]["rows"]
    assert 0 == done.summary["flags"]["ROOTS_DIFFER"]


def document(**fields: Any) -> dict[str, Any]:
    """Return what a scrub prints of one container on the first replica of the recording."""
    first = replicas_of_ozone()[0]
    root = f"{first['dataChecksum']:08x}"
    container = {
        "container_id": first["container"],
        "status": "WHOLE",
        "read_at_ms": 5,
        "findings": [],
        "tree": {"agreement": "EXPLAINED", "root": root, "settled_root": "00000009"},
    } | fields
    volume = {
        "datanode_id": first["uuid"],
        "storage_id": "DS-1",
        "containers": [container],
    }
    return {"volumes": [volume]}


def row_with(tmp_path: Path, *documents: dict[str, Any]) -> dict[str, Any]:
    """Export the recorded cluster with such documents; return the first replica's row."""
    paths = []
    for number, one in enumerate(documents):
        paths.append(tmp_path / f"{number}.json")
        paths[-1].write_text(json.dumps(one))
    with recorded_scm() as scm:
        client = OzoneScmClient(parse_addresses(scm.address), HadoopIdentity("suture"))
        with closing(client):
            wish = ExportOptions(client, tmp_path / "snapshot", read_scrubs(paths))
            done = export(wish, lambda _count, _total: None)
    assert 1 == done.scrubbed_count
    first = replicas_of_ozone()[0]
    key = (first["container"], first["uuid"])
    rows = pq.read_table(tmp_path / "snapshot" / "replicas").to_pylist()
    assert 1 == sum(row["data_scan_at_ms"] is not None for row in rows)
    (found,) = [row for row in rows if (row["container_id"], row["datanode_id"]) == key]
    return dict(found)


def test_scrub_result_is_joined_to_its_replica(tmp_path: Path) -> None:
    """The result is joined to no other replica."""
    row = row_with(tmp_path, document())

    assert (9, "DS-1", 5, 0) == tuple(
        row[name] for name in ("settled_root", "volume_id", "data_scan_at_ms", "finding_count")
    )


def test_damage_is_counted(tmp_path: Path) -> None:
    """
    Findings that cost no data are not damage.
    """
    findings = [{"is_damage": True}, {"is_damage": True}, {"is_damage": False}]

    row = row_with(tmp_path, document(status="DAMAGED", findings=findings))

    assert (2, 9) == (row["finding_count"], row["settled_root"])


@pytest.mark.parametrize("agreement", ["DAMAGE", "UNEXPLAINED", "NO_TREE"])
def test_only_a_tree_that_is_explained_explains(agreement: str, tmp_path: Path) -> None:
    """The rest of the document does not matter."""
    tree = document()["volumes"][0]["containers"][0]["tree"]

    row = row_with(tmp_path, document(tree=tree | {"agreement": agreement}))

    assert row["settled_root"] is None


def test_a_scrub_of_another_tree_explains_nothing(tmp_path: Path) -> None:
    """
    Ozone has made a new tree since: it was not compared.
    """
    tree = {"agreement": "EXPLAINED", "root": "00000001", "settled_root": "00000009"}

    row = row_with(tmp_path, document(tree=tree))

    assert row["settled_root"] is None
    assert replicas_of_ozone()[0]["dataChecksum"] == row["root"]


def test_later_of_two_scrubs_counts(tmp_path: Path) -> None:
    """The order of the arguments does not matter."""
    findings = [{"is_damage": True}]
    old = document(status="DAMAGED", findings=findings, read_at_ms=4)

    row = row_with(tmp_path, document(), old)

    assert (0, 5) == (row["finding_count"], row["data_scan_at_ms"])


@pytest.mark.parametrize("text", ["", "{", "[]", '{"volumes": [{}]}', '{"volumes": 3}'])
def test_invalid_scrub_document_is_refused_by_name(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The export fails before it contacts the SCM, and writes nothing."""
    path = tmp_path / "host.json"
    path.write_text(text)

    with pytest.raises(RefusedError, match=r"host\.json"):
        read_scrubs([path])
    code = run(
        [
            *("ozone", "export", "--scm", "127.0.0.1:1", "--to", str(tmp_path / "snapshot")),
            *("--findings", str(path)),
        ]
    )

    assert ExitCode.FAILED == code
    assert "host.json" in capsys.readouterr().err
    assert [path] == list(tmp_path.iterdir())
