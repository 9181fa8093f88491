"""Schedules under a control plane, with four complete agents and all their worker loops."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from random import Random
from typing import Final

import grpc

from merkle.replica import Bcsid, BlockData, BlockId, ContainerId
from suture.client.container_discovery import fetch_contents
from suture.errors import SutureError
from suture.wire.clients.peer import Peer
from suture.wire.clients.scm import ScmClient
from suture.wire.mapping import codec
from suture.wire.v1 import container_pb2, scm_pb2
from tools.simulation.actions import (
    block_of,
    content,
    rot_at,
    rot_tree_at,
    write_block,
)
from tools.simulation.cluster import PLAIN, QUICK
from tools.simulation.events import IN_SERVICE, NODES, WANTED, Event, Kind
from tools.simulation.machine import Machine
from tools.simulation.oracle import Held, Truth
from tools.simulation.simulated_os.fibers import Fiber
from tools.simulation.stage import ScheduleRun
from tools.simulation.whole_cluster.events import FORKED, SEEDS_ROUND, TWINS
from tools.simulation.whole_cluster.machines import (
    OPTIONS,
    RIVAL_ADDRESS,
    SCM_ADDRESS,
    LedNode,
    ScmMachine,
    around,
)
from tools.simulation.whole_cluster.oracle import LedOracle

MAJORITY: Final = OPTIONS.replication_factor // 2 + 1
BURST_S: Final = (2.0, 45.0)
PUTS_A_CLIENT: Final = 3  # sharing a container
LOOKS_MAX: Final = 80  # checks in the quiet phase
LOOK_S: Final = 30.0
SNAPSHOT_POINTS_MAX: Final = 200


class LedRun(ScheduleRun):
    """A schedule of a whole cluster."""

    oracle_of = LedOracle

    def __init__(self, seed: int, root: Path, *, traced: bool) -> None:
        self.led = self.oracle_of((), keeps_replicas=False)
        super().__init__(seed, root, self.led, traced=traced)
        ground = (self.scheduler, self.kernel, self.network)
        self.nodes = [LedNode(number, root, *ground) for number in range(NODES)]
        self.scm = ScmMachine(root, *ground)
        self.machines = [*self.nodes, self.scm]
        self.oracle.nodes = self.nodes
        self._keys: dict[str, tuple[int, int]] = {}
        self._leaver: LedNode | None = None
        self._older: bytes | None = None
        self._since_snapshot: set[str] = set()  # keys that the earlier state does not contain
        self._is_outdated = False
        self._rival: ScmMachine | None = None  # a second control plane, on a copy of the state
        self._unreported: set[str] = set()  # datanodes that were off when the SCM started
        if seed % SEEDS_ROUND in TWINS:
            twin = LedNode(len(self.machines), root, *ground)
            twin.advertised = self.nodes[0].address
            self.machines.append(twin)
        if seed % SEEDS_ROUND in FORKED:
            self._rival = ScmMachine(root, *ground, RIVAL_ADDRESS)
            for node in self.nodes:
                node.scm_addresses = [SCM_ADDRESS, RIVAL_ADDRESS]

    def surroundings(self) -> AbstractContextManager[None]:
        """Return the replacements around whole agents."""
        return around(self.scheduler, self.network, self.machines)

    def prepared(self) -> None:
        """Start the control plane, then the agents."""
        if self._rival is not None:  # its state is replaced before it starts again
            self.start(self._rival)
            self._rival.stop()
        self.start(self.scm)
        assert self.scm.control is not None, "nothing can go wrong yet"
        for node in self.machines:
            if isinstance(node, LedNode):
                node.cluster_id = self.scm.control.state.cluster_id
                self.start(node)
        self._unreported.clear()
        self.scheduler.sleep(3 * OPTIONS.heartbeat_interval_ms / 1000)
        hosts = sum(isinstance(machine, LedNode) for machine in self.machines)
        self.count("datanodes refused", hosts - len(self.scm.control.state.nodes))

    def start(self, node: Machine) -> None:
        """Start a machine."""
        super().start(node)
        if node is self.scm:
            self._unreported = {one.name for one in self.nodes if not one.is_up}

    def actions(self) -> Mapping[Kind, Callable[[Event], None]]:
        """Return the actions of clients, operators and disks, by kind of event."""
        return {
            Kind.WRITE: self._put,
            Kind.DELETE: self._delete,
            Kind.ROT: self._rot,
            Kind.ROT_TREE: self._rot_tree,
            Kind.ROT_ROW: self._rot_row,
            Kind.DEPART: self._depart,
            Kind.LEAVE: self._doom,
            Kind.SNAPSHOT: self._take_snapshot,
            Kind.FORK: self._fork,
        }

    def let_pass(self, fibers: Sequence[Fiber]) -> None:
        """Wait for the clients. Then let simulated time pass, so that the worker loops run."""
        self.scheduler.block(lambda: all(fiber.has_ended for fiber in fibers))
        self.scheduler.sleep(self.dice.uniform(*BURST_S))

    def prepare(self, event: Event) -> None:
        """Install the faults of an event, or restart the control plane on the earlier copy of its
        state."""
        super().prepare(event)
        if event.kind is Kind.PUT_BACK and self._older is not None:
            self._end(self.scm)
            self.scm.put_back(self._older)
            self._is_outdated = True
            self.count("older states put back")
            self.start(self.scm)

    def settle(self) -> None:
        """Wait until everything is healed, or the limit of checks is reached."""
        if self._leaver is not None:
            self._let_go(self._leaver)
        if self._rival is not None:
            self._remove(self._rival)
        if self._is_outdated:
            self._recover()
        for _ in range(LOOKS_MAX):
            self.scheduler.sleep(LOOK_S)
            with suppress(SutureError):  # the control plane is starting
                self.led.out = self._out_of_service()
            with self.kernel.quiet():
                if self.led.is_settled():
                    return

    def finished(self) -> None:
        """Check that each committed key exists. Keys that an earlier state or the state of the
        other control plane did not contain are excepted: the blocks do not name their keys, so only
        their bytes must remain."""
        super().finished()
        scm = ScmClient(SCM_ADDRESS, security=PLAIN)
        gone = self._since_snapshot if self._is_outdated else set()
        for key, place in self._keys.items():
            if key in gone:
                continue
            try:
                scm.lookup_key(scm_pb2.LookupKeyRequest(key=key))
            except SutureError as error:
                self.led.lost_key(key, place, error)

    # Operators.

    def _take_snapshot(self, event: Event) -> None:
        """Copy the control plane's state at a random moment, possibly between the allocation of a
        block and its commit."""
        for _ in range(event.seed % SNAPSHOT_POINTS_MAX):
            self.scheduler.point("wait")
        if self.scm.is_up:
            self._older = self.scm.state_now()
            self._since_snapshot.clear()

    def _fork(self, event: Event) -> None:
        """Start a second control plane on a copy of the state of the first one, which runs on."""
        self._take_snapshot(event)
        if self._older is not None and self._rival is not None:
            self._rival.put_back(self._older)
            self._is_outdated = True
            self.count("states forked")
            self.machines.append(self._rival)
            self.start(self._rival)

    def _recover(self) -> None:
        """Recover the control plane with data of its datanodes, as `suture scm recover` does."""
        scm = ScmClient(SCM_ADDRESS, security=PLAIN)
        for _ in range(LOOKS_MAX):
            self.scheduler.sleep(LOOK_S)
            with self.judged("recovery"):
                state = scm.get_restore_recovery(scm_pb2.GetRestoreRecoveryRequest())
                if not state.restored:
                    return
                if state.missing_datanode_ids:
                    continue
                last = max((self._adopt(scm, one) for one in state.container_ids), default=0)
                scm.recover_from_restore(
                    scm_pb2.RecoverFromRestoreRequest(finish=True, last_local_id=last)
                )
                self.count("recoveries")
                return

    def _adopt(self, scm: ScmClient, container_id: int) -> int:
        """Let the control plane adopt a container; return the last id of its blocks."""
        asked = scm_pb2.GetContainerInfoRequest(container_id=container_id)
        info = scm.get_container_info(asked).container
        found = fetch_contents(
            info, lambda node: Peer(node.address, timeouts=QUICK, security=PLAIN)
        )
        part = scm_pb2.RecoveredContainer(
            container_id=container_id, scheme=found.scheme, deleted_local_ids=found.deleted
        )
        scm.recover_from_restore(scm_pb2.RecoverFromRestoreRequest(containers=[part]))
        return found.last_local_id

    def _depart(self, event: Event) -> None:
        """Send an operator's request for an operational state. If another datanode is still out of
        service because the request for its return was lost, first send that request again."""
        name, wanted = self.nodes[event.node].name, WANTED[event.amount]
        if wanted != IN_SERVICE:
            for other in self._out_of_service().keys() - {name}:
                self._order(other, IN_SERVICE)
        self._order(name, wanted)

    def _order(self, name: str, wanted: str) -> None:
        scm = ScmClient(SCM_ADDRESS, security=PLAIN)
        request = scm_pb2.SetOperationalStatesRequest(datanode_ids=[name], op_state=wanted)
        [decision] = scm.set_operational_states(request).decisions
        self.note(f"   {name} {wanted}: {decision.code} {decision.message}")
        self.count(f"orders to be {wanted}: {decision.code}")

    def _out_of_service(self) -> dict[str, str]:
        """Return the datanodes that are not in service, with their state."""
        nodes = ScmClient(SCM_ADDRESS, security=PLAIN).list_nodes(scm_pb2.ListNodesRequest()).nodes
        return {node.datanode_id: node.op_state for node in nodes if node.op_state != IN_SERVICE}

    # Clients.

    def _put(self, event: Event) -> None:
        parts = content(event)
        name, client = f"key-{event.block}", f"client-{event.block // PUTS_A_CLIENT}"
        is_rival = self._rival in self.machines and event.seed % 2 == 1
        scm = ScmClient(RIVAL_ADDRESS if is_rival else SCM_ADDRESS, security=PLAIN)
        size = sum(map(len, parts))
        request = scm_pb2.AllocateBlocksRequest(client_id=client, sizes=[size], keys=[name])
        [promised] = scm.allocate_blocks(request).blocks
        place = (promised.block_id.container_id, promised.block_id.local_id)
        truth = Truth(b"".join(parts))
        self.oracle.blocks.setdefault(place, truth)  # forked control planes assign an id twice
        failed = [
            replica.datanode_id
            for replica in promised.replicas
            if not self._write(event, promised, replica, parts)
        ]
        if len(promised.replicas) - len(failed) >= MAJORITY:
            key = scm_pb2.KeyInfo(
                key=name,
                size=size,
                created_at_ms=event.block,
                blocks=[scm_pb2.BlockLocation(block_id=promised.block_id, length=size)],
            )
            left = [scm_pb2.FailedReplica(container_id=place[0], datanode_id=one) for one in failed]
            scm.commit_key(scm_pb2.CommitKeyRequest(client_id=client, keys=[key], failed=left))
            truth.is_whole_somewhere = True
            self.oracle.blocks[place] = truth
            self._keys[name] = place
            if is_rival or self._rival is None:
                self._since_snapshot.add(name)
            self.count("keys")
            self.count("keys of forked states", self._rival in self.machines)
            if any(one.name in self._unreported and not one.is_up for one in self.nodes):
                self.count("keys while a host was away since the start")
        is_last = event.block % PUTS_A_CLIENT == PUTS_A_CLIENT - 1  # others close when idle
        if is_last:
            scm.end_write_session(scm_pb2.EndWriteSessionRequest(client_id=client, close=True))

    def _write(
        self,
        event: Event,
        promised: scm_pb2.BlockAllocation,
        replica: container_pb2.DatanodeEndpoint,
        parts: list[bytes],
    ) -> bool:
        """Write a block to one of its datanodes; return True if the datanode acknowledged it."""
        peer = Peer(replica.address, timeouts=QUICK, security=PLAIN)
        container_id = codec.parse_container_id(promised.block_id.container_id)
        block = BlockData(
            BlockId(promised.block_id.local_id),
            Bcsid(promised.block_id.bcsid),
            block_of(event, parts).chunks,
        )
        try:
            way = write_block(peer, container_id, block, parts, event.seed)
        except (grpc.RpcError, SutureError) as error:
            self.note(f"   write to {replica.datanode_id} failed: {error}")
            return False
        self.count(f"blocks written {way}")
        return True

    def _delete(self, event: Event) -> None:
        key = f"key-{event.block}"
        place = self._keys.pop(key, None)
        if place is not None:
            self.oracle.ordered(*place)
            self.count("keys deleted")
            scm = ScmClient(SCM_ADDRESS, security=PLAIN)
            scm.delete_keys(scm_pb2.DeleteKeysRequest(keys=[key]))

    # Media and hosts.

    def _doom(self, event: Event) -> None:
        self._leaver = self.nodes[event.node]

    def _let_go(self, node: LedNode) -> None:
        """Stop a datanode permanently, if each block is intact on other datanodes."""
        with self.kernel.quiet():
            if not self.led.may_leave(node.name):
                return
        self.count("datanodes that never came back")
        self._remove(node)
        self.nodes = [one for one in self.nodes if one is not node]
        self.oracle.nodes = self.nodes

    def _remove(self, machine: Machine) -> None:
        """Stop a machine for good."""
        self.note(f"-- {machine.name} is gone for good")
        self._end(machine)
        self.machines = [one for one in self.machines if one is not machine]

    @staticmethod
    def _end(machine: Machine) -> None:
        """Kill the process of a machine, if it runs."""
        if machine.life is not None:
            machine.kill()
            machine.bury(None)

    def _rot_row(self, event: Event) -> None:
        places = sorted(self.oracle.blocks)
        if places:
            self._lose_row(self.nodes[event.node], *Random(event.seed).choice(places))

    def _lose_row(self, node: LedNode, container: int, block: int) -> None:
        """Make a datanode's index lose the row of a block, if enough other datanodes have the
        block."""
        place = Held(node.name, container, block)
        with self.kernel.quiet():
            may_lose = node.is_up and self.led.may_lose_row(place)
        if not may_lose or place in self.led.rowless:
            return
        owner, block_id = ContainerId(container), BlockId(block)
        with self.kernel.quiet(), node.running(), suppress(SutureError):  # it may not be there
            index = node.store._volume(owner).index
            self.led.loses_row(place)  # first: others ask meanwhile what may be harmed
            if not index.write(lambda change: change.delete_block(owner, block_id)):
                self.led.rowless.discard(place)
            else:
                self.count("rot: row")
                self.note(
                    f"-- rot of the row of block {block} of container {container} on {node.name}"
                )

    def _rot(self, event: Event) -> None:
        places = sorted(self.oracle.blocks)
        if places:
            container, block = Random(event.seed).choice(places)
            rot_at(self, self.nodes[event.node], container, block, event.seed)

    def _rot_tree(self, event: Event) -> None:
        rot_tree_at(self, self.nodes[event.node], event.container, event.seed)
