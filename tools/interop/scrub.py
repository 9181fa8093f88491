"""Scrubs and repairs volumes of a real cluster of Apache Ozone, and prints the result.

    scrub     all volumes, again and again, while keys are written and deleted: every flip that was
              planted is found, in synced tails too, and nothing else; no file is changed by it
    repair    one container damaged on all three datanodes, each elsewhere, and every planted flip;
              then Ozone's own scan finds nothing and the roots agree

INTEROP_MINUTES (10) is the scrub time. Exits 1 if a check fails, 0 also if no cluster is available,
and says why.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tools.interop.cluster import ROOT, Block, Node, Ozone, PrerequisiteMissing, build, running

SUTURE: Final = Path(sys.executable).parent / "suture"
SYNCED: Final = 6  # keys that are synced and never closed
KEEPERS: Final = 40  # keys that are never deleted: damage is placed in their blocks
KEY_BYTES: Final = (5, 900, 40_000, 700_000, 3_000_000)
SETTLED_S: Final = 90.0
ROCKSDB: Final = ("MANIFEST-", "OPTIONS-", "LOG", "CURRENT", "IDENTITY", "LOCK")
TABLES: Final = (".sst", ".log")
WINDOW_BYTES: Final = 16_384


Place = tuple[int, int, int]
"""Datanode, container, block."""


@dataclass
class Tally:
    """The counts of the trial."""

    rounds: int = 0
    scrubs: int = 0
    written: int = 0
    deleted: int = 0
    planted: dict[Place, float] = field(default_factory=dict)  # time of each
    found: Counter[Place] = field(default_factory=Counter)
    missed: list[Place] = field(default_factory=list)
    false: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    tails: set[Place] = field(default_factory=set)
    bytes_read: int = 0


def suture(*words: object) -> tuple[int, Any]:
    """Run `suture ozone`; return its exit code and JSON document."""
    command = [str(SUTURE), "ozone", *map(str, words), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if not done.stdout:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
    return done.returncode, json.loads(done.stdout)


def flip(path: Path, offset: int) -> None:
    """Flip one bit, without the datanode's knowledge."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(offset)
        (octet,) = file.read(1)
        file.seek(offset)
        file.write(bytes([octet ^ 1 << offset % 8]))
        os.fsync(file.fileno())
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


