"""Every field that a rich cluster has a value for reaches the person who asks with --json.

`tests/golden/answers/NAME.txt` lists, for each command, the paths in its document that have a value
(not zero, empty or false). A field that the SCM or a datanode stops sending, or the command stops
receiving, is missing from the document. `--rewrite-golden` keeps what is in the file and in the
document; an empty or absent file takes all. Commit only what is there in every run.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from agent.cli.main import run
from merkle.replica import ContainerId
from suture.client.cluster_client import ClusterClient
from suture.client.file_pieces import SourceFile
from suture.ec.scheme import parse_scheme
from suture.wire.v1 import scm_pb2
from tests.support.command_line import CommandLine
from tests.support.command_tree import LEAVES, command_of, has_parameter
from tests.support.forked_cluster import forked_cluster
from tests.support.printed_json import document_in
from tests.support.storage.three_replicas import content
from tests.support.waiting import wait_until
from tools.demo.cluster import Cluster
from tools.demo.damage import Target, flip_bit_under_warm_cache
from tools.demo.damage_choice import replica_root

pytestmark = pytest.mark.slow

GOLDEN: Final = Path(__file__).parents[2] / "golden" / "answers"
FILE_BYTES: Final = 40_000
FILES: Final = 6
WAIT_S: Final = 180.0
NUMBER: Final = re.compile(r"^[0-9]+$")
COMMANDS: Final[Mapping[str, Sequence[str]]] = {
    "status": ("status",),
    "status-one": ("status", "--datanode", "{damaged}"),
    "volumes": ("volumes",),
    "findings": ("findings",),
    "history": ("history",),
    "explain": ("explain", "{repaired}"),
    "explain-damaged": ("explain", "{container}"),
    "container-history": ("history", "{repaired}"),
    "tree": ("tree", "{container}"),
    "diff": ("diff", "{container}"),
    "versions": ("versions",),
    "scrub-status": ("scrub", "status"),
    "sample": ("scrub", "sample", "--fraction", "0.5"),
    "ok-to-stop": ("ok-to-stop", "{damaged}"),
    "ok-to-stop-for-good": ("ok-to-stop", "--for-good", "{damaged}"),
    "verify-parity": ("scrub", "parity", "{coded}"),
    "ls": ("ls",),
    "scm-nodes": ("scm", "nodes"),
    "scm-containers": ("scm", "containers"),
    "scm-container": ("scm", "containers", "{container}"),
    "scm-report": ("scm", "report"),
    "scm-queues": ("scm", "queues"),
    "commands": ("history", "--commands", "--count", "200"),
    "scm-decommission-status": ("scm", "decommission-status"),
    "scm-holds": ("scm", "hold"),
    "log-anchors": ("verify-log", "--list-anchors"),
    "scm-safemode": ("scm", "safemode"),
    "scm-balance": ("scm", "balance", "--dry-run"),
    "put": ("put", "{config}", "--prefix", "put/"),
    "get": ("get", "repaired/1", "--output", "{folder}/back"),
    "rm": ("rm", "repaired/1", "--dry-run"),
    "reconcile": ("reconcile", "{repaired}"),
    "reconcile-dry-run": ("reconcile", "{repaired}", "--dry-run"),
    "trust": ("reconcile", "{container}", "--trust", "{intact}", "--dry-run"),
    "diagnose": ("diagnose", "{container}", "--output", "{folder}/bundle"),
    "scrub-scan": ("scrub", "scan", "{repaired}"),
    "scrub-scan-wait": ("scrub", "scan", "{container}", "--wait"),
    "scrub-pause": ("scrub", "pause", "--end"),
    "volume-add": ("volume", "add", "--next-start", "{folder}/disk"),
    "volume-read-only": ("volume", "read-only", "{volume}", "--off"),
    "volume-retire": ("volume", "retire", "{volume}", "--cancel"),
    "scm-snapshot": ("scm", "snapshot"),
    "scm-replicate": ("scm", "replicate", "{container}", "--dry-run"),
    "scm-delete": ("scm", "delete", "{repaired}", "--datanode", "{holder}", "--dry-run"),
    "scm-close": ("scm", "close", "{container}", "--dry-run"),
    "scm-hold": ("scm", "hold", "{container}"),
    "scm-decommission": ("scm", "decommission", "{damaged}", "--dry-run"),
    "scm-maintenance": ("scm", "maintenance", "{damaged}", "--dry-run"),
    "scm-refresh-volumes": ("scm", "refresh-volumes", "{damaged}"),
    "scm-mark-lost": ("scm", "mark-lost", "{container}", "--dry-run"),
    "scm-remove-node": ("scm", "remove-node", "{damaged}", "--dry-run"),
    "scm-recover": ("scm", "recover", "--dry-run"),
    "scm-backup": ("scm", "backup", "{folder}/backups", "--data", "{data}"),
    "scm-backup-list": ("scm", "backup", "{data}", "--list"),
    "verify-log": ("verify-log", "{directory}"),
    "config-check": ("config", "check", "--config", "{config}"),
    "config-show": ("config", "show", "--config", "{config}"),
    "config-explain": ("config", "explain", "scan"),
    "config-explain-event": ("config", "explain", "--event", "agent_started"),
    "error": ("explain", "999999"),
    "usage-error": ("explain", "none"),
}
ERRORS: Final = {"error", "usage-error"}
OFFLINE: Final = (
    *("attest", "demo", "fsck", "ozone export", "ozone reconcile", "ozone repair"),
    *("ozone scrub", "salvage", "scm apply-plan", "scm restore"),
    *("scm config", "scm limit", "scm pause", "scm resume"),
    *("tls init", "tls issue", "tls show"),
)  # their tests read the documents with `document_in`, too


class Scene:
    """A cluster in which much has happened, and the names to ask about."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.names: dict[str, str] = {}

    def arrange(self, client: ClusterClient, folder: Path) -> None:
        """Store, damage, scan, repair, delete, hold, and have one datanode leave."""
        wait_until(lambda: len(self._nodes(client)) == self.cluster.agents, within_s=WAIT_S)
        damaged = self._store(client, folder, "damaged")
        repaired = self._store(client, folder, "repaired")
        coded = self._store(client, folder, "coded", scheme="rs-3-2-64k")
        self._hurt(client, repaired)
        client.scm.reconcile_containers(
            scm_pb2.ReconcileContainersRequest(container_ids=[repaired])
        )
        client.scm.delete_keys(scm_pb2.DeleteKeysRequest(keys=["repaired/0"]))
        client.scm.hold_containers(scm_pb2.HoldContainersRequest(container_ids=[damaged]))
        node = self._hurt(client, damaged)
        wait_until(lambda: self._is_done(client, repaired), within_s=WAIT_S)
        shards = [one.datanode.datanode_id for one in self._info(client, coded).replicas]
        leaving = next(one for one in shards if one != node)
        client.scm.set_operational_states(
            scm_pb2.SetOperationalStatesRequest(datanode_ids=[leaving], op_state="DECOMMISSIONING")
        )
        wait_until(lambda: self._is_shard_copied(client), within_s=WAIT_S)
        wait_until(lambda: self._may_switch_off(client), within_s=WAIT_S)
        wait_until(lambda: self._is_scanned(client), within_s=WAIT_S)
        volumes = client.peer(self._info(client, damaged).replicas[0].datanode).status().volumes
        intact = self._info(client, damaged).replicas[1].datanode.datanode_id
        holders = [one.datanode.datanode_id for one in self._info(client, repaired).replicas]
        (folder / "disk").mkdir()
        self.names = {
            "container": str(damaged),
            "repaired": str(repaired),
            "coded": str(coded),
            "damaged": node,
            "intact": str(intact),
            "holder": next(one for one in holders if one != leaving),
            "volume": volumes[0].volume_id,
            "directory": volumes[0].path,
            "data": self.cluster.scm.arguments[2],
            "config": str(self.cluster.root / "datanode1.toml"),
            "folder": str(folder),
        }

    def _may_switch_off(self, client: ClusterClient) -> bool:
        """Return whether the leaving datanode may be switched off."""
        answer = client.scm.list_decommissions(scm_pb2.ListDecommissionsRequest())
        return [True] == [departure.safe_to_stop for departure in answer.departures]

    def _is_scanned(self, client: ClusterClient) -> bool:
        """Return whether the background scan has read every replica of every datanode."""
        volumes = [volume for node in self._nodes(client) for volume in node.volumes]
        return all(volume.oldest_scan_at_ms for volume in volumes if volume.data_bytes)

    def _is_done(self, client: ClusterClient, repaired: int) -> bool:
        """Return whether the repair and the deletes are done and reported."""
        answer = client.scm.list_outcomes(scm_pb2.ListOutcomesRequest(count=100))
        deleted = {
            one.datanode_id
            for one in answer.outcomes
            if one.status.state == scm_pb2.CommandStatus.EXECUTED
            and one.status.type == "delete_blocks"
        }
        replicas = self._info(client, repaired).replicas
        return (
            not answer.pending_command_ids
            and {one.datanode.datanode_id for one in replicas} <= deleted
            and any(one.status.reconcile.bytes_fetched for one in answer.outcomes)
            and len({one.replica.tree.root for one in replicas}) == 1
        )

    def _is_shard_copied(self, client: ClusterClient) -> bool:
        """Return whether a shard of the datanode that leaves was copied, and reported."""
        answer = client.scm.list_outcomes(scm_pb2.ListOutcomesRequest(count=100))
        return any(one.status.replicate.replica.replica_index for one in answer.outcomes)

    def _store(self, client: ClusterClient, folder: Path, name: str, scheme: str = "") -> int:
        """Store files in a container of their own; wait until it is closed everywhere."""
        folder = folder / name
        folder.mkdir()
        sources = []
        for number in range(FILES):
            path = folder / str(number)
            path.write_bytes(content(number, 0, FILE_BYTES))
            sources.append(SourceFile(f"{name}/{number}", path, FILE_BYTES))
        code = parse_scheme(scheme) if scheme else None
        _, [container_id, *_] = client.put(sources, lanes=1, close=True, scheme=code)

        def is_closed() -> bool:
            info = self._info(client, container_id)
            return info.state == "CLOSED" and all(
                one.replica.HasField("tree") for one in info.replicas
            )

        wait_until(is_closed, within_s=WAIT_S)
        return int(container_id)

    def _hurt(self, client: ClusterClient, container_id: int) -> str:
        """Flip a bit of one replica and scan it; return its datanode."""
        replica = self._info(client, container_id).replicas[0]
        addresses = [process.address for process in self.cluster.nodes]
        index = addresses.index(replica.datanode.address)
        root = replica_root(self.cluster, index, container_id)
        block = sorted(root.glob("chunks/*.block"))[1]
        sizes = (block.stat().st_size,)
        flip_bit_under_warm_cache(Target(container_id, root, (int(block.stem),), sizes, sizes))
        client.peer(replica.datanode).scanned(ContainerId(container_id), waits=lambda _: None)
        return str(replica.datanode.datanode_id)

    def _nodes(self, client: ClusterClient) -> Sequence[scm_pb2.NodeInfo]:
        return client.scm.list_nodes(scm_pb2.ListNodesRequest()).nodes

    def _info(self, client: ClusterClient, container_id: int) -> scm_pb2.ContainerInfo:
        request = scm_pb2.GetContainerInfoRequest(container_id=container_id)
        return client.scm.get_container_info(request).container


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Six datanodes with two volumes each, whose background scans run."""
    root = tmp_path_factory.mktemp("scene")
    cluster = forked_cluster(
        root / "cluster",
        agents=6,
        volumes=2,
        container_bytes_max=4 * 1024**2,
        agent_sections="[scan]\nstart_jitter_s = 0\n",
    )
    with cluster, ClusterClient(cluster.scm.address) as client:
        made = Scene(cluster)
        made.arrange(client, root)
        yield made


def paths(value: Any, ids: frozenset[str], at: str = "") -> Iterator[str]:
    """Yield the path of every value that says something, of lists and of maps by id only once."""
    if isinstance(value, dict):
        for key, item in value.items():
            name = "*" if NUMBER.match(key) or key in ids else key
            yield from paths(item, ids, f"{at}.{name}" if at else name)
    elif isinstance(value, list):
        for item in value:
            yield from paths(item, ids, f"{at}[]")
    elif value not in (0, "0", "", False, None):
        yield at


def test_every_command_that_prints_json_is_asked() -> None:
    """A new command needs a row here, or a test of its own."""
    asked = {command_of(words) for words in COMMANDS.values()}
    offline = {tuple(words.split()) for words in OFFLINE}

    assert asked | offline == {words for words in LEAVES if has_parameter(words, "as_json")}
    assert set() == asked & offline


@pytest.mark.parametrize("name", COMMANDS)
def test_command_shows_every_field_that_has_a_value(
    scene: Scene, name: str, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    """Every field of the golden file is in the document, which may have more. The document begins
    with its schema, and has the keys of docs/JSON.md.
    """
    suture = CommandLine(scene.cluster.scm.address, capsys)
    words = [word.format(**scene.names) for word in COMMANDS[name]]
    command = command_of(words)
    capsys.readouterr()
    run([*words, "--json", *(["--scm", suture.scm] if has_parameter(command, "scm") else [])])
    document = document_in(capsys.readouterr().out, " ".join(command))
    assert ("error" in document) == (name in ERRORS), document
    nodes = frozenset(str(node["datanode_id"]) for node in suture.json("scm", "nodes")["nodes"])
    found = set(paths(document, nodes))
    file = GOLDEN / f"{name}.txt"
    known = set(file.read_text().splitlines()) if file.exists() else set()
    if request.config.getoption("--rewrite-golden"):
        known = found & known if known else found
        file.write_text("".join(f"{path}\n" for path in sorted(known)))

    assert known
    assert set() == known - found
