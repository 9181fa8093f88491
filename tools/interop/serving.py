"""Runs Ozone's unmodified clients, coordinator and datanodes against agents.

    .venv/bin/python -m tools.interop.serving

Each line is one operation of Ozone with an agent. Exits 1 if one of them failed.
"""

import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final
from uuid import UUID

import structlog

from agent.config.loading import load
from agent.host.datanode_identity import DatanodeIdentity
from agent.host.host import AgentProcess
from ozone.wiring import server_factories
from suture.runtime.sd_notify import SystemdNotifier
from suture.wire.clients.scm import ScmClient
from tools.interop.cluster import PrerequisiteMissing, Stacks, build, stacks
from tools.interop.scrub import flip

NOWHERE: Final = "127.0.0.1:1"  # no control plane
CLUSTER: Final = "CID-6a4dbe9c-5f0e-4b4e-9d6a-2d1f3a7c0001"
KEY_BYTES: Final = 7 * 1024**2 + 12_345  # three cells per stripe: two whole stripes and a part
CELL_BYTES: Final = 1024**2 - 777
EQUAL: Final = "equal"
DONE: Final = ""
SMALL_BYTES: Final = 100  # one cell; the other cells are padding


@contextmanager
def agent(place: Path, number: int) -> Iterator[str]:
    """Run an agent during the block; yield its name as an argument of OzoneNodes."""
    volume = place / f"agent{number}"
    volume.mkdir()
    config = place / f"agent{number}.toml"
    config.write_text(
        f'[node]\nlisten = "127.0.0.1:0"\nscm = "{NOWHERE}"\n[observe]\nlisten = "127.0.0.1:0"\n'
        f'[storage]\nvolumes = ["{volume}"]\ntree_algorithm = "crc32c"\n'
        '[ozone]\nlisten = "127.0.0.1:0"\n'
    )
    datanode_id = str(UUID(int=0x5757 + number))
    options = load(config)
    host = AgentProcess(
        options,
        DatanodeIdentity(datanode_id, CLUSTER, version="interop", boot_id=1),
        [ScmClient(NOWHERE)],
        SystemdNotifier(),
        server_factories=server_factories(options.ozone),
    )
    host.start()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        yield f"{host.protocol_addresses[0]}:{datanode_id}"
    finally:
        host.stop()


