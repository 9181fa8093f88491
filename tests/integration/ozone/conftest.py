"""Fixtures of the tests that read Ozone's volumes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ozone.ozone_datanode import OzoneDatanode
from tests.support.ozone.ozone_repairs import DamagedVolume, damaged_volume, peers_of
from tests.support.ozone.ozone_scrubs import running_volume
from tests.support.ozone.ozone_volumes import MadeVolume, golden


@pytest.fixture
def made(tmp_path: Path) -> Iterator[MadeVolume]:
    """A volume whose datanode runs."""
    with running_volume(tmp_path / "data") as volume:
        yield volume


@pytest.fixture(scope="module")
def volumes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden volumes, which no test changes."""
    return golden(tmp_path_factory.mktemp("golden"))


@pytest.fixture
def volume(volumes: Path, tmp_path: Path) -> DamagedVolume:
    """A copy of the damaged volume."""
    return damaged_volume(volumes, tmp_path)


@pytest.fixture
def peers(volumes: Path) -> Iterator[list[OzoneDatanode]]:
    """Datanodes with the two whole replicas."""
    with peers_of(volumes) as running:
        yield running
