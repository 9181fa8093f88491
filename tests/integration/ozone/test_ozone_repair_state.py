"""Taking a repaired replica of Ozone back from UNHEALTHY: only by a person's word."""

import base64
import hashlib
import re
from pathlib import Path

import pytest

from merkle.checksum import crc32c
from merkle.replica import BlockId, ChecksumType, ChunkInfo, ContainerId
from ozone.clients.datanode_messages import DatanodeCommand
from ozone.repair.journal import Journal, RepairJournalEntry
from suture.runtime.exit_codes import ExitCode
from tests.support.ozone.ozone_datanode import IO_EXCEPTION, OzoneDatanode, Served
from tests.support.ozone.ozone_repairs import (
    DamagedVolume,
    addresses,
    serving,
)
from tests.support.ozone.ozone_volumes import BLOCK_DATA, MadeVolume, chunk_message

QUASI_CLOSED, UNHEALTHY = 3, 5
FIRST_PART, SECOND_PART = b"first" * 4_000, b"second" * 4_000


def double_sha256(text: str) -> str:
    """Return Ozone's checksum of a descriptor, by nobody's code but this."""
    unsummed = "checksum: !!binary |-\n  " + base64.b64encode(bytes(64)).decode()
    plain = re.sub(r"checksum: [0-9a-f]{64}", unsummed, text)
    return hashlib.sha256(hashlib.sha256(plain.encode()).digest()).hexdigest()


def test_the_descriptor_is_left_unless_a_person_says_so(
    peers: list[OzoneDatanode], volume: DamagedVolume
) -> None:
    """
    A repair leaves UNHEALTHY, which Ozone never takes back; with the word for it, state and
    checksum change, and nothing else.
    """
    path = volume.descriptor(1)
    before = path.read_text()
    volume.repair(1, addresses(peers), "--yes")
    assert before == path.read_text()

    assert ExitCode.OK == volume.repair(1, addresses(peers), "--mark-closed")

    after = path.read_text()
    assert double_sha256(after) in after
    checksum = re.compile("checksum: [0-9a-f]{64}")
    assert checksum.sub("", before.replace("UNHEALTHY", "CLOSED")) == checksum.sub("", after)


def test_damaged_replica_is_not_marked_closed(
    peers: list[OzoneDatanode], volume: DamagedVolume
) -> None:
    """No peer can read a chunk, so the descriptor stays as it is."""
    before = volume.descriptor(1).read_bytes()
    for peer in peers:
        peer.before = lambda one: IO_EXCEPTION if one.command == DatanodeCommand.READ_CHUNK else 0

    assert ExitCode.FAILED == volume.repair(1, addresses(peers), "--yes", "--mark-closed")

    assert before == volume.descriptor(1).read_bytes()


