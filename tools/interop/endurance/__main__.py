"""Loads a real Ozone cluster with two agents, kills its processes, and judges the result.

    led        SCM, OM and four datanodes of Ozone, two agents, each a process of its own
    load       Ozone's client writes keys with three copies and erasure-coded ones, reads, deletes,
               closes containers
    harm       kill -9 of agents, datanodes and the SCM at times that the seed draws; some stay
               away until the SCM considers them dead and has replaced their replicas
    judged     with nothing more under way: keys, blocks, roots, the replication manager's report,
               what agents' scans find, errors in Ozone's logs

Exits 1 if a check fails. Exits 0 also if no cluster is available, and says why. `--json` prints one
document. `--spoil` breaks something before the end, and must exit 1.
"""

import argparse
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from merkle.replica import ContainerId
from suture.wire.clients.peer import Peer
from tools.interop.agents import Agent
from tools.interop.endurance.load import Load, OzoneKeyState
from tools.interop.endurance.process_faults import ProcessFaults
from tools.interop.endurance.verdict import ClusterInspector, errors_naming
from tools.interop.mixed_cluster import parser_of
from tools.interop.process_cluster_trial import SiteTrial, judged
from tools.interop.scrub import flip
from tools.interop.site import OzoneProcessCluster

WORKERS: Final = 3
SAID_EVERY_S: Final = 60.0
SHOWN: Final = 6
SPOILED: Final = ("key", "block", "replica")


