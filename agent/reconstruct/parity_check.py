"""Parity scrub: check that the shards of a container form code words, stripe by stripe.

Each shard's own checksums prove that it holds the bytes written to it, not that they fit its
stripe: a shard restored from elsewhere, or written by a faulty host, passes every scan. The scrub
reads all cells of a stripe and computes them from each other. It names a wrong shard if redundancy
or the writer's record allow it.
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
    """A stripe that does not fit. `wrong` is empty if the wrong shards cannot be identified."""

    block_id: int
    stripe: int
    wrong: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ParityReport:
    """Result of a parity scrub of one container.

    `absent` shards had no replica to read. `unreadable` has the errors of datanodes. Of the
    `unread` stripes, by block and number, too few cells could be read to judge them. `lacking` are
    blocks that a shard, by its index, has differently from the others: its index lost them before
    its container was closed, or a delete is pending.
    """

    container_id: ContainerId
    stripe_count: int
    read_bytes: int
    faults: tuple[StripeFault, ...]
    orphans: dict[int, str]
    absent: tuple[int, ...]
    unreadable: dict[str, str]
    unread: tuple[tuple[int, int], ...] = ()
    lacking: tuple[tuple[int, int], ...] = ()

    @property
    def is_clean(self) -> bool:
        """Return whether every stripe was complete, and fits."""
        return not (
            self.faults
            or self.orphans
            or self.absent
            or self.unreadable
            or self.unread
            or self.lacking
        )

    @property
    def wrong(self) -> tuple[int, ...]:
        """The shards that are wrong in any stripe."""
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
    """Read and judge every stripe of a container. `pace` receives the bytes read, and may wait.

    Raise UnavailableError if fewer shards than data shards can be read at all.
    """
    account = RebuildStats()
    sources = RebuildSources(container_id, scheme, executor, account)
    sources.open(shards, dial)
    absent = tuple(sorted(set(scheme.indexes) - set(sources.living)))
    faults: list[StripeFault] = []
    unread: list[tuple[int, int]] = []
    lacking: list[tuple[int, int]] = []
    stripe_count = paced_bytes = 0
    wanted = _stripes(sources, account, lacking)
    for reading in sources.ahead(wanted, count=scheme.shard_count):
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
        tuple(lacking),
    )


def _stripes(
    sources: RebuildSources, account: RebuildStats, lacking: list[tuple[int, int]]
) -> Iterator[tuple[RebuildableGroup, int]]:
    """Yield all stripes; record the blocks that cannot be read, and the shards that lack others."""
    for block_id, known in sources.blocks():
        agreed = resolve_group(sources.scheme, block_id, known)
        if isinstance(agreed, OrphanGroup):
            account.orphans[block_id] = agreed.reason
            continue
        lacking += [(block_id, index) for index in known if index not in agreed.shards]
        yield from ((agreed, stripe) for stripe in range(agreed.group.stripe_count))


def _verdict(sources: RebuildSources, reading: PendingStripe) -> StripeVerdict | None:
    """Judge one stripe by all readable cells; None if they are too few.

    Raise UnavailableError if whole shards are gone, so that no stripe can be read.
    """
    try:
        cells = sources.finish_all(reading)
    except UnavailableError:
        sources.require()
        return None
    agreed, stripe = reading.agreed, reading.stripe
    return judge_stripe(agreed.group, stripe, cells, proof_of(agreed, stripe))
