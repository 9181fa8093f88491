"""Parity check: verifies that the shards of a container match each other, stripe by stripe.

A shard's own checksums prove only that the shard has the bytes that were written to it. The bytes
may still belong to another stripe. For example, every scan of a shard finds no fault if the shard
was restored from a wrong backup, or written by a faulty host. The parity check reads all cells of a
stripe and computes them from each other. It identifies the wrong shard if the redundancy or the
stripe checksums of the writer are sufficient.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from merkle.replica import ContainerId
from suture.client.stripes.stripe_sources import PendingStripe, RebuildSources
from suture.ec.blockgroup import OrphanGroup, RebuildableGroup, resolve_group
from suture.ec.cells import proof_of
from suture.ec.rebuild_task import RebuildStats, ShardLocation
from suture.ec.scheme import Scheme
from suture.ec.wrong_shard import StripeVerdict, judge_stripe
from suture.errors import UnavailableError
from suture.runtime.ports import Executor
from suture.wire.clients.replica_peer import ReplicaPeer


@dataclass(frozen=True, slots=True)
class StripeFault:
    """A stripe whose cells do not match each other.

    `wrong` has the indexes of the wrong shards. It is empty if the wrong shards cannot be
    identified.
    """

    block_id: int
    stripe: int
    wrong: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ParityReport:
    """Result of the parity check of one container.

    `absent` has the indexes of the shards without a readable replica. `unreadable` has the errors
    of unreadable replicas, by datanode. `orphans` has the blocks that cannot be checked, with the
    reasons. `unread` has a pair (block, stripe) for each stripe of which too few cells could be
    read. `missing_shards` has a pair (block, shard) for each shard whose record of the block is
    missing or differs from the other shards. The shard may have lost its row, or a delete is
    pending.
    """

    container_id: ContainerId
    stripe_count: int
    read_bytes: int
    faults: tuple[StripeFault, ...]
    orphans: dict[int, str]
    absent: tuple[int, ...]
    unreadable: dict[str, str]
    unread: tuple[tuple[int, int], ...] = ()
    missing_shards: tuple[tuple[int, int], ...] = ()

    @property
    def is_clean(self) -> bool:
        """Return whether every cell of every stripe was read, and all stripes are free of
        faults."""
        return not (
            self.faults
            or self.orphans
            or self.absent
            or self.unreadable
            or self.unread
            or self.missing_shards
        )

    @property
    def wrong(self) -> tuple[int, ...]:
        """Indexes of the shards that are wrong in at least one stripe."""
        return tuple(sorted({index for fault in self.faults for index in fault.wrong}))


def verify_parity(
    container_id: ContainerId,
    scheme: Scheme,
    shards: Iterable[ShardLocation],
    dial: Callable[[ShardLocation], ReplicaPeer],
    executor: Executor,
    *,
    pace: Callable[[int], None] = lambda _: None,
) -> ParityReport:
    """Read every stripe of a container, and check that its cells match each other.

    `pace` is called with the number of bytes read, and may wait. Raise UnavailableError if fewer
    shards are readable than the erasure code has data shards.
    """
    account = RebuildStats()
    sources = RebuildSources(container_id, scheme, executor, account)
    sources.open(shards, dial)
    absent = tuple(sorted(set(scheme.indexes) - set(sources.live_sources)))
    faults: list[StripeFault] = []
    unread: list[tuple[int, int]] = []
    missing_shards: list[tuple[int, int]] = []
    stripe_count = paced_bytes = 0
    wanted = _stripes(sources, account, missing_shards)
    for reading in sources.prefetch(wanted, count=scheme.shard_count):
        verdict, block_id = _verdict(sources, reading), reading.agreed.block_id
        stripe_count += 1
        if verdict is None:
            unread.append((block_id, reading.stripe))
        elif not verdict.fits:
            faults.append(StripeFault(block_id, reading.stripe, verdict.wrong))
        pace(account.read_bytes - paced_bytes)
        paced_bytes = account.read_bytes
    return ParityReport(
        container_id,
        stripe_count,
        account.read_bytes,
        tuple(faults),
        account.orphans,
        absent,
        account.replaced,
        tuple(unread),
        tuple(missing_shards),
    )


def _stripes(
    sources: RebuildSources, account: RebuildStats, missing_shards: list[tuple[int, int]]
) -> Iterator[tuple[RebuildableGroup, int]]:
    """Yield all stripes of all blocks that can be checked.

    Record the blocks that cannot be checked in `account`. For every other block, add the shards
    that lack the block to `missing_shards`.
    """
    for block_id, known in sources.blocks():
        agreed = resolve_group(sources.scheme, block_id, known)
        if isinstance(agreed, OrphanGroup):
            account.orphans[block_id] = agreed.reason
            continue
        missing_shards += [(block_id, index) for index in known if index not in agreed.shards]
        yield from ((agreed, stripe) for stripe in range(agreed.group.stripe_count))


def _verdict(sources: RebuildSources, reading: PendingStripe) -> StripeVerdict | None:
    """Check one stripe with all its readable cells, and return the result.

    Return None if too few cells are readable. Raise UnavailableError if so many shards are
    unavailable that no stripe can be read.
    """
    try:
        cells = sources.finish_all(reading)
    except UnavailableError:
        sources.require()
        return None
    agreed, stripe = reading.agreed, reading.stripe
    return judge_stripe(agreed.group, stripe, cells, proof_of(agreed, stripe))
