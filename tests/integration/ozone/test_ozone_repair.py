"""`suture ozone repair` on volumes that Ozone wrote, from peers that serve what Ozone had."""

import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ozone.clients.datanode_messages import DatanodeCommand
from suture.runtime.exit_codes import ExitCode
from tests.support.faults.changes_seen import changes
from tests.support.ozone.ozone_datanode import (
    FIRST,
    OzoneDatanode,
    Served,
    golden_peers,
)
from tests.support.ozone.ozone_repairs import (
    DamagedVolume,
    addresses,
    held_open,
    peers_of,
    serving,
)
from tests.support.ozone.ozone_volumes import (
    BLOCK_DATA,
    chunk_message,
    snapshot,
)

LENGTHS = {
    3: 300_000, 4: 1_100_000, 10: 4885, 16: 9547, 17: 41_060, 19: 200_000, 29: 41_110,
    9: 4108, 14: 7993, 21: 200_000, 22: 100_000, 24: 100_000, 25: 200_000, 26: 1_300_000,
}  # fmt: skip
FLIPPED = 22  # container 2: one bit in one of its windows
UNSUMMED = {24, 25}  # container 2: of checksum type NONE
OWNER = 4321


def own_row(served: Served, block_id: int, data: bytes) -> None:
    """Let a peer have other bytes, with a row that fits them."""
    message = BLOCK_DATA.FromString(served.rows[block_id])
    del message.chunks[:]
    message.chunks.extend([BLOCK_DATA(chunks=[chunk_message(data, 0)]).chunks[0]])
    served.rows[block_id] = message.SerializeToString()
    served.data[block_id] = data


# --- what is healed ------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["closed", "scanned"])
def test_every_damage_is_healed(volumes: Path, volume: DamagedVolume, table: str) -> None:
    """
    Flips, cuts, zeros, lost and exchanged files have the client's bytes again, whichever of Ozone's
    two trees the peers have; rows, descriptors, trees and all other blocks are untouched.
    """
    before = snapshot(volume.data_dir)
    with peers_of(volumes, table=table) as peers:
        codes = [volume.repair(number, addresses(peers), "--yes") for number in (1, 2)]

        asked = [request for peer in peers for request in peer.asked]

    assert [ExitCode.OK, ExitCode.OK] == codes
    damaged = {(c, number) for c in (1, 2) for number in volume.damaged_numbers(c)}
    assert 14 == len(damaged)
    assert all(volume.is_whole(c, number, LENGTHS[number]) for c, number in damaged)
    after = snapshot(volume.data_dir)
    touched = {str(volume.file(*place).relative_to(volume.data_dir)) for place in damaged}
    assert touched == {name for name, facts in after.items() if _what(before, name) != facts[:3:2]
                       or before[name][4] != facts[4]}  # fmt: skip
    reads = [request for request in asked if request.command == DatanodeCommand.READ_CHUNK]
    wanted = {request.read_chunk.block_id.local_id - FIRST for request in reads}
    assert wanted == {number for _, number in damaged}


def _what(facts: dict[str, Any], name: str) -> tuple[int, int]:
    """Return mode and links of what was there; of what was not, nothing that there is."""
    return facts[name][:3:2] if name in facts else (0, 0)


def test_peers_of_ozone_before_2_1_repair_every_chunk_without_trees(
    volumes: Path, volume: DamagedVolume, capsys: pytest.CaptureFixture[str]
) -> None:
    """Datanodes of 1.4 and 2.0 cannot parse a request for a tree. Their rows and chunks suffice."""
    with serving(golden_peers(volumes), knows_trees=False) as peers:
        documents = [volume.document(capsys, number, addresses(peers)) for number in (1, 2)]

    damaged = {(c, number) for c in (1, 2) for number in volume.damaged_numbers(c)}
    assert all(volume.is_whole(c, number, LENGTHS[number]) for c, number in damaged)
    assert [True, True] == [document["is_whole"] for document in documents]
    peers_said = [peer for document in documents for peer in document["peers"]]
    assert all(peer["state"] in {"used", "equal"} for peer in peers_said)
    assert all("before Ozone 2.1" in peer["remark"] for peer in peers_said)