class Trial(SiteTrial):
    """A run of load and faults on one cluster."""

    def __init__(
        self, site: OzoneProcessCluster, place: Path, ends: ExitStack, *, chosen: argparse.Namespace
    ) -> None:
        super().__init__(site, place, ends, is_quiet=chosen.json)
        self._chosen = chosen
        self._load = Load(site.client, chosen.seed, threading.Event())
        self._harms: ProcessFaults
        self._facts: dict[str, Any] = {"seed": chosen.seed, "minutes": chosen.minutes}

    def live(self) -> None:
        """Start the agents, apply load and faults, and judge the cluster."""
        self.join()
        self.harm()
        self.judge()

    def told(self) -> Mapping[str, Any]:
        """Return the counts."""
        return self._facts

    def harm(self) -> None:
        """Apply load and kill processes for the given time."""
        stop = threading.Event()
        chance = random.Random(self._chosen.seed)  # noqa: S311 - when who is killed is no secret
        self._harms = ProcessFaults(self.site, self.agents, chance, stop, self.is_healthy)
        with ThreadPoolExecutor(WORKERS + 1) as pool:
            try:
                works = [pool.submit(self._load.run, number) for number in range(WORKERS)]
                harm = pool.submit(self._harms.run)
                ends_at_s = time.monotonic() + 60 * self._chosen.minutes
                while (left_s := ends_at_s - time.monotonic()) > 0 and not harm.done():
                    stop.wait(min(SAID_EVERY_S, left_s))
                    self._say(left_s)
            finally:
                stop.set()
                self._load.stop.set()
            harm.result()
            for work in works:
                work.result()
        self._facts |= {
            "keys": len(self._load.keys),
            "written_bytes": self._load.written_bytes,
            "operations": dict(sorted(self._load.counts.items())),
            "failures": dict(self._load.failures.most_common()),
            "harms": dict(sorted(self._harms.counts.items())),
        }
        kills = sum(n for what, n in self._harms.counts.items() if what.startswith("kill"))
        self.tell("keys written", f"{len(self._load.keys)}, {self._load.written_bytes:,} bytes "
                  "acknowledged", self._load.written_bytes > 0)  # fmt: skip
        self.tell("harms", listed(self._harms.counts), kills > 0)
        if self._load.failures:
            self.tell("why something was not possible", listed(self._load.failures), True)
        self.tell("what the client was told under load", listed(self._load.counts),
                  not self._load.wrong)  # fmt: skip

    def _say(self, left_s: float) -> None:
        if not self._chosen.json:
            print(f"      {left_s / 60:4.1f} min left: {listed(self._load.counts)}; "
                  f"{listed(self._harms.counts)}", flush=True)  # fmt: skip

    # judging

    def judge(self) -> None:
        """Wait until the cluster is settled, damage what `--spoil` names, and check everything."""
        looks = ClusterInspector(self.site, self.scm, self.agents, self.places)
        began_s = time.monotonic()
        why = looks.settle()
        self._facts |= {
            "settled_s": time.monotonic() - began_s,
            "scm_woken": looks.woken,
            "scm_miscounted": looks.miscounted,
        }
        after = f"after {time.monotonic() - began_s:.0f} s"
        if looks.woken:
            after += f"; {looks.woken} restarts of an SCM that had forgotten deletes"
        if looks.miscounted:
            after += f"; the SCM counts {looks.miscounted} deletes as not acknowledged"
        self.tell("settled", why or after, not why)
        for what in self._chosen.spoil:
            self._spoil(looks, what)
        self._judge_containers(looks)
        found, wrong = looks.read_back(self._load)
        self._tell_all("keys read back", listed(found), [*self._load.wrong, *wrong])
        stored = [key for key in self._load.keys if key.fate is not OzoneKeyState.EITHER]
        wrong, left = looks.misplaced(stored, self._harms.returned_s)
        self._tell_all("blocks of stored and deleted keys", f"of {len(stored)} keys", wrong)
        self._facts["left by those who came back from the dead"] = left
        self.tell("left by who came back from the dead", f"{len(left)} deleted blocks", True)
        scanned, findings = self._scanned()
        self._tell_all("agents' replicas, read whole", f"{scanned}", findings)
        errors = errors_naming(self.site, self.agents)
        self._tell_all("errors in Ozone's logs that name agents", f"{len(errors)}", errors)
        refused = sum(agent.said("ozone_pipeline_rejected") for agent in self.agents)
        self.tell("pipelines that agents refused", refused, refused == 0)
        self._tell_work()
        self.end_agents()

    def _judge_containers(self, looks: ClusterInspector) -> None:
        kinds = Counter(looks.kinds.values())
        held = Counter(
            "agents" if self.is_agent(uuid) else "Ozone's datanodes"
            for replicas in looks.replicas.values()
            for uuid in replicas
        )
        self.tell("containers", f"{listed(kinds)}; replicas: {listed(held)}",
                  bool(kinds) and bool(held["agents"]))  # fmt: skip
        self._facts |= {"stuck": looks.stuck, "empty": looks.empty, "hollow": looks.hollow}
        self.tell("left as they are by Ozone", f"{len(looks.stuck)} quasi-closed of one origin, "
                  f"{len(looks.empty)} without keys and replicas, {len(looks.hollow)} coded ones "
                  "without keys and most shards", True)  # fmt: skip
        _, counts = self.site.client.report()
        self.tell("the replication manager's report", listed(counts), True)
        unequal = looks.unequal()
        self._facts |= {
            "containers": dict(kinds),
            "replicas": dict(held),
            "report": counts,
            "unequal": {container: {looks.places[uuid].name: f"{one.root:08x}"
                                    for uuid, one in replicas.items()}
                        for container, replicas in unequal.items()},
        }  # fmt: skip
        self._tell_all(
            "containers with unequal roots",
            f"{len(unequal)}",
            [
                f"container {container}: {roots}"
                for container, roots in self._facts["unequal"].items()
            ],
        )

    def _tell_all(self, what: str, said: str, wrong: Sequence[str]) -> None:
        self.tell(what, f"{said}; {len(wrong)} wrong", not wrong)
        for line in wrong[:SHOWN]:
            self.tell("", line[:400], False)
        self._facts[what] = {"said": said, "wrong": list(wrong)}

    def _scanned(self) -> tuple[int, list[str]]:
        """Make the agents scan all replicas; return the number of replicas, and the findings."""
        count, found = 0, []
        for agent in self.agents:
            with Peer(agent.address) as peer:
                for container_id in _held(peer):
                    count += 1
                    list(peer.scan(ContainerId(container_id), full_speed=True))
                    found += [f"container {container_id} at {self._named(agent)}: {one}"
                              for one in peer.findings(ContainerId(container_id))]  # fmt: skip
        return count, found

    def _tell_work(self) -> None:
        work: Counter[str] = Counter()
        for agent in self.agents:
            for one in agent.events("task_finished"):
                work[one["task"]] += 1
        self._facts["agents' work"] = dict(work)
        self.tell("what the agents did for the SCM", listed(work), True)

    def _named(self, agent: Agent) -> str:
        return self.places[agent.datanode_id].name

    def _spoil(self, looks: ClusterInspector, what: str) -> None:
        """Damage one thing in the cluster, to check that the judgement detects it."""
        stored = [key for key in self._load.keys if key.fate is OzoneKeyState.STORED]
        keys = [key for key in stored if key.how == "write"]
        if what == "key":
            keys[-1].fate = OzoneKeyState.GONE
            return
        mine = {agent.datanode_id: agent for agent in self.agents}
        for key in stored if what == "replica" else keys:
            container, block = key.blocks[0]
            there = [uuid for uuid in looks.replicas[container] if uuid in mine]
            if what == "replica" and there:
                with suppress(ValueError):  # a shard of a short key may have no file
                    flip(mine[there[0]].file(container, block), 1)  # not the same bit as of `block`
                    return
            if what == "block":
                for path in self.place.glob(
                    f"*/*/hdds/*/current/*/{container}/chunks/{block}.block"
                ):
                    flip(path, 0)
                return
        raise RuntimeError("no agent has a replica to spoil")


def _held(peer: Peer) -> list[int]:
    """Return the ids of the containers of which an agent has a replica."""
    ids: list[int] = []
    page = peer.replicas()
    while True:
        ids += [one.container_id for one in page.replicas]
        if not page.next_container_id:
            return ids
        page = peer.replicas(page.next_container_id)


def listed(counts: Counter[str] | dict[str, int]) -> str:
    """Return counts as one line."""
    return ", ".join(f"{count:,} {what}" for what, count in sorted(counts.items()) if count)


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, run, judge."""
    parser = parser_of("tools.interop.endurance", __doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="of load and harm")
    parser.add_argument("--seed", type=int, default=20, help="when who is killed, what is written")
    parser.add_argument(
        "--spoil", choices=SPOILED, nargs="+", default=(), help="break this before the end"
    )
    parser.add_argument("--secure", action="store_true", help="with Kerberos, TLS and tokens")
    chosen = parser.parse_args(arguments)
    return judged(partial(Trial, chosen=chosen), chosen, is_secure=chosen.secure)


if __name__ == "__main__":
    sys.exit(main())
