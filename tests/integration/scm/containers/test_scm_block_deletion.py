"""Keys that are deleted: blocks go on every replica, whatever is lost on the way."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from scm.api.call_values import HeartbeatAnswer
from scm.containers import block_deletion
from scm.containers.block_deletion import UNEVEN_S
from scm.state.database import StateChange
from scm.state.entities import (
    CommandKind,
    CommandOutcome,
    Container,
    ContainerState,
    DeleteTransaction,
    OutcomeState,
    PendingCommand,
    Replica,
)
from scm.state.options import ScmOptions
from suture.errors import Code, UnavailableError
from tests.support.control.coded_world import NODES as CODED_NODES
from tests.support.control.coded_world import OPTIONS, closed, orders
from tests.support.control.scm_world import ScmWorld, key, outcome, replica

NODES = ("dn1", "dn2", "dn3")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """Three nodes that stay healthy without calling."""
    options = ScmOptions(stale_after_ms=1_000_000, dead_after_ms=2_000_000, check_interval_ms=1_000)
    with ScmWorld(tmp_path, options).running() as made:
        made.join(*NODES)
        yield made


def sent(world: ScmWorld, node: str, *reports: Replica) -> list[PendingCommand]:
    """Let a node call; return its deletes of blocks."""
    commands = [command for command, _named in world.beat(node, *reports).commands]
    return [command for command in commands if command.kind is CommandKind.DELETE_BLOCKS]


def done(command: PendingCommand) -> CommandOutcome:
    """Answer a command as done."""
    acknowledged = tuple((t.container_id, t.transaction_id) for t in command.transactions)
    return replace(outcome(command), acknowledged=acknowledged)


def transactions(world: ScmWorld) -> list[DeleteTransaction]:
    """Return what is owed."""
    return world.state.transactions.values()


def name_of(world: ScmWorld) -> str:
    """Return the only key."""
    (only,) = world.state.keys.values()
    return only.name


def test_every_holder_is_told_until_it_acknowledges(world: ScmWorld) -> None:
    """The key is gone at once; the transaction when all three have answered."""
    made = world.made_closed()
    (deletion,) = world.control.deletions.delete_keys([name_of(world)], dry_run=False)
    assert ("OK", 10, 1) == (deletion.code, deletion.size_bytes, len(deletion.transaction_ids))
    assert 0 == len(world.state.keys)

    for left, node in ((1, "dn1"), (1, "dn2"), (0, "dn3")):
        (command,) = sent(world, node)
        assert [(1, (1,))] == [(t.container_id, t.local_ids) for t in command.transactions]
        assert [] == sent(world, node)  # once, while it is at it
        world.beat(node, outcomes=(done(command),))
        assert left == len(transactions(world))
    assert made.container_id == 1


def test_a_delete_that_fails_is_ordered_again_with_growing_pauses(world: ScmWorld) -> None:
    """The pauses concern one datanode with a full disk. The others, and other containers, get
    their commands at once. The outcome of a command is decided by its transactions.
    """
    world.made_closed()
    world.control.deletions.delete_keys([name_of(world)], dry_run=False)
    ordered_at_s: list[float] = []
    for state in (OutcomeState.FAILED, OutcomeState.EXECUTED) * 3:
        while not (commands := sent(world, "dn1")):
            world.clock.advance_s(0.5)
        ordered_at_s.append(world.clock.monotonic_s())
        refused = replace(outcome(commands[0], state), code=Code.DISK_OUT_OF_SPACE)
        world.beat("dn1", outcomes=(refused,))
        assert [] == sent(world, "dn1")
    pauses_s = [after - before for before, after in pairwise(ordered_at_s)]

    assert [1.0, 2.0, 4.0, 8.0, 16.0] == pauses_s
    for node in ("dn2", "dn3"):
        (command,) = sent(world, node)
        world.beat(node, outcomes=(done(command),))
    world.clock.advance_s(32)
    (command,) = sent(world, "dn1")
    world.beat("dn1", outcomes=(done(command),))
    assert [] == transactions(world)
    told = world.state.outcome(command.command_id)
    assert told is not None
    assert OutcomeState.EXECUTED is told.state


def test_datanode_without_pending_deletes_costs_no_lookups(
    world: ScmWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every heartbeat of every datanode asks, and the pending deletes of another datanode may
    stay for weeks.
    """
    made = world.made_closed()
    dead_end = replace(world.state.replicas.of(made.container_id)[2], load_error="its disk is gone")
    world.beat("dn3", dead_end)
    world.control.deletions.delete_keys([name_of(world)], dry_run=False)
    for node in NODES:
        for command in sent(world, node):
            world.beat(node, outcomes=(done(command),))
    looks: list[str] = []
    look = block_deletion.BlockDeletion._unacknowledged

    def counted(
        deletion: block_deletion.BlockDeletion, container_id: int, node: str
    ) -> list[DeleteTransaction]:
        looks.append(node)
        return look(deletion, container_id, node)

    monkeypatch.setattr(block_deletion.BlockDeletion, "_unacknowledged", counted)
    for _ in range(3):
        for node in NODES:
            world.call(node)

    assert len(looks) <= len(NODES), "once after the last change, and never again"
    assert 1 == len(transactions(world))
    [command] = sent(world, "dn3", replace(dead_end, load_error=""))
    assert [made.container_id] == [t.container_id for t in command.transactions]