def test_chunk_that_rotted_at_a_peer_without_trees_comes_from_the_other(
    volumes: Path, volume: DamagedVolume
) -> None:
    """Nothing but the rows tells which peer has a chunk whole, so each fetch is verified."""
    replicas = golden_peers(volumes)
    for number in LENGTHS:
        if FIRST + number in replicas[0][1].data:
            replicas[0][1].flip(FIRST + number, 1)

    with serving(replicas, knows_trees=False) as peers:
        assert ExitCode.OK == volume.repair(1, addresses(peers), "--yes")

    assert all(volume.is_whole(1, n, LENGTHS[n]) for n in volume.damaged_numbers(1))


def test_the_peers_are_asked_for_nothing_that_they_refuse(
    volumes: Path, volume: DamagedVolume
) -> None:
    """
    Each refusal would make Ozone read the container: a whole repair gets none, also of blocks that
    Ozone's scan leaves out of its trees, and of one that a peer has lost.
    """
    refused = []
    replicas = golden_peers(volumes, table="scanned")
    replicas[0][1].forget(FIRST + 3)
    with serving(replicas) as peers:
        for peer in peers:
            answer = peer._answer

            def counted(request: Any, result: int, answer: Any = answer) -> Any:
                given = answer(request, result)
                if given.result != 1:
                    refused.append(request)
                return given

            peer._answer = counted  # type: ignore[method-assign]
        for number in (1, 2):
            assert ExitCode.OK == volume.repair(number, addresses(peers), "--yes")

    assert [] == refused


def test_chunks_damaged_everywhere_are_put_together_of_windows(
    volumes: Path, volume: DamagedVolume
) -> None:
    """
    No replica has the chunk, all trees say so, and each window is whole somewhere: Ozone gives up,
    and this does not.
    """
    replicas = golden_peers(volumes)
    for index, replica in enumerate(replicas):
        replica[2].flip(FIRST + FLIPPED, 16384 * (2 + index))
        replica[2].mark(2, FIRST + FLIPPED, 0)
    assert not volume.is_whole(2, FLIPPED, LENGTHS[FLIPPED])

    with serving(replicas) as peers:
        code = volume.repair(2, addresses(peers), "--yes")

    assert ExitCode.OK == code
    assert volume.is_whole(2, FLIPPED, LENGTHS[FLIPPED])


def test_a_lost_directory_is_made_again(peers: list[OzoneDatanode], volume: DamagedVolume) -> None:
    """
    A replica of which the block files are gone with their directory is rebuilt from its rows.
    """
    chunks = volume.file(1, 3).parent
    shutil.rmtree(chunks)

    code = volume.repair(1, addresses(peers), "--yes")

    assert ExitCode.OK == code
    assert all(volume.is_whole(1, number, LENGTHS[number]) for number in (3, 4, 29))


def test_a_repair_of_what_is_whole_asks_nobody(
    peers: list[OzoneDatanode], volume: DamagedVolume
) -> None:
    """
    A second repair finds nothing to do.
    """
    volume.repair(1, addresses(peers), "--yes")
    before, count = snapshot(volume.data_dir), len(peers[0].asked)

    assert ExitCode.OK == volume.repair(1, addresses(peers))

    assert before == snapshot(volume.data_dir)
    assert count == len(peers[0].asked)


# --- what is not believed ------------------------------------------------------------------------


