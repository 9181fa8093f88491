"""Datanodes that connect to a control plane in another process, and execute its close commands."""

from collections.abc import Sequence

from suture.wire.v1 import scm_pb2
from tests.support.control.fake_datanode import FakeDatanode, report
from tests.support.waiting import wait_until


class DialledNodes:
    """A client of a control plane in another process, and the fake datanodes that call it."""

    def __init__(self, address: str, names: Sequence[str]) -> None:
        self.address = address
        self.local_ids: dict[int, list[int]] = {}
        self.all = {name: FakeDatanode.dial(address, name) for name in names}
        for place, node in enumerate(self.all.values(), 1):
            node.address = f"192.0.2.{place}:9859"
        for node in self.all.values():
            node.register()
            node.report_full()
        self.scm = self.all["dn1"].stub

    def write(self, scheme: str = "") -> scm_pb2.BlockAllocation:
        """Allocate a block, report its container from three datanodes, or with `scheme` from one
        per shard, and end the session, which closes the container. Return the block."""
        request = scm_pb2.AllocateBlocksRequest(client_id="client", sizes=[1_000], scheme=scheme)
        [block] = self.scm.AllocateBlocks(request).blocks
        number = int(block.block_id.container_id)
        for index, endpoint in enumerate(block.replicas, start=1):
            mine = report(number, bcsid=block.block_id.bcsid)
            mine.replica_index = index if scheme else 0
            self.all[endpoint.datanode_id].report_some(mine)
        self.local_ids[number] = [block.block_id.local_id]
        key = scm_pb2.KeyInfo(
            key=f"key{number}",
            size=1_000,
            blocks=[scm_pb2.BlockLocation(block_id=block.block_id, length=1_000)],
        )
        self.scm.CommitKey(scm_pb2.CommitKeyRequest(client_id="client", keys=[key]))
        self.scm.EndWriteSession(scm_pb2.EndWriteSessionRequest(client_id="client", close=True))
        return block

    def closed(self, scheme: str = "") -> int:
        """Write a container, and wait until it is closed; return its id."""
        block = self.write(scheme)
        number = int(block.block_id.container_id)
        holders = [endpoint.datanode_id for endpoint in block.replicas]

        def is_closed() -> bool:
            for name in holders:
                self.all[name].heartbeat()
                self.all[name].obey_closes(root=7)
            asked = scm_pb2.GetContainerInfoRequest(container_id=number)
            return self.scm.GetContainerInfo(asked).container.state == "CLOSED"

        wait_until(is_closed)
        return number

    def ordered(self, kind: str, *silent: str) -> dict[str, scm_pb2.Command]:
        """Send heartbeats of all datanodes except `silent`; return the commands of one kind that
        datanodes have received, by datanode."""
        for name in sorted(self.all.keys() - set(silent)):
            self.all[name].heartbeat()
        return {
            name: command
            for name, node in self.all.items()
            for command in node.commands
            if command.WhichOneof("command") == kind
        }

    def wait_for(self, kind: str, count: int, *silent: str) -> dict[str, scm_pb2.Command]:
        """Wait until `count` datanodes have a command of one kind. Return these commands by
        datanode, and discard all received commands."""
        wait_until(lambda: len(self.ordered(kind, *silent)) == count)
        found = self.ordered(kind, *silent)
        for node in self.all.values():
            node.commands.clear()
        return found
