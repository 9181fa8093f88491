"""Deletes keys, their blocks, and the containers that become empty.

- `suture rm` removes a key. In the same change, one delete transaction per container records the
  blocks to delete.
- Each datanode with a replica of the container gets the transaction in a delete_blocks command. The
  control plane repeats the command until the datanode acknowledges the transaction.
- When every replica of a container is empty, the container is deleted.

A transaction ends when the datanodes of all recorded replicas have acknowledged it and no older
copy is in flight. The ids of the deleted blocks are kept as long as the container exists. If a peer
has a tombstone that a datanode lacks, the datanode asks the control plane, and deletes the block
only if the control plane has ordered its delete.

If only dead datanodes have not acknowledged a transaction, it delays nothing. It waits until the
datanodes return, or until their replica records are removed.
"""

import hashlib
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from math import inf
from operator import itemgetter
from typing import Final

import numpy as np
import structlog

from merkle.replica import TREE_STATES
from scm.cluster import lifecycle
from scm.cluster.container_context import LEAVING
from scm.cluster.decision_context import ControlComponent, DecisionContext
from scm.containers.empty_container_rules import RETURNED, next_step
from scm.state.database import StateChange
from scm.state.entities import (
    CommandKind,
    CommandOutcome,
    Container,
    ContainerState,
    DeletedBlocks,
    DeleteTransaction,
    Key,
)
from suture.errors import Code, UnavailableError

TRANSACTIONS_PER_COMMAND: Final = 100
BLOCKS_PER_COMMAND: Final = 20_000
BLOCKS_PER_TRANSACTION: Final = 1_000
UNEVEN_S: Final = 60.0  # time after a delete during which replicas may differ in their blocks
UNEVEN_PER_TURN: Final = 200  # while the lock is held
LOOKS_PER_TURN: Final = 2_000  # containers being deleted, while the lock is held
DELETES_PER_TURN: Final = 200  # keys, while the lock is held

_DONE: Final = frozenset({ContainerState.CLOSED, ContainerState.QUASI_CLOSED})
_GONE: Final = frozenset({ContainerState.DELETED})
_GOING: Final = (ContainerState.DELETING, ContainerState.DELETED)  # a set would hash each

_log = structlog.get_logger("suture.scm")


@dataclass(frozen=True, slots=True)
class KeyDeletion:
    """The outcome of deleting one key."""

    name: str
    code: str
    size_bytes: int = 0
    transaction_ids: tuple[int, ...] = ()
    world: int = 0  # fingerprint of the key of this name


def key_fingerprint(key: Key) -> int:
    """Return a number that differs between keys that had the same name at different times.

    It is computed from the creation time and the first block, because a block id is never assigned
    twice. The number is never 0, and does not change at a restart.
    """
    first = [(block.container_id, block.local_id) for block in key.blocks[:1]]
    text = f"{key.created_at_ms} {first}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) or 1