class Trial:
    """A trial of Ozone's operations with agents. Each method tests one kind of operation."""

    def __init__(self, ozone: Stacks, agents: list[str]) -> None:
        self._ozone = ozone
        self._agents = agents
        self._stacks = ozone.stacks()
        self.failed = 0

    def say(self, what: str, wanted: str, line: str) -> None:
        """Send a command line to the driver, and print whether its answer matches the pattern
        `wanted`."""
        try:
            found = self._ozone.tell(line)
        except RuntimeError as error:
            found = str(error)
        is_right = re.fullmatch(wanted, found) is not None
        self.failed += not is_right
        print(f"{'ok  ' if is_right else 'FAIL'} {what}{'' if is_right else f': {found}'}")

    def single(self) -> None:
        """Read a block whose data is completely in one shard, with the two readers that Ozone has
        for replicated blocks."""
        peers = [self._agents[0], *(stack.peer for stack in self._stacks[:4])]
        key = f"30 13 {CELL_BYTES} 13"
        self._ozone.tell(f"ecwrite {key} {' '.join(peers)}")
        for how, name in (("read", "by chunks"), ("stream", "as a stream")):
            self.say(f"block of an agent read {name}", EQUAL, f"{how} {key} {peers[0]}")

    def mixed(self) -> None:
        """Write erasure-coded keys to agents and Ozone's datanodes, read them without some shards,
        and reconstruct these shards."""
        one, two = self._agents[:2]
        three, four, five = (stack.peer for stack in self._stacks[:3])
        peers = [one, three, four, two, five]
        for block, size in ((11, KEY_BYTES), (12, SMALL_BYTES)):
            key = f"{9 + block} {block} {size} {block}"
            everywhere = " ".join(peers)
            self.say(f"EC key of {size} bytes written", DONE, f"ecwrite {key} {everywhere}")
            self.say("  read", EQUAL, f"ecread {key} {everywhere}")
            for gone in ((0, 3), (1, 2), (2, 4)):
                left = " ".join("-" if at in gone else peer for at, peer in enumerate(peers))
                names = " and ".join(str(at + 1) for at in gone)
                self.say(f"  read without shards {names}", EQUAL, f"ecread {key} {left}")
            self.rebuilt(9 + block, key, peers)

    def healed(self) -> None:
        """Damage a replica of an Ozone datanode in three ways. The datanode heals it from an
        agent's copy."""
        container, agent = 50, self._agents[0]
        tell = self._ozone.tell
        tell(f"create 0 {container} 0")
        for number in (1, 2, 3, 4):
            tell(f"write 0 {container} {number} 100000 40000 CRC32 16384 {number}")
        root = tell(f"close 0 {container}").split()[1]
        tell(f"push 0 {container} {agent}")
        (chunks,) = self._stacks[0].data_dir.glob(f"hdds/*/current/*/{container}/chunks")
        whole = {path.name: path.read_bytes() for path in chunks.iterdir()}
        flip(chunks / "1.block", 5_000)
        os.truncate(chunks / "2.block", 50_000)
        (chunks / "3.block").unlink()
        self.say(
            "a replica of Ozone damaged, and scanned", f"(?!.* {root} ).*", f"scan 0 {container}"
        )
        for _ in range(2):  # Ozone repairs missing parts first, and damaged ones the next time
            tell(f"reconcile 0 {container} {agent}")
        self.say("  healed by Ozone from an agent", f".* {root} .*", f"scan 0 {container}")
        found = {path.name: path.read_bytes() for path in chunks.iterdir()}
        self.failed += found != whole
        print(f"{'ok  ' if found == whole else 'FAIL'}   every byte of it")

    def rebuilt(self, container: int, key: str, peers: list[str]) -> None:
        """Rebuild shards with Ozone's coordinator, on agents and on an Ozone datanode."""
        for index, target, name in (
            (2, self._agents[2], "2 (of Ozone) on an agent"),
            (5, self._agents[3], "5 (parity, of Ozone) on an agent"),
            (1, self._stacks[3].peer, "1 (of an agent) on Ozone"),
        ):
            everywhere = " ".join(peers)
            rebuild = f"rebuild {container} {index} {target} {everywhere}"
            self.say(f"  shard {name} rebuilt", DONE, rebuild)
            others = [target if at == index - 1 else peer for at, peer in enumerate(peers)]
            away = {1: 2, 2: 0, 5: 3}[index]
            left = " ".join("-" if at == away else peer for at, peer in enumerate(others))
            self.say("  read from it", EQUAL, f"ecread {key} {left}")

    def pushed(self) -> None:
        """Push replicas of Ozone's datanodes to an agent, and read them there."""
        whole, shard = 40, 41
        for container, index in ((whole, 0), (shard, 2)):
            self._ozone.tell(f"create 0 {container} {index}")
            self._ozone.tell(f"write 0 {container} 7 {CELL_BYTES} 400000 CRC32 16384 40")
            self._ozone.tell(f"write 0 {container} 8 100 100 NONE 16384 41")
            self._ozone.tell(f"close 0 {container}")
        for container, agent, compression in (
            (whole, self._agents[0], "NO_COMPRESSION"),
            (whole, self._agents[1], "ZSTD"),
            (shard, self._agents[2], "ZSTD"),
        ):
            push = f"push 0 {container} {agent} {compression}"
            self.say(f"container {container} pushed to an agent, {compression}", "[0-9]+", push)
            read = f"read {container} 7 {CELL_BYTES} 40"
            self.say("  read there", EQUAL, f"{read} {agent}")
            self.say("  pulled by Ozone", "[0-9]+", f"pull 1 {container} {agent} {compression}")
            self.say("  read there", EQUAL, f"{read} {self._stacks[1].peer}")
            # Both scan first: Ozone's tree omits data without checksums.
            root = self._ozone.tell(f"scan 0 {container}")
            self.say("  scanned by Ozone: the root is the same", root, f"scan 1 {container}")
            self._ozone.tell(f"remove 1 {container}")


def run() -> int:
    """Run the trial; return the exit code."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="interop-")))
        try:
            ozone = stack.enter_context(stacks(build(), place, 5))
        except PrerequisiteMissing as error:
            print(f"not run: {error}")
            return 0
        agents = [stack.enter_context(agent(place, number)) for number in range(4)]
        trial = Trial(ozone, agents)
        trial.pushed()
        trial.healed()
        trial.single()
        trial.mixed()
        print(f"{trial.failed} steps failed")
        return 1 if trial.failed else 0


if __name__ == "__main__":
    sys.exit(run())
