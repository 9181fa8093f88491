"""An agent under the SCM of a real cluster of Apache Ozone, with three of Ozone's datanodes.

The trial has these steps. The agent joins, and is in no pipeline while keys are written. It gets a
copy of a closed container. Its copy is damaged, and a reconcile that the SCM orders heals it. It
deletes blocks of keys that clients deleted. It survives kill -9 and a restart of the SCM. It is
decommissioned and recommissioned. When there are four copies, the SCM deletes one of them. When the
agent has the last copy, the SCM makes it send two.
"""

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from merkle.replica import ContainerId
from ozone.clients.datanode import Datanode
from suture.wire.clients.peer import Peer
from suture.wire.mapping import codec
from suture.wire.v1 import datanode_pb2
from tools.interop.agents import Agent, Scm, Steps, awaited, errors_about
from tools.interop.cluster import Node, Ozone, PrerequisiteMissing, build, running

KEYS: Final = 8
KEY_BYTES: Final = (5, 900, 40_000, 700_000, 3_000_000)


class Trial(Steps):
    """A trial of one cluster. Each step adds a row to the table."""

    def __init__(self, ozone: Ozone, place: Path) -> None:
        super().__init__()
        self._ozone = ozone
        self._place = place
        ports = [int(word) for word in ozone.tell("scm").split()]
        self._scm = Scm(ports[1])
        self.agent = Agent(place / "agent", ports[0])
        self._keys: dict[str, list[tuple[int, int]]] = {}
        self._container = 0

    def join(self) -> None:
        """Check that the SCM lists the agent as healthy, and in no pipeline while keys are
        written."""
        uuid = self.agent.datanode_id
        awaited("healthy", lambda: self._scm.node(uuid) == "HEALTHY IN_SERVICE")
        self.tell("the SCM's list of datanodes has it", self._scm.node(uuid), True)
        for number in range(KEYS):
            key = f"key{number}"
            size = KEY_BYTES[number % len(KEY_BYTES)]
            self._keys[key] = self._ozone.write(key, size, number)
        pipelines = self._scm.pipelines_with(uuid)
        refused = self.agent.said("ozone_pipeline_rejected")
        self.tell(
            f"pipelines that have it, {KEYS} keys written",
            f"{len(pipelines)}, {refused} refused by it",
            not pipelines and not refused,
        )

    def hold(self) -> None:
        """Copy a closed container to the agent; compare its bytes with those that clients wrote."""
        containers = [block[0] for blocks in self._keys.values() for block in blocks]
        self._container = max(set(containers), key=containers.count)
        self._close()
        source = self._ozone.nodes()[0]
        copied = self._copy(source)
        awaited("four equal replicas", lambda: self._equal() == 4)
        self.tell(
            f"container {self._container}, {copied} blocks: replicas alike",
            f"{self._equal()} CLOSED with root {self._root():08x}",
            True,
        )

    def _close(self) -> None:
        def is_closed() -> bool:
            self._ozone.tell("close")
            states = [state for state, _ in self._scm.replicas(self._container).values()]
            return states == ["CLOSED"] * 3

        awaited("three closed replicas", is_closed)

    def _copy(self, source: Node) -> int:
        container_id = ContainerId(self._container)
        address = f"127.0.0.1:{source.port}"
        with Datanode(address) as datanode, Peer(self.agent.address) as peer:
            peer.stub.CreateContainer(
                datanode_pb2.CreateContainerRequest(container_id=container_id)
            )
            ids = sorted(datanode.block_ids(container_id))
            for block_id in ids:
                block = datanode.block(container_id, block_id)
                message = codec.block_message(container_id, block)
                for chunk in block.chunks:
                    peer.stub.WriteChunk(
                        datanode_pb2.WriteChunkRequest(
                            block_id=message.block_id,
                            chunk=codec.chunk_message(chunk),
                            data=datanode.read(container_id, block_id, chunk),
                        )
                    )
                peer.stub.PutBlock(datanode_pb2.PutBlockRequest(block=message))
            peer.stub.CloseContainer(
                datanode_pb2.CloseContainerRequest(container_id=container_id, force=True)
            )
        return len(ids)

    def _equal(self) -> int:
        """Return the number of CLOSED replicas if all have the same root; otherwise 0."""
        replicas = set(self._scm.replicas(self._container).values())
        if len(replicas) != 1 or next(iter(replicas))[0] != "CLOSED":
            return 0
        return len(self._scm.replicas(self._container))

    def _root(self) -> int:
        return max(root for _, root in self._scm.replicas(self._container).values())

    def heal(self) -> None:
        """Damage the agent's copy. The SCM gets the report and orders the reconcile that heals
        it."""
        container_id, block_id = self._largest()
        path = self.agent.file(container_id, block_id)
        before = path.read_bytes()
        with path.open("r+b") as file:
            file.seek(len(before) // 2)
            file.write(bytes(octet ^ 1 for octet in before[len(before) // 2 :][:4096]))
        with Peer(self.agent.address) as peer:
            list(peer.scan(ContainerId(container_id), full_speed=True))
        mine = self.agent.datanode_id
        awaited("UNHEALTHY", lambda: self._scm.replicas(container_id)[mine][0] == "UNHEALTHY")
        refused = self._scm.reconcile(container_id)
        awaited("healed", lambda: refused != "" or self._equal() == 4)
        healed = path.read_bytes() == before
        self.tell(
            "4 KiB damaged in it: UNHEALTHY at the SCM, then",
            refused or f"healed by its order from Ozone's datanodes: {healed}",
            healed,
        )

    def _largest(self) -> tuple[int, int]:
        mine = [one for blocks in self._keys.values() for one in blocks]
        files = {
            block: self.agent.file(*block).stat().st_size
            for block in mine
            if block[0] == self._container
        }
        return max(files, key=files.__getitem__)

    def delete(self) -> None:
        """Delete a key; its blocks are deleted everywhere, and the SCM's delete log becomes empty.

        Ozone deletes nothing in containers with a wrong number of replicas.
        """
        key, blocks = next(
            (key, blocks)
            for key, blocks in self._keys.items()
            if {container for container, _ in blocks} == {self._container}
            and self._largest() not in blocks
        )
        files = [self.agent.file(*block) for block in blocks]
        self._ozone.tell(f"delete {key}")
        awaited("blocks deleted", lambda: not any(path.exists() for path in files))
        awaited("acknowledged", lambda: self._ozone.tell("undeleted") == "0")
        awaited("roots alike", lambda: self._equal() == 3)
        self.tell(
            f"a key deleted, {len(blocks)} blocks in it",
            f"gone here, {self._ozone.tell('undeleted')} left in the SCM's log; roots alike",
            True,
        )

    def die(self) -> None:
        """Kill and restart the agent; check that it reports its replicas."""
        self.agent.end(signal.SIGKILL)
        self.agent.start()
        awaited("registered again", lambda: self.agent.said("agent_registered") == 2)
        awaited("three replicas", lambda: self._equal() == 3)
        self.tell("kill -9 and a start", "registered, three equal replicas", True)

    def lose_scm(self) -> None:
        """Restart the SCM, which loses the datanodes' reports."""
        self._ozone.tell("restart-scm")
        ports = [int(word) for word in self._ozone.tell("scm").split()]
        self._scm = Scm(ports[1])
        uuid = self.agent.datanode_id
        awaited("registered again", lambda: self.agent.said("agent_registered") == 3)
        awaited("healthy", lambda: self._scm.node(uuid) == "HEALTHY IN_SERVICE")
        awaited("three replicas", lambda: self._equal() == 3)
        self.tell("a restart of the SCM", "registered again, three equal replicas", True)

    def leave(self) -> None:
        """Decommission and recommission the agent; check that it stores its operational state."""
        uuid, states = self.agent.datanode_id, []
        self._ozone.tell(f"decommission {self.agent.door}")
        awaited("leaving", lambda: "DECOMMISSION" in self._scm.node(uuid))
        states.append(self._scm.node(uuid).split()[1])
        awaited("kept on its volume", lambda: "DECOMMISSION" in self._kept())
        self._ozone.tell(f"recommission {self.agent.door}")
        awaited("back", lambda: self._scm.node(uuid) == "HEALTHY IN_SERVICE")
        awaited("kept on its volume", lambda: "IN_SERVICE" in self._kept())
        self.tell("decommissioned and taken back", f"{states[0]}, then IN_SERVICE, kept", True)

    def _kept(self) -> str:
        paths = self._place.glob("agent/volume/hdds/*/NODE_STATE")
        return "".join(path.read_text() for path in paths)  # none yet, because nothing was decided

    def manage(self) -> None:
        """Create a surplus copy, which the SCM's replication manager must delete. Three copies must
        remain, one of them on the agent."""

        def is_settled() -> bool:
            self._ozone.tell("manage")
            return self._equal() == 3

        awaited("three replicas", is_settled)
        uuid = self.agent.datanode_id
        is_here = uuid in self._scm.replicas(self._container)
        where = "an Ozone datanode" if is_here else "the agent"
        self.tell("one copy too many: the SCM has it deleted", f"by {where}", True)
        if is_here:
            return
        nodes = self._ozone.nodes()
        self._copy(nodes[0])
        self._ozone.tell(f"drop {nodes[1].index} {self._container}")
        awaited("three replicas, one here", lambda: self._equal() == 3)

    def send(self) -> None:
        """Destroy the copies on Ozone's datanodes. The SCM must make the agent send its copy to two
        of them."""
        mine = self.agent.datanode_id
        theirs = set(self._scm.replicas(self._container)) - {mine}
        for node in self._ozone.nodes():
            if node.datanode_id in theirs:
                self._ozone.tell(f"drop {node.index} {self._container}")
        awaited("one replica", lambda: set(self._scm.replicas(self._container)) == {mine})

        def is_settled() -> bool:
            self._ozone.tell("manage")
            return self._equal() == 3

        awaited("three replicas", is_settled)
        self.tell(
            "only the agent's copy left: the SCM has it sent",
            f"to {self._equal() - 1} datanodes of Ozone; roots alike",
            True,
        )

    def look_back(self) -> None:
        """Check that Ozone's log has no error about the agent, and that the agent stops cleanly."""
        errors = errors_about(self._place / "log", self.agent.datanode_id)
        code = self.agent.end()
        self.tell("errors in Ozone's log that name it", len(errors), not errors)
        for line in errors[:5]:
            print(f"      {line[:300]}")
        self.tell("SIGTERM", f"exit code {code}", code == 0)


def conduct(class_path: str) -> bool:
    """Run the trial and print its table; return True if every check passes."""
    with tempfile.TemporaryDirectory(prefix="interop-") as name, ExitStack() as ends:
        place = Path(name)
        ozone = ends.enter_context(running(class_path, place, "led"))
        trial = Trial(ozone, place)
        ends.callback(trial.agent.end, signal.SIGKILL)
        try:
            for step in (trial.join, trial.hold, trial.heal, trial.manage, trial.send,
                         trial.delete, trial.die, trial.lose_scm, trial.leave,
                         trial.look_back):  # fmt: skip
                step()
        except RuntimeError as error:
            trial.tell("it ended early", error, False)
            if os.environ.get("INTEROP_KEEP"):
                subprocess.run(["cp", "-r", name, os.environ["INTEROP_KEEP"]], check=True)  # noqa: S607
    return trial.holds


def main() -> int:
    """Build, run, judge."""
    try:
        return 0 if conduct(build()) else 1
    except PrerequisiteMissing as why:
        print(f"interop: skipped: {why}")
        return 0


if __name__ == "__main__":
    sys.exit(main())
