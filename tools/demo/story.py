"""All steps of the demo, with the calls that users make.

Files are stored and their containers closed. A bit is flipped, a scan finds it, and the control
plane repairs it by itself. Then replicas are damaged on disk in all known ways. Scans find the
damage, Spark plans the repairs from a snapshot, and reconciles execute the plan. At the end, all
replicas and files are verified.
"""

import json
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from merkle.replica import ContainerId
from suture.client.cluster_client import LANES_DEFAULT
from suture.client.file_pieces import SourceFile
from suture.errors import Code, RefusedError, SutureError, UnavailableError
from suture.runtime.exit_codes import ExitCode
from suture.terminal.transient_refusals import until_decided
from suture.wire.mapping.plan_file import FinishedRun, read_plan
from suture.wire.v1 import container_pb2, datanode_pb2, scm_pb2
from tools.demo import coded, death, liar, selfheal
from tools.demo.coded import Coded
from tools.demo.damage_choice import BLOCK_BYTES_MIN, BLOCKS_MIN, Harm, harm_cluster
from tools.demo.death import Death
from tools.demo.liar import Contest
from tools.demo.readback import Checksums, read_back, source_checksums
from tools.demo.selfheal import Selfheal
from tools.demo.stage import Place, Stage, are_known, is_whole, wait_until

SKIPPED_DIRECTORIES: Final = frozenset({"__pycache__", "site-packages", "node_modules", "out"})
SHORT: Final = 8  # characters that distinguish datanode ids
DEMO_BYTES_MAX: Final = 300 * 1024**2
VERDICTS: Final[dict[int, str]] = {
    ExitCode.TO_DO: "there is work to do",
    ExitCode.DATA_AT_RISK: "data is at risk: some container has no whole replica",
}

Say = Callable[[str], None]


@dataclass(slots=True)
class Evidence:
    """The observations of the demo, for the table, the JSON document and the verdict."""

    files: int = 0
    stored_bytes: int = 0
    containers: list[int] = field(default_factory=list)
    harms: list[Harm] = field(default_factory=list)
    selfheal: Selfheal = field(default_factory=Selfheal)
    coded: Coded = field(default_factory=Coded)
    contest: Contest = field(default_factory=Contest)
    death: Death = field(default_factory=Death)
    findings: dict[Place, list[datanode_pb2.Finding]] = field(default_factory=dict)
    outcomes: list[scm_pb2.Outcome] = field(default_factory=list)
    report: Path = Path()
    summary: dict[str, object] = field(default_factory=dict)
    not_healed: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def spoiled_bytes(self) -> int:
        """The number of bytes in all damaged chunks."""
        return sum(harm.damage.spoiled_bytes for harm in self.harms)

    @property
    def fetched_bytes(self) -> int:
        """Chunk bytes that the repair of `harms` fetched from peers."""
        apart = {*self.coded.containers, self.contest.container_id}
        return sum(
            outcome.status.reconcile.bytes_fetched
            for outcome in self.outcomes
            if outcome.status.container_id not in apart
        )

    @property
    def coded_fetched_bytes(self) -> int:
        """Bytes of cells that the repair of the damaged shard read from the other shards."""
        return sum(
            outcome.status.reconcile.bytes_fetched
            for outcome in self.outcomes
            if outcome.status.container_id in self.coded.containers
        )

    @property
    def tree_bytes(self) -> int:
        """Bytes of tree pages that were fetched to compare trees."""
        return sum(outcome.status.reconcile.tree_bytes_fetched for outcome in self.outcomes)


def default_directories() -> list[Path]:
    """Return this program's own source tree and the installed Python library."""
    return [Path(__file__).resolve().parents[2], Path(sysconfig.get_path("stdlib"))]