def test_unacknowledged_deletes_are_sent_again_after_a_restart(world: ScmWorld) -> None:
    """The datanode and the control plane restart. The transaction is durable, and the command is
    not.
    """
    world.made_closed()
    world.control.deletions.delete_keys([name_of(world)], dry_run=False)
    sent(world, "dn1")
    (second,) = sent(world, "dn2")
    world.beat("dn2", outcomes=(done(second),))

    world.restart()
    world.join(*NODES, boot_id=2)
    world.control.safe_mode.leave()
    again = {node: [c.kind for c, _named in world.call(node, boot_id=2).commands] for node in NODES}

    assert {
        "dn1": [CommandKind.DELETE_BLOCKS],
        "dn2": [],
        "dn3": [CommandKind.DELETE_BLOCKS],
    } == again


def test_a_copy_made_meanwhile_is_told_too(world: ScmWorld) -> None:
    """A replica that was copied before the delete still has the blocks."""
    made = world.made_closed()
    world.join("dn4")
    world.control.deletions.delete_keys([name_of(world)], dry_run=False)
    for node in NODES[:2]:
        world.beat(node, outcomes=(done(sent(world, node)[0]),))
    copy = replica("dn4", container_id=made.container_id, bcsid=made.sequence_id)
    (command,) = sent(world, "dn4", copy)
    world.beat("dn3", outcomes=(done(sent(world, "dn3")[0]),))

    assert 1 == len(transactions(world))
    world.beat("dn4", outcomes=(done(command),))
    assert [] == transactions(world)


def test_an_open_container_is_left_alone_until_it_is_closed(world: ScmWorld) -> None:
    """Its writer is still at it."""
    world.write("a", "k", 10)
    world.control.deletions.delete_keys(["k"], dry_run=False)
    before = [sent(world, node) for node in NODES]
    world.control.clients.finish("a", close=True)
    closed = [sent(world, node, replica(node, container_id=1, bcsid=1)) for node in NODES]

    assert [[], [], []] == before
    assert [1, 1, 1] == [len(commands) for commands in closed]


def test_a_replaced_key_gives_its_old_blocks_back(world: ScmWorld) -> None:
    """The blocks of a replaced key are released like those of a deleted key."""
    world.write("a", "k", 10)
    blocks = world.control.clients.allocate("a", [20])
    world.control.clients.commit("a", [key("k", blocks, [20])], may_replace=True, failed=())

    assert [(1, (1,))] == [(t.container_id, t.local_ids) for t in transactions(world)]


