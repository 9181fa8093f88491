"""Executes the SCM's orders to delete blocks. The SCM sends these orders as transactions.

The transactions are grouped by container, and executed in batches under the container's lease. The
store writes tombstones, deletes rows and removes data. The result of a transaction is sent when the
delete is durable. The SCM repeats a transaction until it receives the result. Therefore, the delete
of a block that is already deleted succeeds. If a transaction fails, its result has the reason, and
the other transactions are still executed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from agent.store.replica_store import ReplicaStore
from merkle.replica import BlockId, ContainerId
from suture.errors import Code, SutureError, UnavailableError
from suture.runtime.ports import Leases
from suture.wire.clients.message_groups import in_groups
from suture.wire.mapping import codec
from suture.wire.v1 import scm_pb2

BLOCKS_PER_BATCH: Final = 20_000  # limits the time for which other changes wait for the lease
BLOCKS_PER_TRANSACTION_MAX: Final = 100_000
MESSAGE_CHARS_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class _DeleteTransaction:
    """A delete transaction of the SCM, with the ids that were parsed from its message."""

    message: scm_pb2.DeleteTransaction
    container_id: ContainerId
    block_ids: tuple[BlockId, ...]


def delete_blocks(
    store: ReplicaStore,
    leases: Leases,
    messages: Sequence[scm_pb2.DeleteTransaction],
    *,
    stop: Callable[[], bool],
    request_scan: Callable[[ContainerId, str], None] = lambda *_: None,
) -> list[scm_pb2.DeleteTransactionResult]:
    """Execute all transactions. Return a result for each of them, in the same order.

    If a delete removes the last damaged block of a replica, `request_scan` is called with the
    container id and a reason. The scan can then find that the replica is healthy.
    """
    results: dict[int, scm_pb2.DeleteTransactionResult] = {}
    understood: list[tuple[int, _DeleteTransaction]] = []
    for index, message in enumerate(messages):
        try:
            understood.append((index, parse(message)))
        except SutureError as error:
            results[index] = failed_transaction(message, error)
    understood.sort(key=lambda item: item[1].container_id)
    for container_id, group in groupby(understood, key=lambda item: item[1].container_id):
        for batch in in_groups(group, lambda item: len(item[1].block_ids), BLOCKS_PER_BATCH):
            done = _delete_batch(
                store, leases, container_id, [item for _, item in batch], stop, request_scan
            )
            for (index, _), result in zip(batch, done, strict=True):
                results[index] = result
    return [results[index] for index in range(len(messages))]


def parse(message: scm_pb2.DeleteTransaction) -> _DeleteTransaction:
    """Return the parsed transaction. Raise RefusedError(MALFORMED_REQUEST) if it is invalid."""
    container_id = codec.parse_container_id(message.container_id, "transaction.container_id")
    count = len(message.local_ids)
    if count > BLOCKS_PER_TRANSACTION_MAX:
        raise codec.malformed(
            "transaction.local_ids", f"{count} are more than {BLOCKS_PER_TRANSACTION_MAX}"
        )
    block_ids = tuple(
        codec.parse_block_id(value, "transaction.local_ids") for value in message.local_ids
    )
    return _DeleteTransaction(message, container_id, block_ids)


def _delete_batch(
    store: ReplicaStore,
    leases: Leases,
    container_id: ContainerId,
    transactions: Sequence[_DeleteTransaction],
    stop: Callable[[], bool],
    request_scan: Callable[[ContainerId, str], None],
) -> list[scm_pb2.DeleteTransactionResult]:
    """Delete the blocks of several transactions of one container in one change of the index.

    Return a result for each transaction. Either all blocks become tombstones, or none. If the data
    of a block cannot be removed, its transaction fails. The SCM then repeats the transaction, and
    the removal is tried again.
    """
    wanted = {block_id for item in transactions for block_id in item.block_ids}
    kept = {one for item in transactions if item.message.keep for one in item.block_ids}
    proven = {one for item in transactions if not item.message.keep for one in item.block_ids}
    try:
        if stop():
            raise UnavailableError(Code.CANCELLED, "stopped while queued")
        with leases.hold(container_id):
            deleted = store.free_blocks(container_id, wanted, kept - proven)
    except SutureError as error:
        return [failed_transaction(item.message, error) for item in transactions]
    if deleted.was_last_damage:
        request_scan(container_id, "its damaged blocks were deleted")
    freed, results = dict(deleted.freed), []
    for item in transactions:
        left = next((deleted.left[one] for one in item.block_ids if one in deleted.left), None)
        if left is not None:
            results.append(failed_transaction(item.message, left))
            continue
        gone = [freed.pop(block_id) for block_id in item.block_ids if block_id in freed]
        results.append(
            scm_pb2.DeleteTransactionResult(
                transaction_id=item.message.transaction_id,
                container_id=container_id,
                done=True,
                block_count=len(gone),
                bytes_freed=sum(gone),
            )
        )
    return results


def check_all_done(results: Sequence[scm_pb2.DeleteTransactionResult]) -> None:
    """Raise UnavailableError if any transaction failed. The error has the reason of the first
    failure."""
    not_done = [result for result in results if not result.done]
    if not_done:
        first = not_done[0]
        raise UnavailableError(
            Code(first.code),
            f"{len(not_done)} of {len(results)} transactions failed; "
            f"{first.transaction_id} of container {first.container_id}: {first.message}",
        )


def failed_transaction(
    message: scm_pb2.DeleteTransaction, error: SutureError
) -> scm_pb2.DeleteTransactionResult:
    """Return the result of a failed transaction."""
    return scm_pb2.DeleteTransactionResult(
        transaction_id=message.transaction_id,
        container_id=message.container_id,
        done=False,
        code=error.code.value,
        message=str(error)[:MESSAGE_CHARS_MAX],
    )
