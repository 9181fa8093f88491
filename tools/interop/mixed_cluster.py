"""A real Ozone cluster with two agents, for the trials that damage replicas.

Each trial is a `Mixed` with its own steps. `judged` exits 1 if a check fails. It exits 0 if all
pass, or if no cluster is available, and prints the reason. `--json` prints one document.
INTEROP_KEEP names a directory for the files of a failed trial.
"""

import argparse
import json
import os
import shutil
import signal
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from merkle.replica import ContainerId
from suture.wire.clients.peer import Peer
from tools.interop.agents import Agent, Scm, Steps, awaited, errors_about
from tools.interop.cluster import Block, Node, Ozone, PrerequisiteMissing, build, running

DATANODES: Final = 4  # together with an agent enough for rs-3-2; the other agent is a spare
COPIES: Final = 3  # of a key by default


class Mixed(Steps, ABC):
    """A trial with Ozone's datanodes and two agents under one SCM."""

    def __init__(self, ozone: Ozone, place: Path, ends: ExitStack, *, is_quiet: bool) -> None:
        super().__init__(is_quiet=is_quiet)
        self._ozone = ozone
        self._place = place
        self._ends = ends
        ports = [int(word) for word in ozone.tell("scm").split()]
        self._port = ports[0]
        self._scm = Scm(ports[1])
        self._agents: list[Agent] = []
        self._nodes: list[Node] = ozone.nodes()
        self._keys: dict[str, tuple[int, int]] = {}  # bytes, seed

    @abstractmethod
    def steps(self) -> Iterator[Callable[[], None]]:
        """Return the steps in order."""

    @abstractmethod
    def told(self) -> Mapping[str, Any]:
        """Return the content of the trial's JSON document, without the steps."""

    @abstractmethod
    def table(self) -> str:
        """Return the result for display."""

    def _join(self) -> Agent:
        agent = Agent(self._place / f"agent{len(self._agents) + 1}", self._port)
        self._agents.append(agent)
        self._ends.callback(agent.end, signal.SIGKILL)
        uuid = agent.datanode_id
        awaited("healthy", lambda: self._scm.node(uuid) == "HEALTHY IN_SERVICE")
        self.tell(f"agent {len(self._agents)} joins", self._scm.node(uuid), True)
        return agent

    def _name(self, uuid: str) -> str:
        for number, agent in enumerate(self._agents, start=1):
            if agent.datanode_id == uuid:
                return f"agent {number}"
        (node,) = (one for one in self._nodes if one.datanode_id == uuid)
        return f"Ozone datanode {node.index}"

    def _address(self, uuid: str) -> str:
        doors = {agent.datanode_id: agent.door for agent in self._agents}
        return doors.get(uuid) or next(
            f"127.0.0.1:{node.port}" for node in self._nodes if node.datanode_id == uuid
        )

    def _file(self, uuid: str, block: Block) -> Path:
        files = {agent.datanode_id: agent.file for agent in self._agents}
        files |= {node.datanode_id: node.file for node in self._nodes}
        return files[uuid](*block)

    def _is_agent(self, uuid: str) -> bool:
        return uuid in {agent.datanode_id for agent in self._agents}

    def _scan(self, uuid: str, container: int) -> None:
        """Request a scan of a replica. An agent scans it immediately; a datanode of Ozone scans it
        later."""
        for agent in self._agents:
            if agent.datanode_id == uuid:
                with Peer(agent.address) as peer:
                    list(peer.scan(ContainerId(container), full_speed=True))
        for node in self._nodes:
            if node.datanode_id == uuid:
                self._ozone.tell(f"scan {node.index} {container}")

    def _is_known_bad(self, uuid: str, container: int) -> bool:
        """Return True if the SCM knows that a replica is damaged."""
        return self._scm.replicas(container)[uuid][0] == "UNHEALTHY"

    def _close(self, container: int, count: int) -> None:
        def is_closed() -> bool:
            self._ozone.tell("close")
            states = [state for state, _ in self._scm.replicas(container).values()]
            return states == ["CLOSED"] * count

        awaited(f"container {container}: {count} closed replicas", is_closed)

    def _drop(self, container: int, *uuids: str) -> None:
        for node in self._nodes:
            if node.datanode_id in uuids:
                self._ozone.tell(f"drop {node.index} {container}")

    def _are_gone(self, container: int, *uuids: str) -> bool:
        return not set(uuids) & set(self._scm.replicas(container))

    def _reconcile(self, container: int) -> None:
        refused = self._scm.reconcile(container)
        if refused:
            raise RuntimeError(f"container {container} is not reconciled: {refused}")

    def look_back(self) -> None:
        """Compare every key with the bytes that were written. Search Ozone's logs for errors about
        the agents."""
        found = [
            self._ozone.tell(f"read {key} {size_bytes} {seed}")
            for key, (size_bytes, seed) in self._keys.items()
        ]
        self.tell("keys read by Ozone's client", f"{found.count('equal')} of {len(found)} equal",
                  found == ["equal"] * len(self._keys))  # fmt: skip
        errors = errors_about(self._place / "log", *(one.datanode_id for one in self._agents))
        self.tell("errors in Ozone's log that name agents", len(errors), not errors)
        codes = [agent.end() for agent in self._agents]
        self.tell("SIGTERM to the agents", f"exit codes {codes}", codes == [0, 0])


def spaced(heads: Sequence[str], rows: Sequence[Sequence[str]], numbers: frozenset[int]) -> str:
    """Return rows as aligned lines; columns of numbers are right-aligned."""
    cells = [heads, *rows]
    widths = [max(len(line[at]) for line in cells) for at in range(len(heads))]
    lines = [
        "  ".join(
            cell.rjust(width) if at in numbers else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]
    return "\n".join(lines)


Begin = Callable[[Ozone, Path, ExitStack, bool], Mixed]
"""Function that creates a trial from a cluster, a directory, a stack for resources to release, and
a flag: True = the trial prints nothing."""


def _conduct(begin: Begin, class_path: str, *, as_json: bool) -> bool:
    with tempfile.TemporaryDirectory(prefix="interop-") as name, ExitStack() as ends:
        place = Path(name)
        ozone = ends.enter_context(running(class_path, place, "led", str(DATANODES)))
        trial = begin(ozone, place, ends, as_json)
        try:
            for step in trial.steps():
                step()
        except RuntimeError as error:
            trial.tell("it ended early", error, False)
        if not trial.holds and "INTEROP_KEEP" in os.environ:
            shutil.copytree(name, os.environ["INTEROP_KEEP"], dirs_exist_ok=True)
        if as_json:
            rows = [{"what": what, "value": value, "holds": holds}
                    for what, value, holds in trial.rows]  # fmt: skip
            print(json.dumps({"holds": trial.holds, **trial.told(), "steps": rows}, indent=2))
        else:
            print(f"\n{trial.table()}")
    return trial.holds


def parser_of(name: str, document: str) -> argparse.ArgumentParser:
    """Return the argument parser of a trial; all have `--json`."""
    parser = argparse.ArgumentParser(prog=name, description=document.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one document")
    return parser


def judged(begin: Begin, *, as_json: bool) -> int:
    """Build a cluster, run the trial in it, and return the exit code."""
    try:
        return 0 if _conduct(begin, build(), as_json=as_json) else 1
    except PrerequisiteMissing as why:
        print(json.dumps({"skipped": str(why)}) if as_json else f"interop: skipped: {why}")
        return 0
