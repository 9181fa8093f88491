"""Client of a datanode for its peers and for operators.

The client does not trust the responses. Every response is validated, and the data of a chunk is
compared with the window checksums in the same response before it is returned.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, TypeVar

from merkle.checksum_columns import U64s
from merkle.replica import BlockId, ContainerId
from merkle.tree import Tree
from merkle.tree_descent import BlockRange
from merkle.tree_summary import TreeSummary
from suture.errors import Code, RefusedError, SutureError, UnavailableError
from suture.wire.clients.block_peer import BlockPeer, TransferCost, check_count
from suture.wire.clients.channel import (
    PATIENCE_S,
    call,
    call_with_retry,
    retry_while,
    stream,
    upload,
)
from suture.wire.clients.shard_writer import ShardWriter
from suture.wire.mapping import codec, tree_pages
from suture.wire.mapping.errors import error_of
from suture.wire.mapping.tree_pages import BlockRows
from suture.wire.v1 import container_pb2
from suture.wire.v1 import datanode_pb2 as pb

SAMPLE_TIMEOUT_S: Final = 7 * 86_400.0  # enough to read millions of chunks at the rate of scans
SCAN_TIMEOUT_S: Final = 6 * 3600.0  # enough to scan a full container on a busy disk

T = TypeVar("T")


class Peer(BlockPeer, ShardWriter):
    """Client for all calls of one datanode. The connection is opened on first use. Thread-safe."""

    # Trees.

    def summary(self, container_id: ContainerId, meter: TransferCost | None = None) -> TreeSummary:
        """Return the summary of the datanode's tree of a container."""
        request = pb.GetContainerHashesRequest(container_id=container_id, level=pb.ROOT)
        return self._hashes(request, tree_pages.read_summary, meter)

    def ranges(
        self, container_id: ContainerId, starts: U64s, meter: TransferCost | None = None
    ) -> tuple[TreeSummary, U64s]:
        """Return the summary of the tree, and the checksum of each range of block ids. `starts` has
        the first id of each range."""
        request = pb.GetContainerHashesRequest(
            container_id=container_id, level=pb.RANGES, range_starts=starts.tolist()
        )
        return self._hashes(request, partial(tree_pages.read_ranges, count=len(starts)), meter)

    def blocks(
        self,
        container_id: ContainerId,
        ranges: Sequence[BlockRange] = (),
        meter: TransferCost | None = None,
    ) -> BlockRows:
        """Return the id and the checksum of each block in `ranges`, and whether the block is
        deleted. If `ranges` is empty, return those of all blocks."""
        request = pb.GetContainerHashesRequest(
            container_id=container_id,
            level=pb.BLOCKS,
            ranges=[pb.BlockRange(first=first, last=last) for first, last in ranges],
        )
        return self._hashes(request, tree_pages.read_blocks, meter)

    def chunks(
        self, container_id: ContainerId, block_ids: U64s, meter: TransferCost | None = None
    ) -> tuple[TreeSummary, Tree]:
        """Return the summary of the tree, and a tree with only the blocks `block_ids`, which must
        not be empty."""
        assert len(block_ids) > 0, "no ids would mean all blocks"
        request = pb.GetContainerHashesRequest(
            container_id=container_id, level=pb.CHUNKS, block_ids=block_ids.tolist()
        )
        return self._hashes(request, tree_pages.read_tree, meter)

    def tree(self, container_id: ContainerId, meter: TransferCost | None = None) -> Tree:
        """Return the complete tree of a container. Raise RefusedError if its root differs from the
        root in the summary."""
        request = pb.GetContainerHashesRequest(container_id=container_id, level=pb.CHUNKS)
        summary, tree = self._hashes(request, tree_pages.read_tree, meter)
        if tree.root != summary.root:
            raise RefusedError(
                Code.MALFORMED_REQUEST,
                f"response: the root of the blocks is {tree.root:#x}, the root sent is "
                f"{summary.root:#x}",
            )
        return tree

    def _hashes(
        self,
        request: pb.GetContainerHashesRequest,
        read: Callable[[Iterator[pb.HashesPage]], T],
        meter: TransferCost | None,
    ) -> T:
        """Request the pages of a tree, pass them to `read`, and return the result. If the call
        fails, retry."""

        def ask() -> T:
            return read(self._pages(request, meter))

        return call_with_retry(ask, timeout_s=self._timeouts.tree_s)

    def _pages(
        self, request: pb.GetContainerHashesRequest, meter: TransferCost | None
    ) -> Iterator[pb.HashesPage]:
        timeout_s = self._timeouts.tree_s
        for page in stream(self.stub.GetContainerHashes, request, timeout_s=timeout_s):
            if meter is not None:
                meter.tree_bytes += page.ByteSize()
            yield page

    def prove_chunks(
        self, container_id: ContainerId, asked: Sequence[tuple[BlockId, int, bytes]]
    ) -> list[bytes | SutureError]:
        """Request a proof for each (block id, offset, nonce) in `asked`: the hash of the chunk with
        the nonce as key.

        The datanode reads the chunks to compute the hashes. Return the hash of each chunk, or the
        error that the datanode returned for it.
        """
        request = pb.ProveChunksRequest(
            container_id=container_id,
            chunks=[
                pb.ChunkChallenge(local_id=block_id, offset=offset, nonce=nonce)
                for block_id, offset, nonce in asked
            ],
        )
        timeout_s = self._timeouts.chunk_s
        answer: pb.ProveChunksResponse = self._call(
            self.stub.ProveChunks, request, timeout_s=timeout_s
        )
        check_count(answer.proofs, asked)
        return [
            error_of(proof.code, message=proof.message) if proof.code else proof.answer
            for proof in answer.proofs
        ]

    def prove_replica(
        self, request: pb.ProveReplicaRequest, timeout_s: float
    ) -> tuple[TreeSummary, pb.ReplicaProof]:
        """Request a proof that the datanode has a replica. Return the summary of its tree, and the
        proof. The datanode may have to read the complete replica."""
        proof: pb.ReplicaProof | None = None
        for message in stream(self.stub.ProveReplica, request, timeout_s=timeout_s):
            if message.HasField("proof"):
                proof = message.proof
        if proof is None:
            raise codec.malformed("answer.proof", "is not set")
        return codec.parse_summary(proof.tree, "answer.proof.tree"), proof

    def import_container(
        self, parts: Iterator[bytes], *, timeout_s: float, must_end: Callable[[], bool]
    ) -> pb.ImportContainerResponse:
        """Send a replica to the datanode as encoded `ImportPart`s. Cancel the call when `must_end`
        returns True.

        The call is not retried. The datanode deletes the data of an interrupted call.
        """
        answer: pb.ImportContainerResponse = upload(
            self.stub.ImportContainer, parts, timeout_s=timeout_s, must_end=must_end
        )
        return answer

    # Replicas and their state.

    def replica(self, container_id: ContainerId) -> container_pb2.ReplicaReport:
        """Return the datanode's report about its replica of a container."""
        request = pb.GetContainerRequest(container_id=container_id)
        answer: pb.GetContainerResponse = self._call(self.stub.GetContainer, request)
        return answer.replica

    def replicas(self, start: int = 0) -> pb.ListContainersResponse:
        """Return one page of the datanode's replicas, beginning with the container id `start`."""
        request = pb.ListContainersRequest(start_container_id=start)
        answer: pb.ListContainersResponse = self._call(self.stub.ListContainers, request)
        return answer

    def findings(self, container_id: ContainerId) -> list[pb.Finding]:
        """Return the unresolved findings of one replica; of all replicas if `container_id` is 0."""
        found: list[pb.Finding] = []
        request = pb.ListFindingsRequest(container_id=container_id)
        while True:
            answer: pb.ListFindingsResponse = self._call(self.stub.ListFindings, request)
            found += answer.findings
            if answer.next_container_id == 0:
                return found
            if answer.next_container_id <= request.start_container_id:
                raise codec.malformed("answer.next_container_id", "does not come to an end")
            request = pb.ListFindingsRequest(start_container_id=answer.next_container_id)

    def history(self, container_id: ContainerId) -> list[pb.HistoryEntry]:
        """Return the history of a replica, the oldest entry first."""
        request = pb.ListHistoryRequest(container_id=container_id)
        answer: pb.ListHistoryResponse = self._call(self.stub.ListHistory, request)
        return list(answer.entries)

    def changes(self, since_ms: int) -> pb.ListChangesResponse:
        """Return the newest changes on the datanode since `since_ms`."""
        request = pb.ListChangesRequest(since_ms=since_ms)
        answer: pb.ListChangesResponse = self._call(self.stub.ListChanges, request)
        return answer

    def audit(self, request: container_pb2.ListAuditRequest) -> container_pb2.ListAuditResponse:
        """Return the newest lines of the datanode's audit log about commands of people."""
        answer: container_pb2.ListAuditResponse = self._call(self.stub.ListAudit, request)
        return answer

    def scan(
        self, container_id: ContainerId, *, queue: bool = False, full_speed: bool = False
    ) -> Iterator[pb.ScanProgress]:
        """Scan a complete replica now, and yield the progress. The last message has the result.

        If `queue` is True, the scan is only queued. If `full_speed` is True, the scan does not slow
        down for clients.
        """
        request = pb.ScanContainerRequest(
            container_id=container_id, queue=queue, full_speed=full_speed
        )
        yield from stream(self.stub.ScanContainer, request, timeout_s=SCAN_TIMEOUT_S)

    def scanned(
        self,
        container_id: ContainerId,
        *,
        full_speed: bool = False,
        progress: Callable[[pb.ScanProgress], None] = lambda _: None,
        waits: Callable[[SutureError], None] = lambda _: None,
        timeout_s: float = PATIENCE_S,
    ) -> pb.ScanResult:
        """Scan a complete replica now, and return the result. Retry while the datanode or the
        container is busy.

        `progress` is called with each message about the progress, and `waits` with the first
        refusal.
        """

        def once() -> pb.ScanResult:
            for step in self.scan(container_id, full_speed=full_speed):
                progress(step)
                if step.HasField("result"):
                    return step.result
            raise UnavailableError(
                Code.UNAVAILABLE, f"{self.address} ended the scan without a result"
            )

        return retry_while(
            once,
            codes={Code.BUSY},
            must_end=lambda: False,
            waits=waits,
            timeout_s=timeout_s,
        )

    def sample(self, request: pb.SampleChunksRequest) -> Iterator[pb.SampleProgress]:
        """Count the chunks of the datanode, or read a random sample of them. Yield the progress;
        the last message has the result."""
        yield from stream(self.stub.SampleChunks, request, timeout_s=SAMPLE_TIMEOUT_S)

    def trust(self, request: pb.TrustReplicaRequest) -> pb.TrustReplicaResponse:
        """Make the replica equal to the replica that an operator trusts, or return the changes that
        this would cause."""
        answer: pb.TrustReplicaResponse = call(
            self.stub.TrustReplica, request, timeout_s=SCAN_TIMEOUT_S
        )
        return answer

    def status(self) -> pb.StatusResponse:
        """Return the datanode's status."""
        answer: pb.StatusResponse = self._call(self.stub.Status, pb.StatusRequest())
        return answer

    def scrub_status(self, *, with_last_pass: bool = False) -> pb.ScrubStatusResponse:
        """Return the progress of the background scans. If `with_last_pass` is True, also return the
        last full passes."""
        request = pb.ScrubStatusRequest(with_last_pass=with_last_pass)
        answer: pb.ScrubStatusResponse = self._call(self.stub.ScrubStatus, request)
        return answer

    def control_scrub(self, request: pb.ControlScrubRequest) -> pb.ScrubStatusResponse:
        """Pause, resume or cancel background scans. Return their progress."""
        answer: pb.ScrubStatusResponse = self._call(self.stub.ControlScrub, request)
        return answer

    def control_volume(self, request: pb.ControlVolumeRequest) -> pb.ControlVolumeResponse:
        """Set the mode of a volume, or add a volume. Return all volumes."""
        answer: pb.ControlVolumeResponse = self._call(self.stub.ControlVolume, request)
        return answer

    def list_disks(self) -> pb.ListDisksResponse:
        """Return the faults that the disks and the kernel of the datanode's host report."""
        answer: pb.ListDisksResponse = self._call(self.stub.ListDisks, pb.ListDisksRequest())
        return answer
