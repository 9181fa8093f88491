"""What commands send that follows from their options and from the time, and what they count of
streams. The test is the control plane and the datanode.
"""

import time
from pathlib import Path
from typing import Final

import pytest

from agent.cli.evidence.cluster_sample import last_of
from agent.cli.main import run
from merkle.replica import ContainerId
from suture.wire.clients.peer import Peer
from suture.wire.v1 import datanode_pb2 as d
from suture.wire.v1 import scm_pb2 as s
from tests.support.control.scripted_calls import ScriptedCalls
from tests.support.storage.stored_replica import DATANODE, StoredReplica

ME: Final = "dn-1"
MINUTE_MS: Final = 60_000


def test_times_in_requests_are_counted_from_now(capsys: pytest.CaptureFixture[str]) -> None:
    """The end of a maintenance, and the begin of a history."""
    began_ms = time.time_ns() // 1_000_000
    with ScriptedCalls() as calls:
        node = s.NodeInfo(datanode_id=ME, address=calls.address)
        calls.answers["ListNodes"] = [s.ListNodesResponse(nodes=[node])]
        run(["scm", "maintenance", ME, "--until", "2h", "--dry-run", "--scm", calls.address])
        run(["history", "--since", "2h", "--datanode", ME, "--scm", calls.address])
    passed_ms = time.time_ns() // 1_000_000 - began_ms

    [rest], [history] = calls.requests["SetOperationalStates"], calls.requests["ListChanges"]
    assert 0 <= rest.op_expiry_ms - began_ms - 120 * MINUTE_MS <= passed_ms
    assert 0 <= history.since_ms - began_ms + 120 * MINUTE_MS <= passed_ms
    assert capsys.readouterr().out


def test_seed_draws_the_same_sample_again() -> None:
    """Each datanode draws with a seed that follows from the one of the command."""
    seeds = []
    with ScriptedCalls() as calls:
        node = s.NodeInfo(datanode_id=ME, address=calls.address)
        calls.answers["ListNodes"] = [s.ListNodesResponse(nodes=[node])]
        counted = d.SampleProgress(result=d.SampleResult(chunk_count=10))
        calls.answers["SampleChunks"] = [counted]
        for seed in ("5", "5", "6"):
            run(["scrub", "sample", "--fraction", "0.5", "--seed", seed, "--scm", calls.address])
            seeds.append(calls.requests["SampleChunks"][-1].seed)

    assert seeds[0] == seeds[1] != seeds[2]
    assert all(seeds)


def test_progress_of_a_scan_and_of_a_sample_is_counted() -> None:
    """Those who wait get the bytes of the scan, and the chunks of the sample."""
    scanned, drawn = list[int](), list[int]()
    with ScriptedCalls() as calls, Peer(calls.address) as peer:
        calls.answers["ScanContainer"] = [
            d.ScanProgress(bytes_read=71, bytes_total=100),
            d.ScanProgress(bytes_read=100, bytes_total=100, result=d.ScanResult()),
        ]
        calls.answers["SampleChunks"] = [
            d.SampleProgress(read_count=3),
            d.SampleProgress(read_count=5, result=d.SampleResult(chunk_count=10)),
        ]
        peer.scanned(ContainerId(7), progress=lambda step: scanned.append(step.bytes_read))
        last_of(peer, d.SampleChunksRequest(chunk_count=10, drawn_count=5), drawn.append)

    assert ([71, 100], [3, 2]) == (scanned, drawn)


def test_log_is_checked_with_the_heads_of_its_own_volume(tmp_path: Path) -> None:
    """The datanode and the volume are those that the log itself names."""
    replica = StoredReplica(tmp_path / "volume")
    replica.create()
    replica.scan()
    [facts] = replica.store.volumes()
    replica.close()
    with ScriptedCalls() as calls:
        run(["verify-log", str(tmp_path / "volume"), "--from-scm", "--scm", calls.address])

    asked = s.ListAnchorsRequest(datanode_id=DATANODE, volume_id=facts.volume_id)
    assert [asked] == calls.requests["ListAnchors"]