def collect(directories: Sequence[Path]) -> list[SourceFile]:
    """Return the regular files below `directories`, without hidden files and the directories in
    SKIPPED_DIRECTORIES. Raise RefusedError if a directory does not exist."""
    sources: list[SourceFile] = []
    total_bytes = 0
    for number, directory in enumerate(directories):
        if not directory.is_dir():
            raise RefusedError(Code.KEY_NOT_FOUND, f"no such directory: {directory}")
        for path in walk(directory):
            size_bytes = path.stat().st_size
            total_bytes += size_bytes
            if total_bytes > DEMO_BYTES_MAX:
                return sources
            key = f"{number}/{path.relative_to(directory).as_posix()}"
            sources.append(SourceFile(key, path, size_bytes))
    if not sources:
        raise RefusedError(Code.KEY_NOT_FOUND, f"no files below {', '.join(map(str, directories))}")
    large = sum(source.size_bytes >= BLOCK_BYTES_MIN for source in sources)
    if large < BLOCKS_MIN:
        raise RefusedError(
            Code.INELIGIBLE,
            f"{large} files of {BLOCK_BYTES_MIN} bytes or more are below "
            f"{', '.join(map(str, directories))}, {BLOCKS_MIN} are needed to damage in all ways",
            hint="give the demo a directory with more files",
        )
    return sources