def test_an_emptied_container_is_deleted_everywhere(world: ScmWorld) -> None:
    """First its blocks, then each replica, without force; then it is DELETED, and what was deleted
    in it is forgotten."""
    made = world.made_closed()
    world.control.deletions.delete_keys([name_of(world)], dry_run=False)
    for node in NODES:
        (command,) = sent(world, node)
        empty = replica(node, container_id=made.container_id, bcsid=made.sequence_id)
        answer = world.beat(node, replace(empty, is_empty=True), outcomes=(done(command),))
    states = [state_of(world, made)]
    remembered = [len(world.state.deleted_in(made.container_id))]
    for node in reversed(NODES):
        ((command, _named),) = answer.commands or world.call(node).commands
        answer = HeartbeatAnswer(is_known=True)
        assert (CommandKind.DELETE, False) == (command.kind, command.force)
        world.beat(node, full=True, outcomes=(outcome(command),))
    states.append(state_of(world, made))
    remembered.append(len(world.state.deleted_in(made.container_id)))

    assert [ContainerState.DELETING, ContainerState.DELETED] == states
    assert [1, 0] == remembered
    assert 0 == len(world.state.commands)
    world.control.tick()
    assert () == world.call("dn1").commands


def test_replicas_that_claim_to_be_empty_stay_while_a_key_needs_them(world: ScmWorld) -> None:
    """All three lost their index, perhaps: nothing of that is deleted."""
    made = world.made_closed()
    for node in NODES:
        lost = replica(node, container_id=made.container_id, bcsid=made.sequence_id)
        world.beat(node, replace(lost, is_empty=True))
    world.control.tick()

    assert ContainerState.CLOSED is state_of(world, made)
    assert [] == [c for c in world.state.commands.values() if c.kind is CommandKind.DELETE]


def fail_deletes(world: ScmWorld, node: str, answer: HeartbeatAnswer) -> int:
    """Answer that no replica could be deleted; return how many were to be."""
    deletes = [command for command, _ in answer.commands if command.kind is CommandKind.DELETE]
    failed = [outcome(command, OutcomeState.FAILED, code="BUSY") for command in deletes]
    world.beat(node, outcomes=tuple(failed))
    return len(deletes)


def test_a_delete_of_an_empty_replica_that_failed_is_ordered_again(tmp_path: Path) -> None:
    """After a pause, also where nothing proves that the container itself is empty."""
    options = ScmOptions(stale_after_ms=1_000_000, dead_after_ms=2_000_000, close_retry_ms=1_000)
    with ScmWorld(tmp_path, options).running() as world:
        world.join(*NODES)
        made = world.made_closed()
        with world.state.change() as change:
            change.put(world.state.containers, replace(made, allocated_bcsid=2))
        world.control.deletions.delete_keys([name_of(world)], dry_run=False)
        for node in NODES:
            world.beat(node, outcomes=(done(sent(world, node)[0]),))
            empty = replace(replica(node, bcsid=made.sequence_id + 1), is_empty=True)
            fail_deletes(world, node, world.beat(node, empty, full=True))
        counts = dict.fromkeys(NODES, 0)
        for _second in range(60):
            world.clock.advance_s(1)
            world.control.tick()
            for node in NODES:
                counts[node] += fail_deletes(world, node, world.call(node))

        assert ContainerState.CLOSED is state_of(world, made)
        assert min(counts.values()) >= 2


def state_of(world: ScmWorld, made: Container) -> ContainerState:
    """Return a container's state now."""
    now = world.state.containers.get(made.container_id)
    assert now is not None
    return now.state


def test_unknown_keys_are_named_and_a_dry_run_changes_nothing(world: ScmWorld) -> None:
    """There is one decision for each name, in order."""
    world.write("a", "k", 10)

    trial = world.control.deletions.delete_keys(["k", "nope"], dry_run=True)

    assert [("k", "OK"), ("nope", "KEY_NOT_FOUND")] == [(d.name, d.code) for d in trial]
    assert (1, []) == (len(world.state.keys), transactions(world))


