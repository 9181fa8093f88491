"""Random samples of the chunks of running agents. Each datanode reads its part of the sample."""

import random
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Final

from scanner.sampling import SampleSize, drawn, miss_probability, sample_size, split
from suture.client.cluster_client import ClusterClient
from suture.errors import Code, RefusedError, UnavailableError
from suture.terminal.datanode_queries import DatanodeReply, query_all
from suture.terminal.document import facts
from suture.terminal.output import short
from suture.terminal.transient_refusals import until_free
from suture.wire.clients.peer import Peer
from suture.wire.v1 import datanode_pb2 as pb

SEED_BITS: Final = 63  # of one datanode's draw

Nodes = list[tuple[str, str]]  # name and address


@dataclass(slots=True)
class ChunkSample:
    """A random sample of chunks, and the results of reading it.

    `kind` is "volume" if volumes without an agent were read, and "datanode_id" otherwise. `silent`
    has the error of each datanode or volume that could not be read.
    """

    size: SampleSize
    seed: int
    results: dict[str, pb.SampleResult] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)
    kind: str = "datanode_id"

    def total(self, name: str) -> int:
        """Return the sum of the field `name` over all datanodes or volumes."""
        return sum(getattr(result, name) for result in self.results.values())

    def name_of(self, place: str) -> str:
        """Return the name to display: the short id of a datanode, or the directory of a volume."""
        return place if self.kind == "volume" else short(place)

    @property
    def is_clean(self) -> bool:
        """Return whether every drawn chunk is intact, and every datanode and row could be read."""
        counts = ("bad_count", "undecided_count", "damaged_row_count", "unread_count")
        return not self.silent and not any(map(self.total, counts))

    def document(self) -> dict[str, object]:
        """Return the sample and its results as a JSON document."""
        return {
            "size": asdict(self.size),
            "seed": self.seed,
            **{name: self.total(name) for name in COUNTS},
            "bad": [
                {self.kind: place, **facts(item)}
                for place, result in self.results.items()
                for item in result.bad
            ],
            "unread": [
                {self.kind: place, "reason": why}
                for place, result in self.results.items()
                for why in result.unread
            ],
            "errors": self.silent,
        }


COUNTS: Final = (
    *("read_count", "bytes_read", "bad_count", "undecided_count", "gone_count"),
    *("without_checksum_count", "damaged_row_count", "unread_count"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """Parameters of a random sample.

    `begin` is called with the number of drawn chunks. `progress` is called with the number of
    chunks read since its last call.
    """

    confidence: float
    fraction: float
    seed: int
    begin: Callable[[int], None]
    progress: Callable[[int], None]


def sample_of(client: ClusterClient, nodes: Nodes, wish: SampleRequest) -> ChunkSample:
    """Count the chunks of all given datanodes, draw a random sample, and let the datanodes read it.

    Raise SutureError if no datanode answers, or if there is no chunk to draw.
    """
    counted = query_all(
        client, nodes, lambda peer: last_of(peer, pb.SampleChunksRequest(), ignore_progress)
    )
    silent = {answer.datanode: answer.error for answer in counted if answer.value is None}
    counts = {a.datanode: a.value.chunk_count for a in counted if a.value is not None}
    if not counts:
        raise UnavailableError(
            Code.UNAVAILABLE, next(iter(silent.values()), "no datanode is known")
        )
    if not sum(counts.values()):
        raise RefusedError(
            Code.INELIGIBLE, "cannot draw a sample: these datanodes have no chunk with a checksum"
        )
    size = sample_size(sum(counts.values()), confidence=wish.confidence, fraction=wish.fraction)
    wish.begin(size.drawn_count)
    requests = requests_of(counts, size, wish.seed)
    results = drawn_on(client, [one for one in nodes if one[0] in requests], requests, wish)
    silent |= {answer.datanode: answer.error for answer in results if answer.value is None}
    found = {answer.datanode: answer.value for answer in results if answer.value is not None}
    return ChunkSample(judged_size(size, counts, found, wish.fraction), wish.seed, found, silent)


def requests_of(
    counts: dict[str, int], size: SampleSize, seed: int
) -> dict[str, pb.SampleChunksRequest]:
    """Return the request to each datanode that reads a part of the sample.

    The numbers of chunks per datanode are drawn so that all samples of the cluster's chunks are
    equally likely.
    """
    names = sorted(counts)
    shares = split(
        drawn(size.chunk_count, drawn_count=size.drawn_count, seed=seed),
        [counts[name] for name in names],
    )
    chance = random.Random(seed)  # noqa: S311 - repeatable, and not a secret
    return {
        name: pb.SampleChunksRequest(
            chunk_count=counts[name], drawn_count=share, seed=chance.getrandbits(SEED_BITS)
        )
        for name, share in zip(names, shares, strict=True)
    }


def drawn_on(
    client: ClusterClient,
    nodes: Nodes,
    requests: dict[str, pb.SampleChunksRequest],
    wish: SampleRequest,
) -> list[DatanodeReply[pb.SampleResult]]:
    """Send the requests to all datanodes at the same time, and return their replies.

    Each datanode draws and reads its part of the sample.
    """
    lock = threading.Lock()

    def more(count: int) -> None:
        with lock:
            wish.progress(count)

    by_address = {address: requests[name] for name, address in nodes}
    return query_all(client, nodes, lambda peer: last_of(peer, by_address[peer.address], more))


def ignore_progress(_count: int) -> None:
    """Progress callback that does nothing."""


def last_of(
    peer: Peer, request: pb.SampleChunksRequest, more: Callable[[int], None]
) -> pb.SampleResult:
    """Let one datanode draw and read its part of the sample, and return the result.

    If the datanode is busy with another sample, try again. Raise SutureError if the datanode fails.
    """
    read_count = 0

    def once() -> pb.SampleResult:
        nonlocal read_count
        for progress in peer.sample(request):
            more(progress.read_count - read_count)
            read_count = progress.read_count
            if progress.HasField("result"):
                return progress.result
        raise UnavailableError(Code.UNAVAILABLE, "the datanode ended the sample without a result")

    return until_free(peer.address, once)


def judged_size(
    size: SampleSize,
    counts: dict[str, int],
    found: dict[str, pb.SampleResult],
    fraction: float,
) -> SampleSize:
    """Return the size of the sample that was really checked.

    Datanodes that did not answer, and chunks that were deleted or could not be checked, are not
    counted.
    """
    chunk_count = sum(counts[name] for name in found)
    judged = sum(one.read_count - one.undecided_count for one in found.values())
    if not chunk_count:
        return replace(size, chunk_count=0, drawn_count=0, power=0.0)
    bad_count = sample_size(chunk_count, confidence=0.5, fraction=fraction).bad_count
    miss = miss_probability(chunk_count, bad_count=bad_count, drawn_count=max(0, judged))
    return replace(
        size, chunk_count=chunk_count, bad_count=bad_count, drawn_count=judged, power=1 - miss
    )
