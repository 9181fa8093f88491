"""Loses a datanode of Ozone for ever while the SCM restores its replicas; then moves the agents'
replicas back to Ozone.

    stored     closed containers with three copies on four datanodes of Ozone
    dead       kill -9 of the datanode that has most, which never comes back: the SCM orders copies
               to the others, of Ozone and of Suture
    leaving    both agents are decommissioned by Ozone's admin: what they have goes to Ozone's
               datanodes, from them and from Ozone's own
    judged     every container has three equal replicas at Ozone's datanodes, every key reads back,
               and a copy to or from an agent is as fast as one between datanodes of Ozone

Rates are of the same period, per running copy: containers a minute, from a copy's start at the
source to its end. The number of copies per side in a phase is shown, too, but means less: the SCM
draws the targets, and all are busy until the last copy ends. Exits 1 if a check fails, or agents
are slower than 0.8 of Ozone's rate; 0 also if no cluster is available. `--json` prints one
document.
"""

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from tools.interop.agents import Replica
from tools.interop.endurance.verdict import COPIES, errors_naming
from tools.interop.mixed_cluster import parser_of
from tools.interop.process_cluster_trial import SiteTrial, judged
from tools.interop.site import OzoneProcessCluster

CONTAINERS: Final = 60
KEYS_AT_ONCE: Final = 18
KEY_BYTES: Final = 1_400_000
WRITERS: Final = 4
LEAST: Final = 0.8  # of Ozone's rate
SPREAD_S: Final = 420.0  # until all copies are made
POLL_S: Final = 1.0
SETTINGS: Final[Mapping[str, str]] = {
    "ozone.scm.stale.node.interval": "12s",
    "ozone.scm.dead.node.interval": "24s",
    "hdds.scm.replication.thread.interval": "3s",
    "hdds.scm.replication.under.replicated.interval": "1s",
    "hdds.scm.replication.over.replicated.interval": "1s",
    "hdds.scm.replication.event.timeout": "120s",
}
STARTED: Final = re.compile(r"^(\S+ \S+) INFO .*Starting replication of container (\d+) to (\S+)")
ENDED: Final = re.compile(r"^(\S+ \S+) INFO .*Successful .*?[Cc]ontainer(?:Id|ID)?[ =:]+(\d+)")
FAILED: Final = re.compile(r"Container (\d+) replication was unsuccessful")


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of a container. Its times are in seconds since the epoch."""

    container_id: int
    source: str
    target: str
    used_bytes: int
    began_s: float
    ended_s: float


@dataclass(frozen=True, slots=True)
class Rate:
    """The rate of one kind of copies.

    `duration_s` is the time of the phase, and `copying_s` the sum of the times of all copies. The
    shares are relative to copies between Ozone's datanodes: `share` in containers, `bytes_share` in
    bytes, `phase_share` in containers per side over the whole phase.
    """

    phase: str
    kind: str
    count: int
    used_bytes: int
    duration_s: float
    copying_s: float
    sides: int
    share: float
    bytes_share: float
    phase_share: float

    @property
    def per_minute(self) -> float:
        """Containers per minute of copying time."""
        return 60 * self.count / self.copying_s

    @property
    def bytes_per_s(self) -> float:
        """Bytes per second of copying time."""
        return self.used_bytes / self.copying_s

    @property
    def per_phase_minute(self) -> float:
        """Containers per minute of the phase, per side."""
        return 60 * self.count / self.sides / self.duration_s


class Trial(SiteTrial):
    """A cluster that loses a datanode."""

    def __init__(
        self, site: OzoneProcessCluster, place: Path, ends: ExitStack, *, chosen: argparse.Namespace
    ) -> None:
        super().__init__(site, place, ends, is_quiet=chosen.json)
        self._wanted = int(chosen.containers)
        self._keys: dict[str, int] = {}
        self._used: Counter[int] = Counter()
        self._rates: list[Rate] = []
        self._dead = -1

    def live(self) -> None:
        """Run all steps in order."""
        self.fill()
        self.join()
        self.lose()
        self.leave()
        self.look_back()

    def told(self) -> Mapping[str, Any]:
        """Return the rates."""
        return {
            "containers": len(self._used),
            "bytes": self._used.total(),
            "rates": [
                {**asdict(one), "per_minute": one.per_minute, "bytes_per_s": one.bytes_per_s}
                for one in self._rates
            ],
        }

    # storing

    def fill(self) -> None:
        """Write keys and close their containers, until there are enough containers."""
        client = self.site.client
        with ThreadPoolExecutor(WRITERS) as pool:
            while len(self._used) < self._wanted:
                numbers = range(len(self._keys), len(self._keys) + KEYS_AT_ONCE)
                blocks = list(pool.map(self._write, numbers))
                states = client.containers()
                for container in {block[0] for several in blocks for block in several}:
                    if states[container][0] == "OPEN":
                        client.tell(f"close {container}")
        self._awaited("all closed", lambda: all(map(self._is_whole, self._used)))
        self.tell("closed", f"{len(self._used)} containers, {self._used.total():,} bytes", True)

    def _write(self, number: int) -> list[tuple[int, int]]:
        key = f"key{number}"
        self._keys[key] = number
        blocks = self.site.client.write("write", key, KEY_BYTES, number)
        for container, _ in blocks:
            self._used[container] += KEY_BYTES // len(blocks)
        return blocks

    def _is_whole(self, container: int) -> bool:
        """Return True if a container has three equal closed replicas on datanodes in service."""
        replicas = self._living(container).values()
        roots = {one.root for one in replicas}
        return len(replicas) == COPIES and len(roots) == 1 and 0 not in roots

    def _living(self, container: int) -> dict[str, Replica]:
        return {
            uuid: one
            for uuid, one in self.scm.told_of(container).items()
            if one.state == "CLOSED" and uuid in self._serving()
        }

    def _serving(self) -> set[str]:
        return set(self.places) or set(self.site.client.datanodes())

    def _awaited(self, what: str, condition: Callable[[], bool]) -> None:
        ends_at_s = time.monotonic() + SPREAD_S
        while not condition():
            if time.monotonic() > ends_at_s:
                raise RuntimeError(f"not within {SPREAD_S:g} s: {what}")
            time.sleep(POLL_S)

    # copying

    def lose(self) -> None:
        """Kill the datanode with the most replicas, and wait until all its containers have three
        copies elsewhere."""
        before = self._holders()
        counts = Counter(uuid for holders in before.values() for uuid in holders)
        uuid, count = counts.most_common(1)[0]
        name = self.places.pop(uuid).name
        self._dead = int(name.split()[-1])
        began_s = time.time()
        self.site.datanodes[self._dead].kill()
        self._awaited("copied from what is left", lambda: all(map(self._is_whole, self._used)))
        self.tell(f"{name} is dead: made anew", f"{count} replicas in "
                  f"{time.time() - began_s:.0f} s", True)  # fmt: skip
        self._judge("dead", before, began_s, lambda copy: copy.target)

    def leave(self) -> None:
        """Decommission both agents, and wait until they may be switched off."""
        before = self._holders()
        began_s = time.time()
        for agent in self.agents:
            said = self.site.client.tell(f"decommission {agent.door}")
            if said != "decommission[]":
                raise RuntimeError(f"{agent.door} is not decommissioned: {said}")
        mine = [agent.datanode_id for agent in self.agents]
        self._awaited(
            "decommissioned",
            lambda: all(self.scm.node(one).endswith("DECOMMISSIONED") for one in mine),
        )
        count = sum(len(holders & set(mine)) for holders in before.values())
        names = {uuid: self.places.pop(uuid) for uuid in mine}
        self._awaited("copied back", lambda: all(map(self._is_whole, self._used)))
        self.places |= names
        self.tell("agents are decommissioned", f"{count} replicas went to Ozone's datanodes in "
                  f"{time.time() - began_s:.0f} s", True)  # fmt: skip
        self._judge("leaving", before, began_s, lambda copy: copy.source)
        for uuid in mine:
            del self.places[uuid]

    def _holders(self) -> dict[int, set[str]]:
        return {container: set(self._living(container)) for container in self._used}

    def _judge(
        self,
        phase: str,
        before: Mapping[int, set[str]],
        since_s: float,
        side: Callable[[Copy], str],
    ) -> None:
        copies = self._copies(before, since_s)
        begun_s = min(copy.began_s for copy in copies)
        kinds: dict[str, list[Copy]] = {}
        for copy in copies:
            kinds.setdefault(_kind(copy), []).append(copy)
        own = kinds.get("Ozone to Ozone", [])
        for kind, ones in sorted(kinds.items(), key=lambda item: item[1] is not own):
            base = next((one for one in self._rates if one.phase == phase), None)
            rate = _rate(phase, kind, ones, begun_s, side, base)
            self._rates.append(rate)
            is_fine = bool(own) and min(rate.share, rate.bytes_share) >= LEAST
            self.tell(f"{phase}: {kind}", f"{rate.count} containers, {rate.used_bytes:,} bytes: "
                      f"{rate.per_minute:.0f} a minute each, {rate.share:.2f} of Ozone's, "
                      f"bytes {rate.bytes_share:.2f}; in the phase {rate.phase_share:.2f}",
                      is_fine)  # fmt: skip
        wanted = "Ozone to agent" if phase == "dead" else "agent to Ozone"
        self.tell(
            f"{phase}: both kinds", f"{sorted(kinds)}", {wanted, "Ozone to Ozone"} <= set(kinds)
        )

    def _copies(self, before: Mapping[int, set[str]], since_s: float) -> list[Copy]:
        """Return the copies since `since_s`, as their senders report them. `before` has the holders
        of each container at that time."""
        after = self._holders()
        ended = self._ended(since_s)
        copies = []
        for container, holders in after.items():
            for uuid in holders - before[container]:
                if container not in ended:
                    raise RuntimeError(f"nobody says that container {container} was copied")
                source, began_s, ended_s = ended[container]
                target = self.places[uuid].name
                copies.append(
                    Copy(container, source, target, self._used[container], began_s, ended_s)
                )
        return copies

    def _ended(self, since_s: float) -> dict[int, tuple[str, float, float]]:
        """Return, by container, the sender of its copy that ended after `since_s`, with the start
        and end times."""
        found: dict[int, tuple[str, float, float]] = {}
        for index, process in enumerate(self.site.datanodes):
            began: dict[int, float] = {}
            for line in process.log.read_text(errors="replace").splitlines():
                if match := STARTED.match(line):
                    began[int(match[2])] = _ozone_s(match[1])
                elif match := ENDED.match(line):
                    container, at_s = int(match[2]), _ozone_s(match[1])
                    if at_s >= since_s and container in began:
                        found[container] = (f"Ozone datanode {index}", began[container], at_s)
        for number, agent in enumerate(self.agents, start=1):
            for one in agent.events("task_finished"):
                at_s = datetime.fromisoformat(one["timestamp"]).timestamp()
                if one["task"] == "replicate" and at_s >= since_s:
                    began_s = at_s - one["duration_ms"] / 1000
                    found[int(one["container_id"])] = (f"agent {number}", began_s, at_s)
        return found

    # results

    def look_back(self) -> None:
        """Compare every key with the bytes that were written. Search Ozone's logs for errors about
        the agents."""
        with ThreadPoolExecutor(WRITERS) as pool:
            found = Counter(pool.map(self._read, self._keys))
        self.tell("keys read by Ozone's client", dict(found), found["equal"] == len(self._keys))
        failed = sum(
            len(FAILED.findall(process.log.read_text(errors="replace")))
            for process in self.site.datanodes
        )
        refused = sum(agent.said("task_failed") for agent in self.agents)
        self.tell("copies that failed", f"{failed} of Ozone's, {refused} of agents'", True)
        errors = errors_naming(self.site, self.agents)
        self.tell("errors in Ozone's logs that name agents", len(errors), not errors)
        for line in errors[:5]:
            self.tell("", line[:400], False)
        self.end_agents()

    def _read(self, key: str) -> str:
        return self.site.client.tell(f"read {key} {KEY_BYTES} {self._keys[key]}")


def _kind(copy: Copy) -> str:
    source, target = (name.split()[0] for name in (copy.source, copy.target))
    return f"{source} to {target}"


def _rate(
    phase: str,
    kind: str,
    copies: Sequence[Copy],
    begun_s: float,
    side: Callable[[Copy], str],
    base: Rate | None,
) -> Rate:
    count = len(copies)
    used_bytes = sum(copy.used_bytes for copy in copies)
    duration_s = max(copy.ended_s for copy in copies) - begun_s
    copying_s = sum(copy.ended_s - copy.began_s for copy in copies)
    sides = len({side(copy) for copy in copies})
    rate = Rate(
        phase, kind, count, used_bytes, duration_s, copying_s, sides,
        share=1.0, bytes_share=1.0, phase_share=1.0,
    )  # fmt: skip
    if base is None:
        return rate
    return replace(
        rate,
        share=rate.per_minute / base.per_minute,
        bytes_share=rate.bytes_per_s / base.bytes_per_s,
        phase_share=rate.per_phase_minute / base.per_phase_minute,
    )


def _ozone_s(text: str) -> float:
    """Return the time of a line of Ozone's log; its clock is this machine's."""
    return datetime.strptime(text, "%Y-%m-%d %H:%M:%S,%f").astimezone().astimezone(UTC).timestamp()


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, run, judge."""
    parser = parser_of("tools.interop.datanode_loss", __doc__)
    parser.add_argument("--containers", type=int, default=CONTAINERS, help="how many")
    chosen = parser.parse_args(arguments)
    return judged(partial(Trial, chosen=chosen), chosen, SETTINGS)


if __name__ == "__main__":
    sys.exit(main())
