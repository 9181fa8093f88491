"""Agents that a real Ozone SCM controls, and a client of this SCM."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ozone.clients.authentication import HadoopIdentity, Identity
from ozone.clients.connection import parse_addresses
from ozone.clients.frames import Failure
from ozone.clients.messages import ScmRequestType
from ozone.clients.scm import OzoneScmClient, request
from ozone.cluster.listings import datanode_id, pipeline_id
from tests.support.process_logs import log_lines
from tools.interop.cluster import ROOT

ERROR: Final = r"^\S+ \S+ ERROR"
AGENT: Final = Path(sys.executable).parent / "suture-agent"
WAIT_S: Final = 120.0
USER: Final = HadoopIdentity("suture")
WHOLE_CLUSTER: Final = 1
HEALTHY: Final = 1
IN_SERVICE: Final = 1
OP_STATES: Final = ("IN_SERVICE", "ENTERING_MAINTENANCE", "IN_MAINTENANCE", "DECOMMISSIONING",
                    "DECOMMISSIONED")  # fmt: skip
CONFIG: Final = """[node]
listen = "127.0.0.1:0"
scm = "ozone://127.0.0.1:{port}"
[observe]
listen = "127.0.0.1:0"
[storage]
volumes = ["{volume}"]
tree_algorithm = "crc32c"
[scan]
enabled = false
[ozone]
listen = "127.0.0.1:{door}"
heartbeat_interval_s = 1
"""


def awaited(what: str, condition: Callable[[], bool], wait_s: float = WAIT_S) -> None:
    """Poll until the condition is true. Raise RuntimeError if it does not become true in time."""
    deadline_s = time.monotonic() + wait_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"not within {wait_s:g} s: {what}")
        time.sleep(0.3)


class Agent:
    """A process of `suture-agent`."""

    def __init__(self, place: Path, port: int, config: str = CONFIG) -> None:
        """Start an agent. `config` is a template of its config, with `port` for the SCM's port and
        `door` for the port of the agent's Ozone server (0 = any)."""
        self._place = place
        self._config = config
        (place / "volume").mkdir(parents=True)
        self._port = port
        self._door = 0
        self.log = place / "log"
        self.start()

    def start(self) -> None:
        """Start the agent, and wait until it answers."""
        config = self._place / "agent.toml"
        config.write_text(
            self._config.format(port=self._port, volume=self._place / "volume", door=self._door)
        )
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                [str(AGENT), "--config", str(config)],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the agent ended: {self.log.read_text()[-500:]}")
        said = json.loads(line)
        host, _, port = said["address"].rpartition(":")  # as it is advertised
        self.address = f"127.0.0.1:{port}"
        self.datanode_id: str = said["datanode_id"]
        self._door = int(said["protocol_addresses"][0].rpartition(":")[2])
        self.door = f"{host}:{self._door}"

    def end(self, how: int = signal.SIGTERM) -> int:
        """Send a signal to the agent, and wait for its end; return its exit code."""
        self._process.send_signal(how)
        return self._process.wait(60)

    def file(self, container_id: int, block_id: int) -> Path:
        """Return the path of a block's file."""
        pattern = f"hdds/*/current/*/{container_id}/chunks/{block_id}.block"
        (path,) = (self._place / "volume").glob(pattern)
        return path

    def events(self, event: str) -> list[dict[str, Any]]:
        """Return the log lines of an event."""
        found = f'"event": "{event}"'
        return [json.loads(line) for line in log_lines(self.log) if found in line]

    def said(self, event: str) -> int:
        """Return how often the agent logged an event."""
        return self.log.read_text().count(f'"event": "{event}"')


@dataclass(frozen=True, slots=True)
class Replica:
    """The SCM's facts about a replica. `index` is the index of the shard, or 0 if the container is
    replicated."""

    state: str
    root: int
    index: int


class Scm:
    """Client of Ozone's SCM, which returns its facts about datanodes and replicas."""

    def __init__(self, port: int, identity: Identity = USER) -> None:
        self._client = OzoneScmClient(parse_addresses(f"127.0.0.1:{port}"), identity)

    def node(self, uuid: str) -> str:
        """Return health and state of a datanode; "" if the SCM does not know it."""
        for node in self._client.call(
            ScmRequestType.QUERY_NODES, scope=WHOLE_CLUSTER
        ).query_nodes.nodes:
            if datanode_id(node.datanode) == uuid:
                health = "HEALTHY" if HEALTHY in node.states else str(list(node.states))
                return f"{health} {OP_STATES[node.op_states[0] - 1]}"
        return ""

    def told_of(self, container_id: int) -> dict[str, Replica]:
        """Return the SCM's facts about a container's replicas, by datanode."""
        answer = self._client.call(ScmRequestType.GET_REPLICAS, container_id=container_id)
        return {
            datanode_id(one.datanode): Replica(one.state, one.checksum, one.index)
            for one in answer.get_replicas.replicas
        }

    def pipelines_with(self, uuid: str) -> list[str]:
        """Return the ids of the pipelines of which a datanode is a member."""
        found = self._client.call(ScmRequestType.LIST_PIPELINES).list_pipelines.pipelines
        return [
            pipeline_id(one.id)
            for one in found
            if uuid in {datanode_id(member) for member in one.members}
        ]

    def replicas(self, container_id: int) -> dict[str, tuple[str, int]]:
        """Return the state and the root of a container's replicas, by datanode."""
        answer = self._client.call(ScmRequestType.GET_REPLICAS, container_id=container_id)
        return {
            datanode_id(one.datanode): (one.state, one.checksum)
            for one in answer.get_replicas.replicas
        }

    def reconcile(self, container_id: int) -> str:
        """Request a reconcile from the SCM; return the reason for a rejection, or "" if the SCM
        accepted."""
        ((_, answer),) = self._client.order_each(
            [container_id], lambda key: request(ScmRequestType.RECONCILE, container_id=key)
        )
        return answer.text if isinstance(answer, Failure) else ""

    def shards(self, container_id: int) -> dict[str, tuple[str, int]]:
        """Return the state and the index of a container's shards, by datanode."""
        answer = self._client.call(ScmRequestType.GET_REPLICAS, container_id=container_id)
        return {
            datanode_id(one.datanode): (one.state, one.index)
            for one in answer.get_replicas.replicas
        }


class Steps:
    """The observations of a trial, as rows of a table."""

    def __init__(self, *, is_quiet: bool = False) -> None:
        self.rows: list[tuple[str, str, bool]] = []
        self._is_quiet = is_quiet

    def tell(self, what: str, value: object, holds: bool) -> None:
        """Add a row: an observation and its result."""
        self.rows.append((what, str(value), holds))
        if not self._is_quiet:
            print(f"{'ok  ' if holds else 'FAIL'}  {what:44}  {value}", flush=True)

    @property
    def holds(self) -> bool:
        """True if all results are as expected."""
        return all(holds for _, _, holds in self.rows)


def errors_about(log: Path, *uuids: str) -> list[str]:
    """Return the errors in Ozone's log that name these datanodes."""
    errors = [line for line in log.read_text().splitlines() if re.search(ERROR, line)]
    return [line for line in errors if any(uuid in line for uuid in uuids)]
