"""Processes that repair a replica of Ozone and kill themselves at a step.

`tests.support.faults.store_victim.live` runs one, and counts the steps.
"""

import os
import sys
import zlib
from pathlib import Path
from typing import Final

from merkle.replica import BlockId, ChecksumType, ChunkInfo, ContainerId
from ozone.disk.layout import ContainerPaths
from ozone.repair.installation import Installer, clean
from tests.support.faults import store_victim
from tests.support.faults.store_victim import StepCounter

WINDOW_BYTES: Final = 4096
CHUNK_BYTES: Final = 20_000
PARTS: Final = tuple(bytes([65 + index]) * CHUNK_BYTES for index in range(3))
WHOLE: Final = b"".join(PARTS)
BLOCK: Final = BlockId(7)
OWNER: Final = 4321


def chunk_of(index: int) -> ChunkInfo:
    """Return the row's description of a chunk."""
    data = PARTS[index]
    windows = [data[at : at + WINDOW_BYTES] for at in range(0, len(data), WINDOW_BYTES)]
    sums = b"".join(zlib.crc32(window).to_bytes(4) for window in windows)
    return ChunkInfo(index * CHUNK_BYTES, CHUNK_BYTES, ChecksumType.CRC32, WINDOW_BYTES, sums)


def paths_of(path: Path) -> ContainerPaths:
    """Return the paths of the replica's files below `path`."""
    return ContainerPaths(ContainerId(1), path / "volume" / "1")


def file_of(path: Path) -> Path:
    """Return the path of the replica's damaged block file."""
    return paths_of(path).chunks / f"{BLOCK}.block"


def old_bytes(scenario: str) -> bytes | None:
    """Return the initial content of the block file in a scenario; None if there is no file."""
    damaged = WHOLE[:CHUNK_BYTES] + b"damaged!" + WHOLE[CHUNK_BYTES + 8 :]
    found = {"lost": None, "short": WHOLE[: CHUNK_BYTES + 500]}
    return found.get(scenario, damaged)


def prepare(path: Path, scenario: str) -> None:
    """Make the damaged replica of a scenario."""
    paths = paths_of(path)
    paths.chunks.mkdir(parents=True)
    neighbour = paths.chunks / "5.block"
    neighbour.write_bytes(b"whole")
    old = old_bytes(scenario)
    if old is not None:
        file_of(path).write_bytes(old)
    if scenario == "linked":
        os.link(file_of(path), path / "linked")
    for one in (neighbour, file_of(path)):
        if one.exists() and os.geteuid() == 0:
            os.chown(one, OWNER, OWNER)


def installer(path: Path) -> Installer:
    """Return the object that writes the repair."""
    (path / "state").mkdir(exist_ok=True)
    return Installer(path / "state" / "DS-1", lambda: 1, lambda: None)


def wanted(scenario: str) -> tuple[int, ...]:
    """Return the indexes of the chunks that the repair writes in a scenario."""
    return {"lost": (0, 1, 2), "short": (1, 2)}.get(scenario, (1,))


def repair(path: Path, scenario: str) -> None:
    """Run a repair: recover from an earlier run, clean up, and install the chunks."""
    one = installer(path)
    one.recover()
    clean(paths_of(path))
    for index in wanted(scenario):
        one.install(paths_of(path), BLOCK, chunk_of(index), PARTS[index])


SCENARIOS: Final = ("flipped", "linked", "lost", "short")


def run(path: Path, scenario: str, counter: StepCounter) -> None:
    """Run one scenario."""
    sys.setprofile(counter.see)
    repair(path, scenario)
    sys.setprofile(None)


def main() -> None:
    """Run the scenario that `store_victim.live` passes in the arguments."""
    store_victim.main(run)