class Trial:
    """A trial of one cluster."""

    def __init__(self, ozone: Ozone, place: Path, rng: random.Random) -> None:
        self._ozone = ozone
        self._place = place
        self._rng = rng
        self.tally = Tally()
        self._keepers: list[tuple[Block, int]] = []  # with the offset of their last byte
        self._tails: list[tuple[Block, int]] = []
        self._reserved: Block | None = None  # to be damaged on all datanodes
        self._leavers: list[str] = []
        self._nodes = ozone.nodes()

    # keys

    def fill(self) -> None:
        """Write the keys that are never deleted, and some that are synced and never closed."""
        for number in range(KEEPERS):
            self._keep(f"keep{number}", KEY_BYTES[1 + number % 4], self._keepers)
        self._reserved = max(self._keepers, key=lambda one: one[1])[0]
        for number in range(SYNCED):
            self._keep(f"sync{number}", 41_110 + 50_000 * number, self._tails, how="sync")
        self._ozone.tell("close")
        self._await_closed({block[0] for block, _ in (*self._keepers, *self._tails)})

    def _keep(
        self, key: str, length_bytes: int, to: list[tuple[Block, int]], *, how: str = "write"
    ) -> None:
        blocks = self._ozone.write(key, length_bytes, self._rng.randrange(2**31), how=how)
        if len(blocks) == 1:
            to.append((blocks[0], length_bytes))

    def _await_closed(self, containers: set[int]) -> None:
        deadline_s, states = time.monotonic() + SETTLED_S, set[str]()
        while time.monotonic() < deadline_s:
            known = self._ozone.settled_replicas(SETTLED_S)
            states = {known.get((n.index, c), ("",))[0] for n in self._nodes for c in containers}
            if states == {"CLOSED"}:
                return
            time.sleep(2)
            self._ozone.tell("close")  # the SCM learns late that a container has keys
        raise RuntimeError(f"containers {sorted(containers)} do not close: {states}")

    def churn(self) -> None:
        """Write keys, delete some, and close open containers from time to time."""
        for _ in range(6):
            key = f"leave{self.tally.written}"
            self._ozone.write(key, self._rng.choice(KEY_BYTES), self.tally.written)
            self._leavers.append(key)
            self.tally.written += 1
        while len(self._leavers) > 12:
            self._ozone.tell(f"delete {self._leavers.pop(self._rng.randrange(6))}")
            self.tally.deleted += 1
        if not self._rng.randrange(3):
            self._ozone.tell("close")

    # scrub

    def plant(self) -> None:
        """Flip bits in complete blocks that are never deleted. One of the bits is in a synced tail,
        while there is one."""
        # On one datanode each: the same damage everywhere cannot be repaired.
        damaged = {place[1:] for place in self.tally.planted}
        free = [
            (block, length_bytes, is_tail)
            for blocks, is_tail in ((self._keepers, False), (self._tails, True))
            for block, length_bytes in blocks
            if block not in damaged and block != self._reserved
        ]
        self._rng.shuffle(free)
        free.sort(key=lambda one: not one[2])
        for block, length_bytes, is_tail in [*free[:1], *free[1:][-1:]]:
            node = self._rng.choice(self._nodes)
            offset = length_bytes - 1 if is_tail else self._rng.randrange(length_bytes)
            flip(node.file(*block), offset)
            self.tally.planted[node.index, *block] = time.monotonic()
            if is_tail:
                self.tally.tails.add((node.index, *block))

    def scrub_round(self) -> None:
        """Scrub every volume during the load, and compare the findings with the planted flips."""
        for node in self._nodes:
            begun_s = time.monotonic()
            before = self._facts(node)
            scrub = subprocess.Popen(
                [str(SUTURE), "ozone", "scrub", str(node.data_dir), "--restart", "--json",
                 "--state-dir", str(self._place / f"scrub{node.index}")],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
            )  # fmt: skip
            self.churn()
            said, errors = scrub.communicate()
            if not said:
                raise RuntimeError(f"scrub: {errors}")
            self.tally.changed += self._differences(node, before)
            self._judge(node, json.loads(said), begun_s)
        self.tally.rounds += 1

    def _judge(self, node: Node, document: Any, begun_s: float) -> None:
        self.tally.scrubs += 1
        found: set[Place] = set()
        for container in document["volumes"][0]["containers"]:
            self.tally.bytes_read += container["bytes_read"]
            for finding in container["findings"]:
                place = (node.index, container["container_id"], finding["block_id"])
                if not finding["is_damage"]:
                    continue
                found.add(place)
                if place not in self.tally.planted:
                    self.tally.false.append(f"{place}: {finding['fault']}: {finding['evidence']}")
            if container["status"] in {"DOUBTFUL", "NOT_READ"}:
                where = f"datanode {node.index}, container {container['container_id']}"
                why = container["why"] or "; ".join(container["doubts"])
                self.tally.false.append(f"{where}: {container['status']}: {why}")
        for place, planted_s in self.tally.planted.items():
            if place[0] == node.index and planted_s < begun_s:
                self.tally.found[place] += place in found
                if place not in found:
                    self.tally.missed.append(place)

    def _facts(self, node: Node) -> dict[Path, tuple[object, ...]]:
        """Return facts of the files that the datanode must not change: VERSION, and those of blocks
        that are never deleted."""
        files = [node.data_dir / "hdds" / "VERSION"]
        files += [node.file(*block) for block, _ in (*self._keepers, *self._tails)]
        return {path: _facts_of(path) for path in files}

    def _differences(self, node: Node, before: dict[Path, tuple[object, ...]]) -> Iterator[str]:
        for path, facts in before.items():
            if _facts_of(path) != facts:
                yield f"{path} was changed"
        for path in (node.data_dir / "hdds").rglob("*"):
            if path.parent.name == "container.db":
                is_known = path.name.startswith(ROCKSDB) or path.name.endswith(TABLES)
            else:
                is_known = "suture" not in path.name and "rocksdict" not in path.name
            if not is_known:
                yield f"{path} is new"

    # repair

    def damage_everywhere(self) -> int:
        """Damage one container at a different place on each datanode; return its id."""
        assert self._reserved is not None
        container_id, block_id = self._reserved
        damaged = {place[1:] for place in self.tally.planted}
        others = [block for block, _ in self._keepers if block[0] == container_id]
        others = [one for one in others if one not in damaged and one != self._reserved]
        for node in self._nodes:
            flip(node.file(container_id, block_id), WINDOW_BYTES * (5 + node.index) + 77)
            self.tally.planted[node.index, container_id, block_id] = time.monotonic()
            if node.index < len(others):
                node.file(*others[node.index]).unlink()
                self.tally.planted[node.index, *others[node.index]] = time.monotonic()
        return container_id

    def repair_all(self) -> dict[str, int]:
        """Repair every damaged replica, with its datanode stopped; return what was written."""
        written: Counter[str] = Counter()
        for node in self._nodes:
            damaged = sorted({place[1] for place in self.tally.planted if place[0] == node.index})
            running = suture(
                "repair",
                node.data_dir,
                "--container",
                damaged[0],
                "--dry-run",
                "--peer",
                "127.0.0.1:1",
                "--state-dir",
                self._place / "repair",
            )
            written["refused while it runs"] += "VOLUME_IN_USE" in json.dumps(running[1])
            self._ozone.tell(f"stop {node.index}")
            peers = [word for peer in self._nodes if peer is not node
                     for word in ("--peer", peer.peer)]  # fmt: skip
            for container_id in damaged:
                code, document = suture(
                    "repair", node.data_dir, "--container", container_id, *peers, "--yes",
                    "--mark-closed", "--state-dir", self._place / "repair",
                )  # fmt: skip
                written.update(one["written"] for one in document.get("outcomes", ()))
                written["not whole"] += code != 0
            self._ozone.tell(f"start {node.index}")
            self._nodes = self._ozone.settled_nodes(SETTLED_S)
            self._await_closed(set(damaged))
        return dict(written)

    def scanned_by_ozone(self) -> tuple[list[str], int]:
        """Have Ozone scan the repaired containers. Return those that are not CLOSED or not equal,
        and the number of all."""
        containers = {place[1] for place in self.tally.planted}
        for node in self._nodes:
            for container_id in containers:
                self._ozone.tell(f"scan {node.index} {container_id}")
        time.sleep(10)  # Ozone does not report the end of its scan
        known = self._ozone.replicas()
        bad = []
        for container_id in sorted(containers):
            found = {known[node.index, container_id] for node in self._nodes}
            if len(found) != 1 or {state for state, _ in found} != {"CLOSED"}:
                bad.append(f"container {container_id}: {sorted(found)}")
        return bad, len(containers)

    def scrub_last(self) -> int:
        """Return how many damage findings are left."""
        count = 0
        for node in self._nodes:
            _, document = suture("scrub", node.data_dir, "--restart",
                                 "--state-dir", self._place / f"last{node.index}")  # fmt: skip
            for container in document["volumes"][0]["containers"]:
                count += sum(finding["is_damage"] for finding in container["findings"])
        return count


