"""Parity scrub: do the shards of a container still make one code word, stripe by stripe?

Each shard's own checksums prove that it holds what was written to it, not that this is what its
stripe needs: a shard restored from elsewhere, or written by a faulty host, passes every scan. Here
all cells of a stripe are read and computed from each other, and a shard that is wrong is named,
where redundancy or the writer's record allow it.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from agent.ec.blockgroup import Agreed, Orphan, agree
from agent.ec.cells import proof_of
from agent.ec.rebuild_task import Account, Shard
from agent.ec.scheme import Scheme
from agent.ec.wrong_shard import StripeVerdict, judge_stripe
from agent.errors import Unavailable
from agent.ports import Executor
from agent.reconstruct.shard_peer import ShardSource
from agent.reconstruct.sources import Reading, Sources
from merkle.replica import ContainerId


@dataclass(frozen=True, slots=True)
class StripeFault:
    """A stripe that does not fit. `wrong` is empty when it cannot be told which shards are."""

    block_id: int
    stripe: int
    wrong: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ParityReport:
    """What a parity scrub of one container found.

    `absent` shards had no replica to read; `unreadable` says what datanodes gave instead of cells;
    of the `unread` stripes, by block and number, too few cells could be read to tell anything;
    `lacking` are blocks that a shard, by its index, has not as the others have them: its index
    lost them before its container was closed, or a delete is on its way.
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
        """Whether every stripe was there in full, and fits."""
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
        """The shards that are wrong somewhere."""
        return tuple(sorted({index for fault in self.faults for index in fault.wrong}))


def verify_parity(
    container_id: ContainerId,
    scheme: Scheme,
    shards: Iterable[Shard],
    dial: Callable[[Shard], ShardSource],
    executor: Executor,
    *,
    pace: Callable[[int], None] = lambda _: None,
) -> ParityReport:
    """Read every stripe of a container and judge it. `pace` is told the bytes read, and may wait.

    Raises Unavailable when fewer shards than data shards can be read at all.
    """
    account = Account()
    sources = Sources(container_id, scheme, executor, account)
    sources.open(shards, dial)
    absent = tuple(sorted(set(scheme.indexes) - set(sources.living)))
    faults: list[StripeFault] = []
    unread: list[tuple[int, int]] = []
    lacking: list[tuple[int, int]] = []
    stripe_count = paced_bytes = 0
    wanted = _stripes(sources, account, lacking)
    for agreed, reading in sources.ahead(wanted, count=scheme.shard_count):
        verdict = _verdict(sources, agreed, reading)
        stripe_count += 1
        if verdict is None:
            unread.append((agreed.block_id, reading.stripe))
        elif not verdict.fits:
            faults.append(StripeFault(agreed.block_id, reading.stripe, verdict.wrong))
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
    sources: Sources, account: Account, lacking: list[tuple[int, int]]
) -> Iterator[tuple[Agreed, int]]:
    """Yield all stripes; note the blocks that cannot be read, and the shards that lack others."""
    for block_id, known in sources.blocks():
        agreed = agree(sources.scheme, block_id, known)
        if isinstance(agreed, Orphan):
            account.orphans[block_id] = agreed.reason
            continue
        lacking += [(block_id, index) for index in known if index not in agreed.shards]
        yield from ((agreed, stripe) for stripe in range(agreed.group.stripe_count))


def _verdict(sources: Sources, agreed: Agreed, reading: Reading) -> StripeVerdict | None:
    """Judge one stripe by all cells that can be read; None where they are too few.

    Raises Unavailable when whole shards are gone, so that no stripe can be read any more.
    """
    try:
        cells = sources.finish_all(agreed, reading)
    except Unavailable:
        sources.require()
        return None
    return judge_stripe(agreed.group, reading.stripe, cells, proof_of(agreed, reading.stripe))