def lanes_for(sources: Sequence[SourceFile]) -> int:
    """Return the number of sessions to store with, so that each container has enough blocks."""
    large = sum(source.size_bytes >= BLOCK_BYTES_MIN for source in sources)
    return max(1, min(LANES_DEFAULT, large // (2 * BLOCKS_MIN)))


def freeze(sources: Sequence[SourceFile], directory: Path) -> list[SourceFile]:
    """Copy the files below `directory`; return the copies. The originals could change during the
    demo."""
    frozen: list[SourceFile] = []
    for source in sources:
        path = directory / source.key
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source.path, path)
        frozen.append(SourceFile(source.key, path, path.stat().st_size))
    return frozen


def walk(directory: Path) -> Iterator[Path]:
    """Yield regular files below `directory` in a stable order."""
    for path in sorted(directory.iterdir()):
        if path.name.startswith(".") or path.is_symlink():
            continue
        if path.is_dir():
            if path.name not in SKIPPED_DIRECTORIES:
                yield from walk(path)
        elif path.is_file():
            yield path


@dataclass(slots=True)
class Story:
    """A run of the demo on a running cluster."""

    stage: Stage
    say: Say
    evidence: Evidence = field(default_factory=Evidence)
    checksums: Checksums = field(default_factory=dict)
    sources: Sequence[SourceFile] = ()
    scanned: dict[Place, container_pb2.ReplicaReport] = field(default_factory=dict)

    def run(self, sources: Sequence[SourceFile]) -> Evidence:
        """Run all steps of the demo; return the observations."""
        steps: dict[str, Callable[[], None]] = {
            "store": lambda: self.store(sources),
            "close": self.wait_until_closed,
            "heal": self.heal_alone,
            "shards": self.harm_shards,
            "lie": self.lie,
            "damage": self.damage,
            "scan": self.scan_all,
            "verify": self.verify,
            "reconcile": self.reconcile,
            "decide": self.decide,
            "die": self.die,
            "return": self.come_back,
            "prove": self.prove,
        }
        for name, step in steps.items():
            started_s = time.monotonic()
            step()
            self.evidence.seconds[name] = round(time.monotonic() - started_s, 2)
        return self.evidence

    def store(self, sources: Sequence[SourceFile]) -> None:
        """Wait for all datanodes, then store every source on three of them."""
        self.stage.learn_addresses()
        stored, containers = self.stage.client.put(sources, lanes=lanes_for(sources), close=True)
        self.checksums = source_checksums(sources, stored)
        short = [item.key for item in stored if item.replicas_min < 3]
        if short:
            raise UnavailableError(
                Code.NOT_ENOUGH_NODES, f"stored on fewer than 3 datanodes: {short}"
            )
        self.evidence.files = len(stored)
        self.evidence.stored_bytes = sum(item.size_bytes for item in stored)
        self.evidence.containers = containers
        self.say(
            f"stored {len(stored)} files, {self.evidence.stored_bytes / 1e6:.1f} MB, three times, "
            f"in {len(containers)} containers on {len(self.stage.addresses)} datanodes"
        )
        self.sources = sources
        self.evidence.coded = coded.store(self.stage.client, sources, len(self.stage.addresses))
        self.say(
            f"stored {self.evidence.coded.files} of them again, "
            f"{self.evidence.coded.stored_bytes / 1e6:.1f} MB, erasure-coded as "
            f"{self.evidence.coded.scheme}"
        )

    def infos(self) -> list[scm_pb2.ContainerInfo]:
        """Return the SCM's facts about the demo's replicated containers."""
        return self.stage.infos_of(self.evidence.containers)

    def coded_infos(self) -> list[scm_pb2.ContainerInfo]:
        """Return the SCM's facts about the demo's erasure-coded containers."""
        return self.stage.infos_of(self.evidence.coded.containers)

    def all_infos(self) -> list[scm_pb2.ContainerInfo]:
        """Return the SCM's facts about all containers that the demo made and closed."""
        told = self.evidence
        contested = told.contest.container_id
        return self.stage.infos_of({*told.containers, *told.coded.containers, contested})

    def is_all_whole(self) -> bool:
        """Return True if all replicated containers have three equal replicas, and all shards
        exist."""
        shards = all(coded.is_complete(self.evidence.coded, i) for i in self.coded_infos())
        return shards and all(is_whole(info) for info in self.infos())

    def wait_until_closed(self) -> None:
        """Wait until all replicas are CLOSED, and the replicas of each container have equal
        roots."""
        wait_until(self.is_all_whole, "all containers close alike")
        self.say("all containers are closed; the roots of their replicas agree")

    def heal_alone(self) -> None:
        """Flip a bit, scan the replica, and wait until the control plane repairs it without a plan
        of Spark."""
        told, [info, *_] = self.evidence.selfheal, self.infos()
        selfheal.flip_and_watch(told, self.stage, info)
        self.say(
            f"flipped a bit of container {told.container_id} on {told.datanode_id[:SHORT]}: a scan "
            f"found it, and the control plane had it healed {told.seconds:.1f} s later, without "
            "Spark; from here on it leaves that to plans"
        )
        selfheal.leave_the_rest_to_plans(self.stage)

    def harm_shards(self) -> None:
        """Delete a shard and wait for its reconstruction; then damage another shard."""
        told, [info, *_] = self.evidence.coded, self.coded_infos()
        coded.harm(
            told,
            info,
            self.stage.client,
            self.stage.cluster,
            self.stage.indexes,
            look=lambda: self.stage.infos_of([info.container_id])[0],
            wait_until=wait_until,
        )
        self.say(
            f"lost shard {told.lost_index} of container {info.container_id}: the control plane "
            f"had it rebuilt from {told.rebuild_read_bytes:,} bytes of the others; flipped a bit "
            f"of shard {coded.DAMAGED_INDEX}"
        )

    def damage(self) -> None:
        """Damage replicas on disk in all known ways."""
        self.evidence.harms = harm_cluster(
            self.infos(), self.stage.cluster, self.stage.client, self.stage.indexes
        )
        ways = {harm.damage.way for harm in self.evidence.harms}
        places = {(harm.datanode_id, harm.damage.container_id) for harm in self.evidence.harms}
        self.say(
            f"damaged {len(places)} replicas on disk in {len(ways)} ways, "
            f"{self.evidence.spoiled_bytes:,} bytes of chunks spoiled"
        )

    def lie(self) -> None:
        """Store another container, in which one replica lies and another is damaged."""
        self.evidence.contest = contest = liar.store(self.stage.client, self.sources)
        ids = [contest.container_id]
        wait_until(lambda: all(map(is_whole, self.stage.infos_of(ids))), "it closes alike")
        liar.harm(contest, self.stage)
        self.say(
            f"container {contest.container_id}: {contest.lie_id[:SHORT]} has wrong bytes and a "
            f"row that fits them, {contest.flip_id[:SHORT]} a flipped bit in the same chunk"
        )

    def scan_all(self) -> None:
        """Scan every replica on every datanode again."""
        results = self.scan_replicas()
        self.scanned = {place: result.replica for place, result in results.items()}
        self.evidence.findings = {
            place: list(result.findings) for place, result in results.items() if result.findings
        }
        unhealthy = sum(
            result.replica.state == container_pb2.UNHEALTHY for result in results.values()
        )
        found = sum(result.finding_count for result in results.values())
        self.say(
            f"scanned {len(results)} replicas, {sum(r.bytes_read for r in results.values()):,} "
            f"bytes read past the cache: {found} findings, {unhealthy} replicas unhealthy"
        )

    def scan_replicas(self) -> dict[Place, datanode_pb2.ScanResult]:
        """Scan every replica of the demo, in parallel on the datanodes."""
        places = [
            (replica.datanode.datanode_id, info.container_id)
            for info in self.all_infos()
            for replica in info.replicas
        ]
        with ThreadPoolExecutor(len(self.stage.addresses)) as pool:
            return dict(zip(places, pool.map(self.scan_replica, places), strict=True))

    def scan_replica(self, place: Place) -> datanode_pb2.ScanResult:
        """Scan one replica and wait for the result."""
        datanode_id, container_id = place
        peer = self.stage.peer(datanode_id)
        return peer.scanned(ContainerId(container_id), waits=self.waits)

    def waits(self, error: SutureError) -> None:
        """Print the reason why a step waits."""
        self.say(f"waits: {error}")

    def verify(self) -> None:
        """Export a snapshot once the SCM has all reports, and run the Spark job on it."""
        wait_until(
            lambda: are_known(self.scanned, self.all_infos()), "the SCM hears of all that was found"
        )
        snapshot = self.stage.client.scm.export_snapshot(
            scm_pb2.ExportSnapshotRequest(), waits=self.waits
        )
        out = self.stage.cluster.root / "verify"
        log = self.stage.cluster.root / "verify.log"
        with log.open("wb") as errors:
            done = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "spark_verify.job",
                    snapshot.path,
                    "--out",
                    str(out),
                    "--json",
                ],
                stdout=subprocess.PIPE,
                stderr=errors,
                check=False,
            )
        if done.returncode not in VERDICTS:
            raise UnavailableError(
                Code.UNAVAILABLE,
                f"suture-verify ended with {done.returncode}, not as after damage; see {log}",
            )
        run = Path(json.loads(done.stdout)["path"])
        self.evidence.report = run / "report.html"
        self.evidence.summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
        self.say(
            f"Spark compared {snapshot.replica_count} replicas: {VERDICTS[done.returncode]}; "
            f"{run / 'report.html'}"
        )

    def reconcile(self) -> None:
        """Apply the plan and wait for every command's outcome."""
        request = read_plan(FinishedRun.opened(str(self.evidence.report.parent)), only="reconcile")
        answer = until_decided(self.stage.client.scm.apply_plan, request)
        refused = [f"{d.container_id}: {d.code}" for d in answer.decisions if d.code != "OK"]
        if refused:
            self.evidence.not_healed += [f"plan row refused: {why}" for why in refused]
        ids = [command_id for d in answer.decisions for command_id in d.command_ids]
        self.evidence.outcomes = self.stage.outcomes_of(ids)
        self.say(
            f"reconciled {len(request.rows)} containers with {len(ids)} commands: "
            f"{self.evidence.fetched_bytes:,} bytes of chunks fetched for "
            f"{self.evidence.spoiled_bytes:,} spoiled, and {self.evidence.tree_bytes:,} of trees"
        )

    def decide(self) -> None:
        """Check and print the state of the contradiction; then resolve it as an operator does."""
        told = self.evidence.contest
        self.evidence.not_healed += liar.judge(told, self.stage, self.evidence.outcomes)
        sources = ", ".join(one[:SHORT] for one in told.repaired_from) or "nobody"
        self.say(
            f"the flipped bit was repaired from {sources}, the "
            f"contradiction left to a person; suture status: {told.headline}"
        )
        self.evidence.not_healed += liar.decide(told, self.stage)
        self.adopt([told.container_id], told.checksums)
        self.say(
            f"suture reconcile {told.container_id} --trust {told.right_id[:SHORT]}: "
            f"{told.replaced_bytes:,} bytes of the liar replaced"
        )

    def adopt(self, container_ids: Sequence[int], checksums: Checksums) -> None:
        """Add containers, with the checksums of their files, to those that are verified at the
        end."""
        self.evidence.containers += container_ids
        self.checksums |= checksums

    def die(self) -> None:
        """Kill a datanode that has a replica of an open container, and check that the other
        datanodes serve and restore all data."""
        told = self.evidence.death
        selfheal.heal_again(self.stage)
        wait_until(self.is_all_whole, "all that was repaired is whole")
        death.store(told, self.stage, self.sources)
        self.evidence.not_healed += death.kill(told, self.stage, self.evidence.containers)
        self.say(
            f"killed {told.datanode_id[:SHORT]}, which had replicas of {len(told.containers)} "
            f"containers; container {told.open_id} was open"
        )
        self.evidence.not_healed += death.outlive(told, self.stage, self.checksums)
        self.say(
            f"read on without it, and made {told.made_count} replicas elsewhere; "
            f"suture status: {told.headline}"
        )

    def come_back(self) -> None:
        """Restart the dead datanode, and wait until the surplus replicas are removed."""
        told = self.evidence.death
        self.evidence.not_healed += death.come_back(told, self.stage)
        self.adopt([told.open_id], told.checksums)
        wait_until(self.is_all_whole, "all is whole with the datanode that came back")
        self.say(
            f"{told.datanode_id[:SHORT]} came back with all it had: "
            f"{told.removed_count} surplus replicas were removed"
        )

    def prove(self) -> None:
        """Scan again, compare all roots, and read every file back from every replica."""
        for (datanode_id, container_id), result in self.scan_replicas().items():
            for finding in result.findings:
                self.evidence.not_healed.append(
                    f"container {container_id} on {datanode_id}: {finding.fault} in block "
                    f"{finding.local_id}: {finding.evidence}"
                )
        try:
            wait_until(self.is_all_whole, "all roots agree", 20)
        except UnavailableError:
            self.evidence.not_healed += [
                f"container {info.container_id}: {describe(info)}"
                for info in self.infos()
                if not is_whole(info)
            ]
            self.evidence.not_healed += [
                f"container {info.container_id}: {describe(info)}"
                for info in self.coded_infos()
                if not coded.is_complete(self.evidence.coded, info)
            ]
        read_bytes, wrong = read_back(self.stage.client, self.infos(), self.checksums)
        self.evidence.not_healed += wrong
        self.say(
            f"read every file back from each of its replicas: {read_bytes:,} bytes, "
            + (f"{len(wrong)} not as stored" if wrong else "all as stored")
        )
        told = self.evidence.coded
        wrong = list(coded.prove(told, self.coded_infos(), self.stage.client, self.sources))
        self.evidence.not_healed += wrong
        self.say(
            f"computed the shards of {told.stripes} stripes from each other and read the "
            f"erasure-coded files back: {f'{len(wrong)} wrong' if wrong else 'all as stored'}"
        )


def describe(info: scm_pb2.ContainerInfo) -> str:
    """Return the states and roots of a container's replicas, in one line."""
    return ", ".join(
        f"{r.datanode.datanode_id} {container_pb2.ReplicaState.Name(r.replica.state)} "
        + (f"{r.replica.tree.root:016x}" if r.replica.HasField("tree") else "no tree")
        for r in info.replicas
    )