class BlockDeletion(ControlComponent):
    """Deletes keys, blocks and empty containers.

    Callers must hold the control plane's lock, except callers of `delete_keys`.
    """

    def __init__(self, basis: DecisionContext) -> None:
        super().__init__(basis)
        state = basis.state
        self._state = state
        self._unsent: dict[tuple[int, bool], int] = {}
        """The ids of the transactions that were not sent to any datanode.

        The key is the pair of container id and `is_unproven`.
        """
        self._resting = state.settled()  # containers with deletes pending on dead nodes only
        self._stirred = state.dirty_containers()
        self._to_tell: defaultdict[str, dict[int, None]] = defaultdict(dict)
        """For each datanode, the containers for which it may have unacknowledged transactions.

        The containers are in the order of sending.
        """
        self._uneven_at = 0  # the next container to check
        self._uneven: dict[int, tuple[frozenset[tuple[str, int]], float]] = {}  # last seen, due
        self._unfinished: dict[int, None] = {
            container.container_id: None
            for container in state.containers.not_closed()
            if container.state in _GOING and state.replicas.of(container.container_id)
        }

    def delete_keys(
        self,
        names: Sequence[str],
        worlds: Sequence[int] = (),
        *,
        dry_run: bool,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> list[KeyDeletion]:
        """Delete keys at once, and their blocks in the background. Return one outcome per name.

        If `worlds` is not empty, a key is deleted only if its fingerprint is unchanged; otherwise,
        the code of its outcome is STALE_PLAN. The code is KEY_NOT_FOUND if the key does not exist.

        The keys are deleted in portions, so that other calls get the lock in between. Raise
        UnavailableError(CANCELLED) if `is_wanted` returns False before a portion.
        """
        deletions: list[KeyDeletion] = []
        for start in range(0, len(names), DELETES_PER_TURN):
            turn = slice(start, start + DELETES_PER_TURN)
            with self.access.change() as change:
                if not is_wanted():
                    told = f"the caller disconnected: {start} of {len(names)} keys were checked"
                    raise UnavailableError(Code.CANCELLED, told)
                deletions += self._delete_some(change, names[turn], worlds[turn], dry_run=dry_run)
        return deletions

    def _delete_some(
        self, change: StateChange, names: Sequence[str], worlds: Sequence[int], *, dry_run: bool
    ) -> list[KeyDeletion]:
        deletions, gone = [], []
        for number, name in enumerate(names):
            key = self._state.keys.get(name)
            if key is None:
                deletions.append(KeyDeletion(name, Code.KEY_NOT_FOUND))
                continue
            world = key_fingerprint(key)
            if worlds and world != worlds[number]:
                deletions.append(KeyDeletion(name, Code.STALE_PLAN, key.size_bytes, world=world))
                continue
            deletions.append(KeyDeletion(name, "OK", key.size_bytes, world=world))
            if not dry_run:
                change.remove(self._state.keys, name)
                gone.append(key)
        ids = dict(zip([key.name for key in gone], self.retire(change, gone), strict=True))
        return [replace(one, transaction_ids=ids.pop(one.name, ())) for one in deletions]

    def retire(self, change: StateChange, keys: Sequence[Key]) -> list[tuple[int, ...]]:
        """Record delete transactions for the blocks of removed keys.

        Return the transaction ids of each key.
        """
        blocks = sorted(
            (block.container_id, block.local_id, place)
            for place, key in enumerate(keys)
            for block in key.blocks
        )
        ids: list[dict[int, None]] = [{} for _key in keys]
        for container_id, group in groupby(blocks, key=itemgetter(0)):
            there = list(group)
            numbers = self._record(change, container_id, [local_id for _id, local_id, _p in there])
            for (_id, _local_id, place), number in zip(there, numbers, strict=False):
                ids[place][number] = None
        return [tuple(numbers) for numbers in ids]

    def give_up(self, change: StateChange, container: Container) -> None:
        """Delete the allocated but uncommitted blocks of a container that accepts no more commits.

        If the state is outdated, it may lack commits of these blocks. Therefore, datanodes move the
        blocks to quarantine instead of deleting them. If the state was restored from a backup, such
        blocks in containers made before the backup are not deleted, because they may have been
        committed afterwards.
        """
        container_id = container.container_id
        promised = sorted(one.local_id for one in self._state.allocations.of(container_id))
        for local_id in promised:
            change.remove(self._state.allocations, (container_id, local_id))
        is_kept = container.state is not ContainerState.DELETED
        if promised and is_kept and self._state.has_all_commits_of(container_id):
            self._record(change, container_id, promised, is_unproven=True)
            change.on_commit(
                lambda: _log.info(
                    "uncommitted_blocks_discarded",
                    container_id=container_id,
                    block_count=len(promised),
                )
            )

    def resend_deletes(self, change: StateChange, container_ids: Collection[int]) -> None:
        """Send the deletes of these containers again, once after each change of their replicas.

        A datanode may still have deleted blocks if it was away and its replica was not recorded
        when all others acknowledged the delete. For full copies, a reconcile deletes these blocks.
        Shards, and a single remaining replica, are not compared with others, so they need the
        delete again.
        """
        asked = self._left_behind().union(container_ids)
        for container_id in self._uneven.keys() - asked:
            if not self._state.transactions.has_any(container_id):  # else the delete is being sent
                del self._uneven[container_id]
        now_s = self._clock.monotonic_s()
        for container_id in self._next_uneven(asked):
            held = frozenset(
                (replica.datanode_id, replica.block_count)
                for replica in self._state.replicas.of(container_id)
            )
            seen, due_s = self._uneven.get(container_id, (frozenset(), inf))
            if seen != held:  # replicas report a delete one after the other
                self._uneven[container_id] = (held, now_s + UNEVEN_S)
            elif due_s <= now_s:
                self._uneven[container_id] = (held, inf)
                self._begin_again(change, container_id)

    def _left_behind(self) -> set[int]:
        """Return the ids of the CLOSING and QUASI_CLOSED containers that no key needs.

        Their deletes are sent again, because a replica may have a deleted block of which no peer
        has a tombstone.
        """
        blocks_in = self._state.keys.blocks_in
        return {number for number in self._state.containers.closing if not blocks_in(number)}

    def _next_uneven(self, container_ids: Collection[int]) -> Sequence[int]:
        """Return up to UNEVEN_PER_TURN of these containers. Successive calls return all of them.

        There may be very many of them, for example after a disk has lost block records.
        """
        ordered = sorted(container_ids)
        first = bisect_left(ordered, self._uneven_at)
        chosen = ordered[first : first + UNEVEN_PER_TURN]
        self._uneven_at = chosen[-1] + 1 if len(chosen) == UNEVEN_PER_TURN else 0
        return chosen

    def _begin_again(self, change: StateChange, container_id: int) -> None:
        found = self._state.deleted_in(container_id)
        for deleted in found:
            change.remove(self._state.deleted, (container_id, deleted.transaction_id))
            begun = DeleteTransaction(
                deleted.transaction_id,
                container_id,
                deleted.local_ids,
                self._clock.wall_ms(),
                is_unproven=deleted.is_unproven,
            )
            change.put(self._state.transactions, begun)
        if found:
            change.on_commit(
                lambda: _log.info("deletes_resent", container_id=container_id, count=len(found))
            )

    def queue_for_datanode(self, change: StateChange, datanode_id: str) -> None:
        """Queue a delete_blocks command with the transactions that a datanode has not acknowledged.

        Do nothing if the datanode already has such a command.
        """
        if any(
            c.kind is CommandKind.DELETE_BLOCKS for c in self._state.commands.of_node(datanode_id)
        ):
            return
        owed = self._owed_by(datanode_id)
        if owed:
            for transaction in owed:
                self._unsent.pop((transaction.container_id, transaction.is_unproven), None)
            self._commands.queue(
                change,
                CommandKind.DELETE_BLOCKS,
                owed[0].container_id,
                datanode_id,
                why="keys were deleted",
                is_kept=False,  # the transactions are kept on disk
                transactions=owed,
            )

    def acknowledge(self, change: StateChange, outcome: CommandOutcome) -> None:
        """Record the delete transactions that a datanode has executed, as listed in `outcome`.

        End the transactions that no other datanode must execute.
        """
        container_ids: dict[int, None] = {}
        for key in outcome.acknowledged:
            transaction = self._state.transactions.get(key)
            if transaction is None or outcome.datanode_id in transaction.acknowledged_by:
                continue
            known_by = (*transaction.acknowledged_by, outcome.datanode_id)
            change.put(self._state.transactions, replace(transaction, acknowledged_by=known_by))
            container_ids[key[0]] = None
        for container_id in container_ids:  # `finish` checks all transactions of the container
            self.finish(change, container_id)

    def finish(self, change: StateChange, container_id: int) -> None:
        """End the transactions of a container that all its datanodes have acknowledged.

        The ids of the deleted blocks are kept until the container is gone.
        """
        transactions = self._state.transactions.of(container_id)
        container = self._state.containers.get(container_id)
        is_gone = container is None or container.state in _GONE
        if not transactions and not is_gone:
            return
        replicas = self._state.replicas.of(container_id)
        living = {replica.datanode_id for replica in self._nodes.live_replicas(replicas)}
        dead = {replica.datanode_id for replica in replicas} - living
        is_copied = any(
            c.kind is CommandKind.REPLICATE for c in self._state.commands.of_container(container_id)
        )
        if is_gone and not replicas and container is not None:
            for deleted in self._state.deleted_in(container_id):
                change.remove(self._state.deleted, (container_id, deleted.transaction_id))
        is_resting = not is_copied
        for transaction in transactions:
            is_done = bool(living) and living.issubset(transaction.acknowledged_by)
            is_resting &= is_done or not living
            is_owed = not dead.issubset(transaction.acknowledged_by)
            if ((is_done and not is_copied) or (is_gone and not living)) and not is_owed:
                key = (container_id, transaction.transaction_id)
                change.remove(self._state.transactions, key)
                if not is_gone:
                    local_ids = tuple(sorted(transaction.local_ids))
                    change.put(
                        self._state.deleted, DeletedBlocks(*key, local_ids, transaction.is_unproven)
                    )
        if is_resting and self._state.transactions.has_any(container_id):
            self._resting.add(container_id)

    def being_deleted(self, container_id: int) -> frozenset[int]:
        """Return the ids of the blocks in a container whose delete is still pending."""
        transactions = self._state.transactions.of(container_id)
        return frozenset(
            local_id for transaction in transactions for local_id in transaction.local_ids
        )

    def delete_empty_containers(
        self, change: StateChange, container_ids: Iterable[int]
    ) -> list[int]:
        """Delete empty containers, and restore deleted containers if a replica has data.

        Return the ids of the containers whose state changed.
        """
        changed = []
        asked = list(container_ids)
        is_held = self._state.replicas.has_data(np.array(asked, np.int64), self._nodes.dead)
        get = self._state.containers.get
        for container_id, holds in zip(asked, is_held.tolist(), strict=True):
            container = get(container_id)
            if container is None:
                continue
            if holds and container.state in _DONE:  # true for nearly all; no replica is decoded
                if self._unfinished:
                    self._unfinished.pop(container_id, None)
            elif self._tidy_one(change, container):
                changed.append(container_id)
        return changed

    def unfinished(self) -> list[int]:
        """Return containers whose replicas must still be deleted, the longest waiting first."""
        due = list(islice(self._unfinished, LOOKS_PER_TURN))
        for container_id in due:
            self._unfinished[container_id] = self._unfinished.pop(container_id)
        return due

    def _tidy_one(self, change: StateChange, container: Container) -> bool:
        container_id = container.container_id
        replicas = self._nodes.live_replicas(self._state.replicas.of(container_id))
        nodes = map(self._state.nodes.get, (r.datanode_id for r in replicas))
        leaving = {n.datanode_id for n in nodes if n is not None and n.op_state in LEAVING}
        is_unused = self._is_unused(container)
        step = next_step(container, replicas, is_unused=is_unused, leaving=leaving)
        for chosen, force in ((step.deletes, False), (step.forced, True)):
            for datanode_id in chosen:
                self._delete_replica(change, container_id, datanode_id, force=force)
        seen = container
        if step.event is not None:
            seen = lifecycle.advance(container, step.event, now_ms=self._clock.wall_ms())
            change.put(self._state.containers, seen)
            if step.event in RETURNED:
                self._begin_again(change, container_id)  # the replica missed its peers' deletes
            change.on_commit(
                lambda: _log.info(
                    "container_state_changed", container_id=container_id, state=seen.state
                )
            )
        if replicas and (step.deletes or step.forced):
            self._unfinished[container_id] = None
        else:
            self._unfinished.pop(container_id, None)
        return step.event is not None

    def _delete_replica(
        self, change: StateChange, container_id: int, datanode_id: str, *, force: bool
    ) -> None:
        is_pending = (
            self._state.commands.about(CommandKind.DELETE, container_id, datanode_id) is not None
        )
        is_cooling = self._commands.is_cooling(CommandKind.DELETE, container_id)
        if is_pending or is_cooling or not self._commands.is_sendable(datanode_id):
            return
        why = "all blocks of the container are deleted" if force else "the container is empty"
        self._commands.queue(
            change, CommandKind.DELETE, container_id, datanode_id, why=why, force=force
        )

    def _is_unused(self, container: Container) -> bool:
        container_id = container.container_id
        return not (
            self._state.keys.blocks_in(container_id)
            or (container.state in _DONE and self._cases.has_unacknowledged_deletes(container_id))
            or self._state.allocations.has_any(container_id)
            or any(
                c.kind is CommandKind.REPLICATE
                for c in self._state.commands.of_container(container_id)
            )
        )

    def _record(
        self,
        change: StateChange,
        container_id: int,
        local_ids: list[int],
        *,
        is_unproven: bool = False,
    ) -> list[int]:
        """Add blocks to the delete transactions of a container.

        Return the transaction id of each block. Return an empty list if the container is marked as
        lost. Blocks are added to an unsent transaction if there is one, because each transaction
        costs every datanode and every check of the container. A sent transaction gets no more
        blocks, because an acknowledgement would not cover them.
        """
        ids: list[int] = []
        if self._state.forgotten.get(container_id) is not None:
            return ids  # nothing of a forgotten container is deleted if it comes back
        table = self._state.transactions
        kind = container_id, is_unproven
        open_one = table.get((container_id, self._unsent.get(kind, 0)))
        rest = tuple(local_ids)
        while rest:
            if open_one is None or len(open_one.local_ids) >= BLOCKS_PER_TRANSACTION:
                number = change.next_id("next_transaction_id")
                now_ms = self._clock.wall_ms()
                open_one = DeleteTransaction(
                    number, container_id, (), now_ms, is_unproven=is_unproven
                )
                self._unsent[kind] = number
            room = BLOCKS_PER_TRANSACTION - len(open_one.local_ids)
            open_one = replace(open_one, local_ids=open_one.local_ids + rest[:room])
            change.put(table, open_one)
            ids += [open_one.transaction_id] * len(rest[:room])
            rest = rest[room:]
        return ids

    def _tell_holders(self, container_ids: Iterable[int]) -> None:
        """Record that datanodes with these containers may have unacknowledged transactions."""
        for container_id in container_ids:
            for replica in self._state.replicas.of(container_id):
                self._to_tell[replica.datanode_id][container_id] = None

    def _owed_by(self, datanode_id: str) -> tuple[DeleteTransaction, ...]:
        """Return the oldest transactions that a datanode has not acknowledged.

        There are at most as many as one command can have. Every heartbeat calls this method. A
        container without such transactions is not checked again before it changes or the datanode
        registers.
        """
        self._tell_holders(self._stirred.pop(self._state.transactions.by_container.keys()))
        to_tell = self._to_tell[datanode_id]
        owed: list[DeleteTransaction] = []
        told = []
        blocks_count = 0
        for container_id in to_tell:
            if self._commands.is_cooling(CommandKind.DELETE_BLOCKS, container_id, datanode_id):
                continue
            unacknowledged = self._unacknowledged(container_id, datanode_id)
            if not unacknowledged:
                told.append(container_id)
            for transaction in unacknowledged:
                blocks_count += len(transaction.local_ids)
                if len(owed) == TRANSACTIONS_PER_COMMAND or blocks_count > BLOCKS_PER_COMMAND:
                    break
                owed.append(transaction)
            else:
                continue
            break
        for container_id in told:
            del to_tell[container_id]
        return tuple(owed)

    def _unacknowledged(self, container_id: int, datanode_id: str) -> list[DeleteTransaction]:
        """Return the transactions of a container that can be sent to a datanode now, oldest first.

        Return an empty list if the container is not closed, or if the replica cannot execute them
        now.
        """
        replica = self._state.replicas.get((container_id, datanode_id))
        container = self._state.containers.get(container_id)
        if (
            container_id in self._resting
            or replica is None
            or container is None
            or container.state not in _DONE
            or replica.state not in TREE_STATES
            or replica.load_error
        ):
            return []
        return [
            transaction
            for transaction in self._state.transactions.of(container_id)
            if datanode_id not in transaction.acknowledged_by
        ]