def _facts_of(path: Path) -> tuple[object, ...]:
    status = path.stat()
    return (status.st_mode, status.st_size, status.st_nlink, status.st_mtime_ns,
            status.st_ctime_ns, path.read_bytes())  # fmt: skip


def conduct(class_path: str, minutes: float) -> bool:
    """Run the trial and print its table; return True if every check passes."""
    with tempfile.TemporaryDirectory(prefix="interop-") as name:
        place = Path(name)
        with running(class_path, place) as ozone:
            trial = Trial(ozone, place, random.Random(7))  # noqa: S311 - which blocks are damaged is no secret
            trial.fill()
            end_s = time.monotonic() + 60 * minutes
            while time.monotonic() < end_s:
                trial.plant()
                trial.scrub_round()
            tally = trial.tally
            planted, tails = len(tally.planted), len(tally.tails)
            found = sum(1 for place_ in tally.planted if tally.found[place_])
            container_id = trial.damage_everywhere()
            written = trial.repair_all()
            bad, scanned = trial.scanned_by_ozone()
            left = trial.scrub_last()
    rows = [
        ("scrubbed for", f"{minutes:g} minutes, {tally.scrubs} scrubs", True),
        ("beside", f"{tally.written} keys written, {tally.deleted} deleted", tally.deleted > 0),
        ("read", f"{tally.bytes_read / 2**20:.0f} MiB", tally.bytes_read > 0),
        ("flips found", f"{found} of {planted}, {tails} in synced tails", found == planted > 0),
        ("flips missed by a later scrub", str(len(tally.missed)), not tally.missed),
        ("false findings and doubts", str(len(tally.false)), not tally.false),
        ("files changed by a scrub", str(len(tally.changed)), not tally.changed),
        (f"repair, container {container_id} on all three", str(written),
         not written.get("not whole") and written.get("refused while it runs") == 3
         and written.get("ASSEMBLED", 0) >= 1 and not written.get("LEFT")),
        ("then by Ozone's own scan", f"{scanned - len(bad)} of {scanned} CLOSED, roots agree",
         not bad),
        ("damage left", str(left), not left),
    ]  # fmt: skip
    for name, value, holds in rows:
        print(f"{'ok  ' if holds else 'FAIL'}  {name:36}  {value}")
    for line in (*tally.false[:10], *tally.changed[:10], *map(str, tally.missed[:10]), *bad[:10]):
        print(f"      {line}")
    return all(holds for _, _, holds in rows)


def main() -> int:
    """Build, run, judge."""
    minutes = float(os.environ.get("INTEROP_MINUTES", "10"))
    try:
        return 0 if conduct(build(), minutes) else 1
    except PrerequisiteMissing as why:
        print(f"interop: skipped: {why}")
        return 0


if __name__ == "__main__":
    sys.exit(main())
