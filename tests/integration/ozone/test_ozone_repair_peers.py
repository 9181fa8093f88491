"""Repairs from peers of Ozone 1.4, and from silent ones: silence is no verdict on the data."""

from pathlib import Path
from typing import Any

import pytest

from ozone.clients.datanode_messages import DatanodeCommand
from suture.runtime.exit_codes import ExitCode
from tests.support.ozone.ozone_datanode import (
    FIRST,
    IO_EXCEPTION,
    OzoneDatanode,
    golden_peers,
    served_from,
)
from tests.support.ozone.ozone_repairs import (
    DamagedVolume,
    addresses,
    closing_port,
    peers_of,
    serving,
)
from tests.support.ozone.ozone_volumes import OF_1_4, snapshot, unpack

FLIPPED = 22  # container 2: one bit in one of its windows
UNSUMMED = {24, 25}  # container 2: of checksum type NONE


def test_bytes_without_checksums_wait_for_a_silent_peer(
    volumes: Path, volume: DamagedVolume, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two peers agree, and the third, which does not answer, may have other bytes."""
    with peers_of(volumes) as peers:
        arguments = [*addresses(peers), "127.0.0.1:1"]
        document = volume.document(capsys, 2, arguments)

    left = {one["block_id"]: one for one in document["outcomes"] if one["written"] == "LEFT"}
    assert {FIRST + number for number in UNSUMMED} == set(left)
    assert all("not read: 127.0.0.1:1" in one["message"] for one in left.values())
    assert document["is_unknown"]


@pytest.mark.parametrize("option", ["--yes", "--dry-run"])
def test_unreachable_peers_end_the_repair_as_unknown(
    volume: DamagedVolume, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    """No peer answers. That is no verdict on the data: nothing is written, kept or called lost."""
    before = snapshot(volume.data_dir)

    code = volume.repair(1, ["127.0.0.1:1", "127.0.0.1:2"], option)

    assert ExitCode.UNAVAILABLE == code
    assert before == snapshot(volume.data_dir)
    assert not list(volume.state_dir.rglob("quarantine/*"))
    said = capsys.readouterr().out
    assert 2 == said.count("connection refused")
    assert "no peer could be asked" in said
    assert "nowhere" not in said
    assert "NO_HEALTHY_SOURCE" not in said
    document = volume.document(capsys, 1, ["127.0.0.1:1", "127.0.0.1:2"], option)
    assert ["unreachable"] * 2 == [peer["state"] for peer in document["peers"]]
    assert ([], True) == (document["outcomes"], document["is_unknown"])


def test_peer_that_refuses_every_row_is_no_peer_that_lacks_the_blocks(
    volumes: Path, volume: DamagedVolume, capsys: pytest.CaptureFixture[str]
) -> None:
    """A refusal other than NO_SUCH_BLOCK, as for a missing token, says nothing about the data."""

    def refuse(request: Any) -> int:
        return IO_EXCEPTION if request.command == DatanodeCommand.GET_BLOCK else 0

    with peers_of(volumes) as peers:
        for peer in peers:
            peer.before = refuse
        code = volume.repair(1, addresses(peers), "--yes")

    assert ExitCode.UNAVAILABLE == code
    assert 2 == capsys.readouterr().out.count("refused: IO_EXCEPTION")


def test_port_that_closes_plaintext_connections_gets_a_hint_about_tls(
    volume: DamagedVolume, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server with TLS hangs up on the first bytes that are no handshake."""
    with closing_port() as port:
        code = volume.repair(1, [f"127.0.0.1:{port}"], "--dry-run")

    assert ExitCode.UNAVAILABLE == code
    assert "TLS" in capsys.readouterr().out


def test_chunk_that_only_a_silent_peer_may_have_is_unknown_and_not_lost(
    volumes: Path, volume: DamagedVolume, capsys: pytest.CaptureFixture[str]
) -> None:
    """One peer has the same damage, the other does not answer: nobody may say that it is lost."""
    replicas = golden_peers(volumes)[:1]
    at = next(item["offset"] for item in volume.damage if f"{FLIPPED}.block" in item["file"])
    replicas[0][2].flip(FIRST + FLIPPED, at + 3)
    replicas[0][2].mark(2, FIRST + FLIPPED, 0)

    with serving(replicas) as peers:
        code = volume.repair(2, [*addresses(peers), "127.0.0.1:1"], "--yes")

    assert ExitCode.UNAVAILABLE == code
    said = capsys.readouterr().out
    assert "16384 of 100000 bytes fit in none that was read; not read: 127.0.0.1:1" in said
    assert "nowhere" not in said


def test_peers_that_die_after_the_plan_leave_chunks_unknown(
    peers: list[OzoneDatanode], volume: DamagedVolume, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both peers answer about their rows, and then no more."""

    def dies(request: Any) -> int:
        return -1 if request.command == DatanodeCommand.READ_CHUNK else 0

    peers[0].before = peers[1].before = dies

    code = volume.repair(1, addresses(peers), "--yes")

    assert ExitCode.UNAVAILABLE == code
    assert "nowhere" not in capsys.readouterr().out


def test_volume_of_ozone_1_4_is_repaired_from_a_peer_of_its_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every block file is cut in the middle, and has the client's bytes again."""
    volume = DamagedVolume(unpack(OF_1_4, tmp_path) / "1.4.1-v3", tmp_path / "state", ())
    replicas = served_from(volume.data_dir)
    files = sorted(volume.data_dir.rglob("*.block"))
    before = {path: path.read_bytes() for path in files}
    for path, data in before.items():
        path.write_bytes(data[: len(data) // 2])

    with serving([replicas], knows_trees=False) as peers:
        document = volume.document(capsys, 1, addresses(peers))

    assert 4 == len(files)
    assert document["is_whole"]
    assert before == {path: path.read_bytes() for path in files}
