"""Taking a repaired replica of Ozone back from UNHEALTHY: only by a person's word."""

import base64
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.runtime.exits import Exit
from tests.support.ozone.ozone_datanode import OzoneDatanode
from tests.support.ozone.ozone_repairs import DamagedVolume, damaged_volume, peers_of
from tests.support.ozone.ozone_volumes import golden

QUASI_CLOSED = 3


@pytest.fixture(scope="module")
def volumes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden set, which nobody changes."""
    return golden(tmp_path_factory.mktemp("golden"))


@pytest.fixture
def volume(volumes: Path, tmp_path: Path) -> DamagedVolume:
    """A copy of the damaged volume."""
    return damaged_volume(volumes, tmp_path)


@pytest.fixture
def peers(volumes: Path) -> Iterator[list[OzoneDatanode]]:
    """The two whole replicas."""
    with peers_of(volumes) as running:
        yield running


def addresses(peers: list[OzoneDatanode]) -> list[str]:
    """Return where they listen."""
    return [peer.address for peer in peers]


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

    assert Exit.OK == volume.repair(1, addresses(peers), "--mark-closed")

    after = path.read_text()
    assert double_sha256(after) in after
    checksum = re.compile("checksum: [0-9a-f]{64}")
    assert checksum.sub("", before.replace("UNHEALTHY", "CLOSED")) == checksum.sub("", after)


def test_what_is_damaged_is_not_marked_closed(volume: DamagedVolume) -> None:
    """
    No peer helps: the descriptor stays as it is.
    """
    before = volume.descriptor(1).read_bytes()

    assert Exit.FAILED == volume.repair(1, ["127.0.0.1:1"], "--yes", "--mark-closed")

    assert before == volume.descriptor(1).read_bytes()


def test_a_container_that_is_not_closed_elsewhere_is_not_marked_closed(
    peers: list[OzoneDatanode], volume: DamagedVolume, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    A quasi-closed replica may lack what a closed one has.
    """
    peers[1].containers[1].state = QUASI_CLOSED
    before = volume.descriptor(1).read_bytes()

    assert Exit.FAILED == volume.repair(1, addresses(peers), "--yes", "--mark-closed")

    assert "QUASI_CLOSED" in capsys.readouterr().err
    assert before == volume.descriptor(1).read_bytes()