class TestManyDeletesOfOneContainer:
    """A container may have a million small keys, and a client may delete them one by one."""

    def made_with(self, world: ScmWorld, count: int) -> list[str]:
        """Write so many keys into one container that is closed then; return their names."""
        blocks = world.control.clients.allocate("a", [10] * count)
        names = [f"small-{number}" for number in range(count)]
        keys = [key(name, [block], [10]) for name, block in zip(names, blocks, strict=True)]
        world.control.clients.commit("a", keys, may_replace=False, failed=())
        world.control.clients.finish("a", close=True)
        for node in NODES:
            reported = replica(node, container_id=1, bcsid=count)
            world.execute(node, world.beat(node, reported))
        return names

    def delete_each(self, world: ScmWorld, names: list[str]) -> None:
        """Delete keys with a call for each."""
        for name in names:
            world.control.deletions.delete_keys([name], dry_run=False)

    def test_unsent_deletes_of_a_container_form_one_transaction(self, world: ScmWorld) -> None:
        """A command takes a hundred transactions. With one block in each, a million blocks would
        take days of heartbeats, each of which walks over the rest.
        """
        names = self.made_with(world, 30)

        self.delete_each(world, names)

        [command] = sent(world, "dn1")
        assert 1 == len(transactions(world))
        assert [30] == [len(set(t.local_ids)) for t in command.transactions]

    def test_a_transaction_is_no_larger_than_a_datanode_takes(
        self, world: ScmWorld, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """
        A datanode executes one in a step; and each block is in exactly one.
        """
        monkeypatch.setattr(block_deletion, "BLOCKS_PER_TRANSACTION", 4)
        names = self.made_with(world, 10)

        deletions = world.control.deletions.delete_keys(names, dry_run=False)

        made = transactions(world)
        assert [2, 4, 4] == sorted(len(t.local_ids) for t in made)
        assert list(range(1, 11)) == sorted(b for t in made for b in t.local_ids)
        of_block = {local_id: t.transaction_id for t in made for local_id in t.local_ids}
        assert [(of_block[i],) for i in range(1, 11)] == [d.transaction_ids for d in deletions]

    def test_sent_transaction_is_not_extended(self, world: ScmWorld) -> None:
        """A datanode acknowledges what it received. A block added later would count as deleted,
        and would stay on its disk for ever.
        """
        first, second, third = self.made_with(world, 3)
        self.delete_each(world, [first])
        [command] = sent(world, "dn1")

        self.delete_each(world, [second])
        world.restart()
        world.join(*NODES, boot_id=2)
        self.delete_each(world, [third])
        world.control.safe_mode.leave()
        world.call("dn1", outcomes=(done(command),), boot_id=2)

        assert [(1,), (2,), (3,)] == [t.local_ids for t in transactions(world)]
        assert [(1,)] == [t.local_ids for t in transactions(world) if t.acknowledged_by]

    def test_rolled_back_transaction_is_not_extended(
        self, world: ScmWorld, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A delete that failed on a full disk leaves the key. The next one deletes its own block
        only.
        """
        first, second = self.made_with(world, 2)
        with monkeypatch.context() as broken:
            broken.setattr(world.state, "_commit", _disk_is_full)
            with pytest.raises(UnavailableError):
                self.delete_each(world, [first])

        self.delete_each(world, [second])

        assert [(2,)] == [t.local_ids for t in transactions(world)]

    def test_a_heartbeat_takes_no_more_steps_where_more_is_deleted(
        self, world: ScmWorld, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """
        All of it is done under the lock. It was the square of what was deleted: after some thousand
        deletes no call of anybody was answered any more.
        """
        monkeypatch.setattr(block_deletion, "BLOCKS_PER_TRANSACTION", 1)
        names = self.made_with(world, 300)
        looks = {}
        for count in (5, 80):
            self.delete_each(world, [names.pop() for _ in range(count)])
            seen = looked_at(monkeypatch, world)
            for node in NODES:
                [command] = sent(world, node)
                assert count == len(command.transactions)
                world.beat(node, outcomes=(done(command),))
            assert [] == transactions(world)
            looks[count] = len(seen)

        assert looks[5] == looks[80]


def looked_at(monkeypatch: pytest.MonkeyPatch, world: ScmWorld) -> list[int]:
    """Return a list that grows by a container each time all of its transactions are gone
    through."""
    seen: list[int] = []
    through = type(world.state.transactions).of

    def counted(container_id: int) -> list[DeleteTransaction]:
        seen.append(container_id)
        return through(world.state.transactions, container_id)

    monkeypatch.setattr(world.state.transactions, "of", counted)
    return seen


def _disk_is_full(_change: StateChange) -> None:
    raise UnavailableError(Code.DISK_OUT_OF_SPACE, "the disk is full")


class TestConfirming:
    def delete_everywhere(self, world: ScmWorld) -> None:
        """Delete the only key, and have all three holders say that they did."""
        world.control.deletions.delete_keys([name_of(world)], dry_run=False)
        for node in NODES:
            world.beat(node, outcomes=(done(sent(world, node)[0]),))

    def test_a_delete_that_was_ordered_is_known_while_it_is_owed(self, world: ScmWorld) -> None:
        """From the moment the key is gone; before it, the key names the block."""
        world.made_closed()
        before = world.control.datanodes.confirm_deletes(1, [1, 2])

        world.control.deletions.delete_keys([name_of(world)], dry_run=False)

        assert (frozenset(), {1}) == before
        assert ({1}, frozenset()) == world.control.datanodes.confirm_deletes(1, [1, 2])

    def test_confirmed_deletes_are_known_after_a_restart(self, world: ScmWorld) -> None:
        """A datanode whose replica was away may ask a year later."""
        world.made_closed()
        self.delete_everywhere(world)
        assert [] == transactions(world)

        world.restart()

        assert ({1}, frozenset()) == world.control.datanodes.confirm_deletes(1, [1, 2])
        assert (frozenset(), frozenset()) == world.control.datanodes.confirm_deletes(2, [1])


class TestAShardThatMissedADelete:
    """Its datanode was away, and in no books, when the others acknowledged."""

    @pytest.fixture
    def coded(self, tmp_path: Path) -> Iterator[ScmWorld]:
        """Six nodes for five shards, of which the second was reported by nobody."""
        with ScmWorld(tmp_path, OPTIONS).running() as made:
            made.join(*CODED_NODES)
            yield made

    def report(self, world: ScmWorld, node: str, index: int, *, block_count: int) -> None:
        """Let a node report its shard."""
        shard = replica(node, container_id=1, bcsid=1, replica_index=index)
        world.beat(node, replace(shard, block_count=block_count))

    def deleted(self, world: ScmWorld, *, after_s: float = UNEVEN_S) -> list[str]:
        """Let all delete what they are told to; return who was."""
        world.control.tick()
        world.clock.advance_s(after_s)
        commands = [c for node in CODED_NODES for c, _named in world.call(node).commands]
        commands += [command for command, _named in orders(world, CommandKind.DELETE_BLOCKS)]
        mine = [command for command in commands if command.kind is CommandKind.DELETE_BLOCKS]
        for command in mine:
            world.beat(command.datanode_id, outcomes=(done(command),))
        return sorted(command.datanode_id for command in mine)

    def test_is_told_when_it_comes_back_with_more_blocks(self, coded: ScmWorld) -> None:
        """Once: that it has more for another reason is not asked for ever."""
        nodes, _id = closed(coded, lost=[2])
        kept = [(index, node) for index, node in enumerate(nodes, start=1) if index != 2]
        first = self.deleted(coded)
        for index, node in kept:
            self.report(coded, node, index, block_count=0)
        before = self.deleted(coded)

        self.report(coded, nodes[1], 2, block_count=1)
        soon = self.deleted(coded, after_s=0)
        again = self.deleted(coded)
        once_more = self.deleted(coded)
        self.report(coded, nodes[1], 2, block_count=2)
        changed = self.deleted(coded)

        assert sorted(node for _index, node in kept) == first
        assert [] == before
        assert [] == soon
        assert sorted(nodes) == again
        assert [] == once_more
        assert sorted(nodes) == changed
        assert [] == list(transactions(coded))
        assert [1] == [len(coded.state.deleted_in(1))]

    def test_uneven_shards_are_checked_in_portions(
        self, coded: ScmWorld, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """All have their turn, also those that are added meanwhile."""
        monkeypatch.setattr(block_deletion, "UNEVEN_PER_TURN", 2)
        choose = coded.control.deletions._next_uneven

        turns = [list(choose({5, 1, 3})), list(choose({5, 1, 3, 4})), list(choose({1, 3}))]
        turns += [list(choose({1, 3})), list(choose(set()))]

        assert [[1, 3], [4, 5], [], [1, 3], []] == turns