def test_a_container_that_is_not_closed_elsewhere_is_not_marked_closed(
    peers: list[OzoneDatanode], volume: DamagedVolume, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    A quasi-closed replica may lack what a closed one has.
    """
    peers[1].containers[1].state = QUASI_CLOSED
    before = volume.descriptor(1).read_bytes()

    assert ExitCode.FAILED == volume.repair(1, addresses(peers), "--yes", "--mark-closed")

    assert "QUASI_CLOSED" in capsys.readouterr().err
    assert before == volume.descriptor(1).read_bytes()


# --- what an earlier repair left -----------------------------------------------------------------


def test_a_repair_that_cannot_be_ended_as_it_should_is_told(
    whole: DamagedVolume, capsys: pytest.CaptureFixture[str]
) -> None:
    """The repair was killed midway, and an operator cleared its quarantine. The next repair
    reports that and repairs.
    """
    (path,) = whole.data_dir.glob("hdds/*/current/containerDir0/1/chunks/101.block")
    path.write_bytes(b"?" + FIRST_PART[1:])
    journal = whole.state_dir / "repair" / "DS-made" / "journal"
    journal.mkdir(parents=True)
    Journal(journal).begin(
        RepairJournalEntry(
            container_id=ContainerId(1),
            block_id=BlockId(101),
            path=path,
            chunk=ChunkInfo(0, len(FIRST_PART), ChecksumType.NONE, 0, b""),
            data_checksum=crc32c(FIRST_PART),
            old_length_bytes=len(FIRST_PART),
            quarantine="cleared",
            pending=False,
        )
    )

    with serving([{1: served((101, (FIRST_PART,)))}]) as peers:
        document = whole.document(capsys, 1, addresses(peers))

    assert path.read_bytes() == FIRST_PART
    assert "cleared.bytes is gone" in document["recovery"][0]


# --- behind --------------------------------------------------------------------------------------


def served(*blocks: tuple[int, tuple[bytes, ...]]) -> Served:
    """Return a replica that is UNHEALTHY and has blocks of these chunks, and no tree."""
    rows, data = {}, {}
    for block_id, parts in blocks:
        ends = [sum(map(len, parts[:index])) for index in range(len(parts))]
        rows[block_id] = BLOCK_DATA(
            block_id={"container_id": 1, "local_id": block_id, "bcsid": 7},
            chunks=[chunk_message(part, at) for part, at in zip(parts, ends, strict=True)],
        ).SerializeToString()
        data[block_id] = b"".join(parts)
    return Served(rows, data, b"", UNHEALTHY)


@pytest.fixture
def whole(tmp_path: Path) -> DamagedVolume:
    """A volume with an UNHEALTHY replica that is whole by its own rows: block 101, of one chunk.
    Its tree says that block 102 was deleted."""
    made = MadeVolume(tmp_path / "data")
    made.add_container(1, state="UNHEALTHY")
    made.add_block(1, 101, FIRST_PART)
    made.put_tree(1, {102: [5]}, 102)
    made.close()
    return DamagedVolume(made.root, tmp_path / "state", ())


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ([(101, (FIRST_PART,)), (103, (SECOND_PART,))], "103"),
        ([(101, (FIRST_PART, SECOND_PART))], "101"),
    ],
)
def test_a_replica_that_lacks_what_a_peer_has_is_not_marked_closed(
    whole: DamagedVolume,
    capsys: pytest.CaptureFixture[str],
    more: list[tuple[int, tuple[bytes, ...]]],
    named: str,
) -> None:
    """
    A write that failed half way leaves replicas that are whole and behind: called closed, one would
    be Ozone's only source, and the keys of what it lacks were lost with the others.
    """
    before = whole.descriptor(1).read_bytes()

    with serving([{1: served((101, (FIRST_PART,)))}, {1: served(*more)}]) as peers:
        assert ExitCode.FAILED == whole.repair(1, addresses(peers), "--yes", "--mark-closed")

        said = capsys.readouterr().err
        assert all(word in said for word in (peers[1].address, f"not here: {named}"))
    assert before == whole.descriptor(1).read_bytes()


def test_a_replica_is_not_marked_closed_while_a_peer_is_not_heard(
    whole: DamagedVolume, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    The one that is silent may be the one that has more: of it nothing is known.
    """
    before = whole.descriptor(1).read_bytes()

    with serving([{1: served((101, (FIRST_PART,)))}]) as peers:
        heard_and_silent = [*addresses(peers), "127.0.0.1:1"]
        assert ExitCode.UNAVAILABLE == whole.repair(1, heard_and_silent, "--yes", "--mark-closed")

    assert "127.0.0.1:1 did not answer" in capsys.readouterr().err
    assert before == whole.descriptor(1).read_bytes()


def test_a_replica_that_lost_rows_is_not_marked_closed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Its database counts more blocks than it has rows of: what is there is as it was written, and
    the peer that answers may have lost the same.
    """
    made = MadeVolume(tmp_path / "data")
    made.add_container(1, state="UNHEALTHY")
    made.add_block(1, 101, FIRST_PART)
    made.count(1, 1)
    made.close()
    volume = DamagedVolume(made.root, tmp_path / "state", ())

    with serving([{1: served((101, (FIRST_PART,)))}]) as peers:
        assert ExitCode.FAILED == volume.repair(1, addresses(peers), "--yes", "--mark-closed")

    said = capsys.readouterr()
    assert "not judged: the database counts 2 blocks and has the rows of 1" in said.out + said.err
    assert "state: UNHEALTHY" in volume.descriptor(1).read_text()


def test_block_deleted_here_does_not_prevent_mark_closed(
    whole: DamagedVolume, capsys: pytest.CaptureFixture[str]
) -> None:
    """A peer that has not executed a delete yet does not prevent it. The output lists the peers
    that were compared.
    """
    with serving([{1: served((101, (FIRST_PART,)), (102, (SECOND_PART,)))}]) as peers:
        document = whole.document(capsys, 1, addresses(peers), "--yes", "--mark-closed")

        assert addresses(peers) == document["compared_with"]
    assert "CLOSED" == document["state"]
    assert "state: CLOSED" in whole.descriptor(1).read_text()
