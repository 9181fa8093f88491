"""Fixtures of the tests that read Ozone's volumes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ozone.ozone_scrubs import running_volume
from tests.support.ozone.ozone_volumes import MadeVolume


@pytest.fixture
def made(tmp_path: Path) -> Iterator[MadeVolume]:
    """A volume whose datanode runs."""
    with running_volume(tmp_path / "data") as volume:
        yield volume