def test_bytes_that_fit_a_peers_row_and_not_ours_are_not_installed(
    volumes: Path, volume: DamagedVolume, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both peers agree on other bytes. The local row decides, the damage stays, and the
    contradiction is reported.
    """
    replicas = golden_peers(volumes)
    for replica in replicas:
        own_row(replica[1], FIRST + 3, b"\x5a" * LENGTHS[3])
        replica[1].tree = b""

    with serving(replicas) as peers:
        document = volume.document(capsys, 1, addresses(peers))

    assert not volume.file(1, 3).exists()
    left = {one["block_id"]: one for one in document["outcomes"] if one["written"] == "LEFT"}
    assert {FIRST + 3} == set(left)
    assert "CONTRADICTORY" in left[FIRST + 3]["message"]
    assert (False, 1) == (document["is_whole"], document["damaged_chunk_count"])


def test_a_peer_that_serves_other_bytes_than_its_row_says_is_passed_over(
    volumes: Path, volume: DamagedVolume
) -> None:
    """Chunks that rotted at one peer since its scan come from the other one."""
    replicas = golden_peers(volumes)
    for number in LENGTHS:
        if FIRST + number in replicas[0][1].data:
            replicas[0][1].flip(FIRST + number, 1)

    with serving(replicas) as peers:
        assert ExitCode.OK == volume.repair(1, addresses(peers), "--yes")

    assert all(volume.is_whole(1, n, LENGTHS[n]) for n in volume.damaged_numbers(1))


def test_damage_that_nobody_can_heal_stays_and_is_told(
    volumes: Path, volume: DamagedVolume, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same window is wrong everywhere. No byte of that chunk is changed, and the rest is
    repaired.
    """
    replicas = golden_peers(volumes)
    at = next(item["offset"] for item in volume.damage if f"{FLIPPED}.block" in item["file"])
    for replica in replicas:
        replica[2].flip(FIRST + FLIPPED, at + 3)
        replica[2].mark(2, FIRST + FLIPPED, 0)
    before = volume.file(2, FLIPPED).read_bytes()

    with serving(replicas) as peers:
        document = volume.document(capsys, 2, addresses(peers))

    assert before == volume.file(2, FLIPPED).read_bytes()
    left = [one for one in document["outcomes"] if one["written"] == "LEFT"]
    assert [FIRST + FLIPPED] == [one["block_id"] for one in left]
    assert "16384 of 100000 bytes fit nowhere" in left[0]["message"]
    assert volume.is_whole(2, 26, LENGTHS[26])


@pytest.mark.parametrize("case", ["one peer", "peers differ"])
def test_bytes_without_checksums_need_two_peers_that_agree(
    volumes: Path, volume: DamagedVolume, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bytes without a checksum are not taken from a single peer, nor if two peers differ."""
    replicas = golden_peers(volumes)[: 1 if case == "one peer" else 2]
    if case == "peers differ":
        for number in UNSUMMED:
            replicas[1][2].flip(FIRST + number, 7)

    with serving(replicas) as peers:
        document = volume.document(capsys, 2, addresses(peers))

    left = [one for one in document["outcomes"] if one["written"] == "LEFT"]
    assert {FIRST + number for number in UNSUMMED} == {one["block_id"] for one in left}
    assert all("no checksums" in one["message"] for one in left)
    assert 0 == volume.file(2, 24).stat().st_size


# --- peers that fail -----------------------------------------------------------------------------


def test_repair_works_with_one_unreachable_peer(
    peers: list[OzoneDatanode], volume: DamagedVolume
) -> None:
    """The other peer is enough for every chunk that has checksums."""
    code = volume.repair(1, ["127.0.0.1:1", peers[1].address], "--yes")

    assert ExitCode.OK == code


def test_a_peer_that_dies_in_the_middle_is_replaced(
    peers: list[OzoneDatanode], volume: DamagedVolume
) -> None:
    """One peer stops after its second chunk, and the other one serves the rest."""

    def dies(request: Any) -> int:
        reads = [one for one in peers[0].asked if one.command == DatanodeCommand.READ_CHUNK]
        return -1 if request.command == DatanodeCommand.READ_CHUNK and len(reads) > 2 else 0

    peers[0].before = dies

    assert ExitCode.OK == volume.repair(1, addresses(peers), "--yes")

    assert all(volume.is_whole(1, n, LENGTHS[n]) for n in volume.damaged_numbers(1))


# --- what is left alone --------------------------------------------------------------------------


def test_a_running_datanode_is_refused(
    peers: list[OzoneDatanode], volume: DamagedVolume, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    While a process has the database open nothing is read, asked or written; it is named.
    """
    with held_open(volume.database) as process_id:
        opened = snapshot(volume.data_dir)
        with changes(volume.data_dir) as seen:
            code = volume.repair(1, addresses(peers), "--yes")

        assert opened == snapshot(volume.data_dir)

    assert ExitCode.FAILED == code
    assert f"process {process_id} has" in capsys.readouterr().err
    assert [] == seen
    assert [] == peers[0].asked


def test_a_datanode_that_is_started_meanwhile_ends_the_repair(
    peers: list[OzoneDatanode], volume: DamagedVolume, capsys: pytest.CaptureFixture[str]
) -> None:
    """The database is opened between two chunks, and no further chunk is written."""
    with ExitStack() as stack:

        def start(request: Any) -> int:
            if request.command == DatanodeCommand.READ_CHUNK and not started:
                started.append(stack.enter_context(held_open(volume.database)))
            return 0

        started: list[int] = []
        peers[0].before = peers[1].before = start
        code = volume.repair(1, addresses(peers), "--yes")
        assert started

    assert ExitCode.FAILED == code
    assert "the datanode is running" in capsys.readouterr().err
    assert not volume.is_whole(1, 29, LENGTHS[29])  # the last one, long after the first answer


def test_a_dry_run_changes_nothing(
    peers: list[OzoneDatanode], volume: DamagedVolume, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    The plan is shown, no byte is fetched, and the kernel sees no change.
    """
    before = snapshot(volume.data_dir)
    with changes(volume.data_dir) as seen:
        document = volume.document(capsys, 1, addresses(peers), "--dry-run")

    assert [] == seen
    assert before == snapshot(volume.data_dir)
    assert 9 == len(document["plan"])
    assert all(2 == len(one["sources"]) for one in document["plan"])
    assert DatanodeCommand.READ_CHUNK not in peers[0].commands()


def test_repair_without_confirmation_writes_nothing(
    peers: list[OzoneDatanode], volume: DamagedVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator answers no."""
    before = snapshot(volume.data_dir)
    monkeypatch.setattr("typer.confirm", lambda *_args, **_more: False)

    assert ExitCode.FAILED == volume.repair(1, addresses(peers))

    assert before == snapshot(volume.data_dir)


def test_a_file_with_other_names_is_not_written_through(
    peers: list[OzoneDatanode], volume: DamagedVolume, tmp_path: Path
) -> None:
    """A damaged file with a hard link elsewhere, as a backup, keeps its bytes there."""
    linked = tmp_path / "linked"
    os.link(volume.file(2, FLIPPED), linked)
    before = linked.read_bytes()

    code = volume.repair(2, addresses(peers), "--yes")

    assert ExitCode.OK == code
    assert before == linked.read_bytes()
    assert volume.is_whole(2, FLIPPED, LENGTHS[FLIPPED])
    assert 1 == volume.file(2, FLIPPED).stat().st_nlink


def test_a_link_in_the_place_of_a_file_is_not_followed(
    peers: list[OzoneDatanode],
    volume: DamagedVolume,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The target of the link is not written, and the block is reported."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"somebody else's")
    volume.file(1, 3).symlink_to(elsewhere)

    document = volume.document(capsys, 1, addresses(peers))

    assert b"somebody else's" == elsewhere.read_bytes()
    left = [one for one in document["outcomes"] if one["written"] == "LEFT"]
    assert [FIRST + 3] == [one["block_id"] for one in left]
    assert "is not a regular file" in left[0]["message"]


def test_files_belong_to_the_datanodes_user(
    peers: list[OzoneDatanode], volume: DamagedVolume
) -> None:
    """New files have the owner and mode of their neighbours, whoever runs the repair."""
    owner = OWNER if os.geteuid() == 0 else os.geteuid()
    for path in volume.data_dir.rglob("*"):
        os.chown(path, owner, -1)
        path.chmod(0o700 if path.is_dir() else 0o604)
    shutil.rmtree(volume.file(2, 9).parent)

    for number in (1, 2):
        assert ExitCode.OK == volume.repair(number, addresses(peers), "--yes")
    assert ExitCode.OK == volume.repair(1, addresses(peers), "--mark-closed")

    found = {
        (path.stat().st_uid, oct(path.stat().st_mode & 0o777), path.is_dir())
        for path in volume.data_dir.rglob("*")
        if volume.file(2, 9).parent not in path.parents
    }
    assert {(owner, "0o700", True), (owner, "0o604", False)} == found
    made = {(path.stat().st_uid, path.stat().st_mode & 0o777)
            for path in volume.file(2, 9).parent.iterdir()}  # fmt: skip
    assert {(owner, 0o644)} == made


def test_erasure_coded_shards_are_refused(
    volumes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No peer has a shard's bytes, so none is asked."""
    volume = DamagedVolume(volumes / "dn4", tmp_path / "state", [])

    assert ExitCode.FAILED == volume.repair(3, ["127.0.0.1:1"], "--yes")

    assert "is shard 3 of an erasure-coded one" in capsys.readouterr().err


def test_schema_v2_wants_a_persons_word(
    volumes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a permanently open database, no lock shows whether the datanode is stopped, so the
    operator has to confirm it.
    """
    shutil.copytree(volumes / "v2", tmp_path / "data")
    volume = DamagedVolume(tmp_path / "data", tmp_path / "state", [])
    shutil.rmtree(volume.database)

    assert ExitCode.FAILED == volume.repair(1, ["127.0.0.1:1"], "--yes")
    assert "--stopped" in capsys.readouterr().err
    assert ExitCode.OK == volume.repair(1, ["127.0.0.1:1"], "--yes", "--stopped")
