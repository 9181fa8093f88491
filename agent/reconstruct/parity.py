"""Parity scrub: do the shards of a container still make one code word, stripe by stripe?

Each shard's own checksums prove that it holds what was written to it, not that this is what its
stripe needs: a shard restored from elsewhere, or written by a faulty host, passes every scan. Here
all cells of a stripe are read and computed from each other, and a shard that is wrong is named,
where redundancy or the writer's record allow it.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.ec.blockgroup import Agreed, Orphan, agree
from agent.ec.cells import proof_of
from agent.ec.scheme import Scheme
from agent.ec.scrub import judge_stripe
from agent.reconstruct.order import Account, Shard
from agent.reconstruct.sources import Sources
from agent.rpc.peer import Peer
from merkle.replica import ContainerId

if TYPE_CHECKING:
    from agent.ports import Executor


@dataclass(frozen=True, slots=True)
class StripeFault:
    """A stripe that does not fit. `wrong` is empty when it cannot be told which shards are."""

    block_id: int
    stripe: int
    wrong: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ParityReport:
    """What a parity scrub of one container found.

    `absent` shards had no replica to read; `unreadable` says what datanodes gave instead of cells.
    """

    container_id: ContainerId
    stripe_count: int
    read_bytes: int
    faults: tuple[StripeFault, ...]
    orphans: dict[int, str]
    absent: tuple[int, ...]
    unreadable: dict[str, str]

    @property
    def is_clean(self) -> bool:
        """Whether every stripe was there in full, and fits."""
        return not (self.faults or self.orphans or self.absent or self.unreadable)

    @property
    def wrong(self) -> tuple[int, ...]:
        """The shards that are wrong somewhere."""
        return tuple(sorted({index for fault in self.faults for index in fault.wrong}))


def verify_parity(
    container_id: ContainerId,
    scheme: Scheme,
    shards: Iterable[Shard],
    dial: Callable[[str], Peer],
    executor: "Executor",
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
    stripe_count = paced_bytes = 0
    for block_id, known in sources.blocks():
        agreed = agree(scheme, block_id, known)
        if isinstance(agreed, Orphan):
            account.orphans[block_id] = agreed.reason
            continue
        for fault in _faults_of(sources, agreed):
            stripe_count += 1
            faults += [fault] if fault is not None else []
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
    )


def _faults_of(sources: Sources, agreed: Agreed) -> Iterator[StripeFault | None]:
    """Yield what is wrong with each stripe of a group, None where it fits."""
    for stripe in range(agreed.group.stripe_count):
        reading = sources.begin(agreed, stripe, count=agreed.group.scheme.shard_count)
        cells = sources.finish_all(agreed, reading)
        verdict = judge_stripe(agreed.group, stripe, cells, proof_of(agreed, stripe))
        yield None if verdict.fits else StripeFault(agreed.block_id, stripe, verdict.wrong)
