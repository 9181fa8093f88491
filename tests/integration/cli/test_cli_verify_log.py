"""`suture verify-log`: a log that is whole, one that is not, and what only an anchor betrays."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from agent.cli.main import run
from agent.store.verification_log.chain import EntryKind, Head, encode
from agent.store.verification_log.log_files import files_of
from agent.store.verification_log.log_reader import log_directory
from suture.runtime.exit_codes import ExitCode
from suture.wire.mapping.rpc_services import SCM, Stub
from suture.wire.v1 import datanode_pb2, scm_pb2
from tests.support.control.fake_datanode import FakeDatanode
from tests.support.control.scm_world import ScmWorld
from tests.support.printed_json import document_in
from tests.support.storage.stored_replica import DATANODE, StoredReplica


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """Return a volume whose replica was read three times."""
    replica = StoredReplica(tmp_path / "volume")
    replica.create()
    for _ in range(3):
        replica.scan()
    replica.close()
    return tmp_path / "volume"


def lines_of(volume: Path) -> tuple[Path, list[bytes]]:
    """Return the one file of the log, and its lines."""
    directory = log_directory(volume)
    [name] = files_of(directory)
    return directory / name, (directory / name).read_bytes().splitlines(keepends=True)


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, object]]:
    """Return the exit code and the one answer."""
    capsys.readouterr()
    code = run(["verify-log", *arguments, "--json"])
    [answer] = document_in(capsys.readouterr().out, "verify-log")["logs"]
    return code, answer


def test_a_whole_log_is_proven(volume: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The output has the length and the head of the log."""
    code, answer = asked(capsys, str(volume))

    assert code == ExitCode.OK
    assert (1, 4, None) == (answer["first"], answer["count"], answer["gap"])


def test_a_gap_is_named(volume: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The output has the entry, the file and the kind of the gap."""
    path, lines = lines_of(volume)
    path.write_bytes(b"".join([*lines[:1], *lines[2:]]))

    code, answer = asked(capsys, str(volume))

    assert code == ExitCode.TO_DO
    gap = answer["gap"]
    assert isinstance(gap, dict)
    assert ("removed", 2, path.name, 2) == (gap["fault"], gap["entry"], gap["file"], gap["line"])


@pytest.mark.parametrize("through", [{}, {"through": "x"}, {"through": float("inf")}])
def test_an_entry_that_no_agent_writes_is_a_gap(
    volume: Path, capsys: pytest.CaptureFixture[str], through: dict[str, object]
) -> None:
    """A forger can make every hash fit, and the check must not fail on invalid entries."""
    path, lines = lines_of(volume)
    head = Head(len(lines), lines[-1][:64].decode())
    line, _ = encode(head, {"kind": EntryKind.RETIRED, "at_ms": 1, **through})
    path.write_bytes(b"".join([*lines, line]))

    code, answer = asked(capsys, str(volume))

    assert code == ExitCode.TO_DO
    gap = answer["gap"]
    assert isinstance(gap, dict)
    assert ("rewritten", len(lines) + 1) == (gap["fault"], gap["entry"])


def test_an_anchor_shows_what_the_chain_cannot(
    volume: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An end that was cut off at an entry."""
    _, whole = asked(capsys, str(volume))
    anchor = f"{whole['count']}:{whole['head']}"
    path, lines = lines_of(volume)
    path.write_bytes(b"".join(lines[:-1]))

    alone, _ = asked(capsys, str(volume))
    code, answer = asked(capsys, str(volume), "--anchor", anchor)

    assert alone == ExitCode.OK
    assert code == ExitCode.TO_DO
    gap = answer["gap"]
    assert isinstance(gap, dict)
    assert gap["fault"] == "truncated"


def test_invalid_anchor_or_volume_is_refused(volume: Path, tmp_path: Path) -> None:
    """The error names the invalid argument, and nothing is verified."""
    assert run(["verify-log", str(volume), "--anchor", "4:abc"]) == ExitCode.FAILED
    assert run(["verify-log", str(tmp_path / "nowhere")]) == ExitCode.FAILED


@pytest.fixture
def scm(tmp_path: Path) -> Iterator[str]:
    """The address of a control plane that was told the head of the volume's log."""
    with ScmWorld(tmp_path / "scm").running() as world, world.served() as address:
        yield address


def tell(scm: str, volume: Path) -> None:
    """Let the datanode of a volume tell the head of its log, as heartbeats do."""
    replica = StoredReplica(volume)
    [facts] = replica.store.volumes()
    replica.close()
    status = datanode_pb2.VolumeStatus(
        volume_id=facts.volume_id,
        path=str(volume),
        log_count=facts.log_count,
        log_checksum=bytes.fromhex(facts.log_checksum),
    )
    with grpc.insecure_channel(scm) as channel:
        node = FakeDatanode(Stub(channel, SCM), DATANODE)
        node.register()
        request = scm_pb2.HeartbeatRequest(
            datanode_id=DATANODE, boot_id=node.boot_id, volumes=[status]
        )
        node.stub.Heartbeat(request)


def test_the_control_plane_keeps_what_the_chain_cannot_show(
    volume: Path, scm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An end that was cut off; whose log it is stands in the log itself."""
    asking = (str(volume), "--from-scm", "--scm", scm)
    assert run(["verify-log", *asking]) == ExitCode.FAILED  # none was told yet
    tell(scm, volume)

    code, answer = asked(capsys, *asking)
    assert (ExitCode.OK, 1) == (code, answer["anchor_count"])

    path, lines = lines_of(volume)
    path.write_bytes(b"".join(lines[:-1]))
    code, answer = asked(capsys, *asking)
    assert code == ExitCode.TO_DO
    gap = answer["gap"]
    assert isinstance(gap, dict)
    assert gap["fault"] == "truncated"


def test_verify_log_lists_the_anchors_of_each_volume(
    volume: Path, scm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each volume is listed with the head of its log."""
    assert run(["verify-log", "--list-anchors", "--scm", scm]) == ExitCode.OK
    assert "the SCM stores no head of a log yet" in capsys.readouterr().out
    tell(scm, volume)
    _, whole = asked(capsys, str(volume))

    assert run(["verify-log", "--list-anchors", "--scm", scm, "--json"]) == ExitCode.OK
    [log] = document_in(capsys.readouterr().out, "verify-log")["logs"]

    assert log["datanode_id"] == DATANODE
    assert [whole["head"]] == [one["checksum"] for one in log["anchors"]]
    assert run(["verify-log", "--list-anchors", "--scm", scm]) == ExitCode.OK
    assert str(whole["count"]) in capsys.readouterr().out
