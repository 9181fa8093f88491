"""A real Ozone cluster of separate processes with two agents, used by several trials.

`judged` exits 1 if a check fails. It exits 0 if all pass, or if no cluster is available, and prints
the reason. INTEROP_KEEP names a directory for the files of a failed trial.
"""

import argparse
import json
import os
import shutil
import signal
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from suture.errors import SutureError
from tools.interop.agents import Agent, Scm, Steps, awaited
from tools.interop.cluster import PrerequisiteMissing, build
from tools.interop.mixed_cluster import spaced
from tools.interop.secure_site import secured
from tools.interop.site import NOT_SECURE, OzoneProcessCluster

DATANODES: Final = 4
AGENTS: Final = 2
VALUE_CHARS: Final = 160


@dataclass(frozen=True, slots=True)
class Place:
    """A datanode's display name and address."""

    name: str
    address: str


class SiteTrial(Steps, ABC):
    """A trial with one cluster. `places` has the name and address of each datanode, by id."""

    def __init__(
        self, site: OzoneProcessCluster, place: Path, ends: ExitStack, *, is_quiet: bool
    ) -> None:
        super().__init__(is_quiet=is_quiet)
        self.site = site
        self.place = place
        self._ends = ends
        self.scm = Scm(site.port_of("ozone.scm.client.address"), site.security.identity())
        self.agents: list[Agent] = []
        self.places: dict[str, Place] = {}

    @abstractmethod
    def live(self) -> None:
        """Run all steps in order."""

    @abstractmethod
    def told(self) -> Mapping[str, Any]:
        """Return the content of the trial's JSON document, without the steps."""

    def join(self) -> None:
        """Start two agents, and wait until all datanodes are known."""
        for number in range(1, AGENTS + 1):
            place, conf = self.place / f"agent{number}", self.site.datanodes[0].place
            config = self.site.security.agent_config(place, conf, self.site.free_port)
            agent = Agent(place, self.site.port_of("ozone.scm.datanode.address"), config)
            self.agents.append(agent)
            self._ends.callback(agent.end, signal.SIGKILL)
            self.places[agent.datanode_id] = Place(f"agent {number}", agent.door)
        client = self.site.client
        awaited("six datanodes", lambda: len(client.datanodes()) == DATANODES + AGENTS)
        indexes = {self.site.ports_of(index)[0]: index for index in range(DATANODES)}
        for uuid, port in client.datanodes().items():
            if not self.is_agent(uuid):
                name = f"Ozone datanode {indexes[port]}"
                self.places[uuid] = Place(name, f"{self.site.security.address}:{port}")
        awaited("all healthy", self.is_healthy)
        self.tell("datanodes", ", ".join(sorted(one.name for one in self.places.values())), True)

    def is_agent(self, uuid: str) -> bool:
        """Return True if the datanode is an agent, not Ozone's."""
        return uuid in {agent.datanode_id for agent in self.agents}

    def is_healthy(self) -> bool:
        """Return True if the SCM lists all datanodes as healthy and in service."""
        try:
            return all(self.scm.node(uuid) == "HEALTHY IN_SERVICE" for uuid in self.places)
        except SutureError:
            return False

    def end_agents(self) -> None:
        """Stop the agents as an operator does."""
        codes = [agent.end() for agent in self.agents]
        self.tell("SIGTERM to the agents", f"exit codes {codes}", codes == [0] * AGENTS)


Begin = Callable[[OzoneProcessCluster, Path, ExitStack], SiteTrial]
"""Function that creates a trial from a cluster, a directory, and a stack for resources to
release."""


def _conduct(
    begin: Begin,
    class_path: str,
    more: Mapping[str, str],
    *,
    as_json: bool,
    is_secure: bool,
) -> bool:
    with tempfile.TemporaryDirectory(prefix="interop-") as name, ExitStack() as ends:
        place = Path(name)
        security = ends.enter_context(secured(place)) if is_secure else NOT_SECURE
        site = OzoneProcessCluster(class_path, place, DATANODES, more, security=security)
        ends.callback(site.close)
        site.begin()
        trial = begin(site, place, ends)
        try:
            trial.live()
        except (RuntimeError, SutureError) as error:
            trial.tell("it ended early", error, False)
        if not trial.holds and "INTEROP_KEEP" in os.environ:
            shutil.copytree(name, os.environ["INTEROP_KEEP"], dirs_exist_ok=True)
        if as_json:
            rows = [{"what": what, "value": value, "holds": holds}
                    for what, value, holds in trial.rows]  # fmt: skip
            print(json.dumps({"holds": trial.holds, **trial.told(), "steps": rows}, indent=2))
        else:
            cells = [(what, value[:VALUE_CHARS], "yes" if holds else "NO")
                     for what, value, holds in trial.rows]  # fmt: skip
            print("\n" + spaced(("what", "came to", "holds"), cells, frozenset()))
    return trial.holds


def judged(
    begin: Begin,
    chosen: argparse.Namespace,
    more: Mapping[str, str] | None = None,
    *,
    is_secure: bool = False,
) -> int:
    """Build a cluster, run the trial in it, and return the exit code."""
    try:
        holds = _conduct(begin, build(), more or {}, as_json=chosen.json, is_secure=is_secure)
    except PrerequisiteMissing as why:
        print(json.dumps({"skipped": str(why)}) if chosen.json else f"interop: skipped: {why}")
        return 0
    return 0 if holds else 1
