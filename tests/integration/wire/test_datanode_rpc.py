"""The datanode's service on loopback over a real store, as clients and peers use it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import grpc
import pytest
import tenacity
from grpc_health.v1 import health_pb2, health_pb2_grpc

from agent.services.limits import DatanodeServerLimits
from agent.services.read_handlers import ReadHandlers, pieces
from agent.services.scan_handlers import ScanHandlers
from agent.services.server import build_server
from agent.services.service_protocols import ScanStep
from merkle.checksum import window_checksums
from merkle.replica import Bcsid, BlockData, BlockId, ChecksumType, ChunkInfo, ContainerId
from suture.errors import Code, RefusedError, UnavailableError
from suture.runtime.clock import SystemClock
from suture.wire.clients.block_peer import PeerTimeouts, TransferCost
from suture.wire.clients.channel import call, stream
from suture.wire.clients.peer import Peer
from suture.wire.mapping import codec
from suture.wire.mapping.errors import error_of
from suture.wire.v1 import container_pb2
from suture.wire.v1 import datanode_pb2 as pb
from tests.support.storage import datanodes
from tests.support.storage.datanodes import CountingReads, Datanode, code_of
from tests.support.storage.stored_replica import CHUNK_BYTES, CONTAINER, noise

MiB = 1024**2
OPEN = ContainerId(2)


@pytest.fixture
def datanode(tmp_path: Path) -> Iterator[Datanode]:
    """A datanode with container 1 closed, three blocks of two chunks, serving."""
    made = Datanode("dn1", tmp_path)
    made.replica.create()
    made.serve()
    yield made
    made.close()


@pytest.fixture
def peer(datanode: Datanode) -> Iterator[Peer]:
    """A client of it."""
    with Peer(datanode.address, timeouts=PeerTimeouts(call_s=5.0, tree_s=5.0, chunk_s=5.0)) as made:
        yield made


def ask(method: object, request: object) -> object:
    """Call once, with a deadline."""
    return call(method, request, timeout_s=10.0)  # type: ignore[arg-type]


def write(peer: Peer, block_id: int, *datas: bytes, bcsid: int = 1, stated: bool = True) -> None:
    """Write a block to the open container as a client does."""
    key = container_pb2.BlockId(container_id=OPEN, local_id=block_id, bcsid=bcsid)
    committed = container_pb2.BlockData(block_id=key)
    offset = 0
    for data in datas:
        chunk = container_pb2.ChunkInfo(offset=offset, length=len(data))
        if stated:
            sums = window_checksums(ChecksumType.CRC32C, 16_384, data)
            chunk.checksum.CopyFrom(
                container_pb2.ChecksumData(
                    type=container_pb2.CRC32C, bytes_per_checksum=16_384, checksums=sums
                )
            )
        committed.chunks.append(chunk)
        committed.size += len(data)
        offset += len(data)
        request = pb.WriteChunkRequest(block_id=key, chunk=chunk, data=data)
        if len(committed.chunks) == len(datas):
            request.commit.CopyFrom(committed)
        ask(peer.stub.WriteChunk, request)


class TestWriting:
    @pytest.mark.parametrize("stated", [True, False])
    def test_written_chunks_are_read_back(self, peer: Peer, stated: bool) -> None:
        """The checksums come from the client or from the datanode."""
        first, second = noise(3 * MiB + 17, 1), noise(100, 2)
        ask(peer.stub.CreateContainer, pb.CreateContainerRequest(container_id=OPEN))

        write(peer, 5, first, second, stated=stated)

        block = peer.block(OPEN, BlockId(5))
        assert len(first) + len(second) == block.length_bytes
        assert [ChecksumType.CRC32C] * 2 == [chunk.checksum_type for chunk in block.chunks]
        assert first == peer.read_chunk(OPEN, BlockId(5), 0)[1]
        assert second == peer.read_chunk(OPEN, BlockId(5), len(first))[1]

    def test_creating_and_committing_again_changes_nothing(self, peer: Peer) -> None:
        """A client that lost the answer may repeat the call."""
        for _ in range(2):
            ask(peer.stub.CreateContainer, pb.CreateContainerRequest(container_id=OPEN))
            write(peer, 5, b"x" * 1_000)

        assert (1, 1_000) == (
            peer.replica(OPEN).block_count,
            peer.replica(OPEN).used_bytes,
        )

    def test_a_wrong_checksum_is_refused_and_nothing_is_kept(
        self, peer: Peer, datanode: Datanode
    ) -> None:
        """Data that changed on its way is the client's to send again."""
        ask(peer.stub.CreateContainer, pb.CreateContainerRequest(container_id=OPEN))
        sums = window_checksums(ChecksumType.CRC32C, 16_384, b"x" * 1_000)
        chunk = ChunkInfo(0, 1_000, ChecksumType.CRC32C, 16_384, sums)
        request = pb.WriteChunkRequest(
            block_id=container_pb2.BlockId(container_id=OPEN, local_id=5),
            chunk=codec.chunk_message(chunk),
            data=b"y" * 1_000,
        )

        refused = code_of(lambda: ask(peer.stub.WriteChunk, request))

        assert Code.CHECKSUM_MISMATCH.value == refused
        assert 0 == datanode.replica.store.replica(OPEN).used_bytes

    def test_the_largest_chunk_passes_and_a_larger_message_does_not(self, peer: Peer) -> None:
        """32 MiB of data and their description fit one message; more never arrives."""
        ask(peer.stub.CreateContainer, pb.CreateContainerRequest(container_id=OPEN))
        data = bytes(32 * MiB)

        write(peer, 5, data)
        refused = code_of(lambda: write(peer, 6, bytes(34 * MiB)))

        assert Code.MALFORMED_REQUEST.value == refused
        assert data == peer.read_chunk(OPEN, BlockId(5), 0)[1]

    def test_a_closed_container_takes_no_writes(self, peer: Peer) -> None:
        """The refusal has the state of the container."""
        request = pb.WriteChunkRequest(
            block_id=container_pb2.BlockId(container_id=CONTAINER, local_id=99),
            chunk=container_pb2.ChunkInfo(length=1),
            data=b"x",
        )

        with pytest.raises(RefusedError, match="CLOSED") as raised:
            ask(peer.stub.WriteChunk, request)

        assert Code.CONTAINER_NOT_OPEN is raised.value.code

    def test_close_and_delete(self, peer: Peer) -> None:
        """The tree is there before close answers; a non-empty replica is deleted by force only."""
        ask(peer.stub.CreateContainer, pb.CreateContainerRequest(container_id=OPEN))
        write(peer, 5, b"x" * 1_000)

        closed = ask(peer.stub.CloseContainer, pb.CloseContainerRequest(container_id=OPEN, bcsid=1))
        gentle = code_of(
            lambda: ask(peer.stub.DeleteContainer, pb.DeleteContainerRequest(container_id=OPEN))
        )
        ask(peer.stub.DeleteContainer, pb.DeleteContainerRequest(container_id=OPEN, force=True))

        assert (container_pb2.CLOSED, True) == (
            closed.replica.state,  # type: ignore[attr-defined]
            closed.replica.HasField("tree"),  # type: ignore[attr-defined]
        )
        assert Code.DELETE_ON_NON_EMPTY_CONTAINER.value == gentle
        assert Code.CONTAINER_NOT_FOUND.value == code_of(lambda: peer.replica(OPEN))


class TestReading:
    def test_pieces_end_with_windows(self) -> None:
        """A reader checks each piece as it comes, except where a window is larger than a piece."""
        small = ChunkInfo(5, 3 * MiB, ChecksumType.CRC32C, 300_000, b"")
        large = ChunkInfo(0, 3 * MiB, ChecksumType.CRC32C, 2 * MiB, b"")

        assert [(5, 900_000), (900_005, 900_000), (1_800_005, 900_000), (2_700_005, 445_728)] == [
            *pieces(small)
        ]
        assert [(0, MiB), (MiB, MiB), (2 * MiB, MiB)] == [*pieces(large)]

    def test_a_damaged_chunk_is_served_as_it_is_and_refused_by_the_reader(
        self, peer: Peer, datanode: Datanode
    ) -> None:
        """The server does not verify; the reader does."""
        datanode.replica.flip(1, 5)

        assert Code.CHECKSUM_MISMATCH.value == code_of(
            lambda: peer.read_chunk(CONTAINER, BlockId(1), 0)
        )

    @pytest.mark.parametrize(
        ("key", "code"),
        [
            ({"container_id": 99, "local_id": 1}, Code.CONTAINER_NOT_FOUND),
            ({"container_id": 1, "local_id": 99}, Code.NO_SUCH_BLOCK),
            ({"container_id": 1, "local_id": 1, "bcsid": 99}, Code.UNKNOWN_BCSID),
            ({"container_id": 1, "local_id": 1, "bcsid": 3}, Code.BCSID_MISMATCH),
            ({"container_id": 1, "local_id": 1, "replica_index": 4}, Code.CONTAINER_NOT_FOUND),
            ({"container_id": 1}, Code.MALFORMED_REQUEST),
        ],
    )
    def test_read_of_a_missing_block_is_refused_by_name(
        self, peer: Peer, key: dict[str, int], code: Code
    ) -> None:
        """GetBlocks, of each block, and the calls that read data give the same answer."""
        block_id = container_pb2.BlockId(**key)  # type: ignore[arg-type]
        read = pb.ReadChunkRequest(block_id=block_id)
        rest = pb.ReadBlockRequest(block_id=block_id)

        def get_block() -> None:
            answer = ask(peer.stub.GetBlocks, pb.GetBlocksRequest(block_ids=[block_id]))
            raise error_of(answer.results[0].code, message="")  # type: ignore[attr-defined]

        said = [
            code_of(get_block),
            code_of(lambda: list(stream(peer.stub.ReadChunk, read, timeout_s=5))),
            code_of(lambda: list(stream(peer.stub.ReadBlock, rest, timeout_s=5))),
            code_of(lambda: ask(peer.stub.GetSmallFile, rest)),
        ]

        assert [code.value] * 4 == said

    @pytest.mark.parametrize(("size_bytes", "messages"), [(900_000, 1), (3 * MiB, 3)])
    def test_a_chunk_comes_with_its_description(
        self, peer: Peer, size_bytes: int, messages: int
    ) -> None:
        """In the first message, and in no other."""
        ask(peer.stub.CreateContainer, pb.CreateContainerRequest(container_id=OPEN))
        data = noise(size_bytes, 1)
        write(peer, 5, data)
        key = container_pb2.BlockId(container_id=OPEN, local_id=5)

        answers = list(stream(peer.stub.ReadChunk, pb.ReadChunkRequest(block_id=key), timeout_s=5))

        assert messages == len(answers)
        assert size_bytes == answers[0].chunk.length
        assert data == b"".join(answer.data for answer in answers)
        assert not any(answer.HasField("chunk") for answer in answers[1:])

    @pytest.mark.parametrize("at", [0, 1, 899_999, 900_000, 3 * MiB - 1], ids=str)
    def test_a_block_is_read_from_the_chunk_that_holds_a_byte(self, peer: Peer, at: int) -> None:
        """Chunk after chunk in one call, or all in one message: the same bytes."""
        ask(peer.stub.CreateContainer, pb.CreateContainerRequest(container_id=OPEN))
        datas = [noise(900_000, 1), noise(2 * MiB, 2), noise(3 * MiB - 900_000 - 2 * MiB, 3)]
        write(peer, 5, *datas)
        whole = b"".join(datas)
        chunks = peer.block(OPEN, BlockId(5)).chunks
        first = next(chunk.offset for chunk in chunks if chunk.end > at)

        parts = list(peer.parts_from(OPEN, BlockId(5), at, len(whole)))

        assert whole[first:] == b"".join(data for _, data in parts)
        assert all(data == whole[start : start + len(data)] for start, data in parts)

    def test_block_too_large_for_one_message_is_refused(self, peer: Peer) -> None:
        """The refusal is by length. The rest of the block is read from an offset."""
        ask(peer.stub.CreateContainer, pb.CreateContainerRequest(container_id=OPEN))
        write(peer, 5, bytes(MiB), bytes(1))
        key = container_pb2.BlockId(container_id=OPEN, local_id=5)

        whole = code_of(lambda: ask(peer.stub.GetSmallFile, pb.ReadBlockRequest(block_id=key)))
        rest = ask(peer.stub.GetSmallFile, pb.ReadBlockRequest(block_id=key, offset=MiB))

        assert Code.INELIGIBLE.value == whole
        assert b"\0" == rest.data  # type: ignore[attr-defined]

    @pytest.mark.parametrize("missing_bytes", [1, 3 * MiB], ids=["in one message", "as a stream"])
    def test_read_behind_the_end_is_refused(self, peer: Peer, missing_bytes: int) -> None:
        """The error says that there is no chunk; the answer is not empty."""
        end = 2 * CHUNK_BYTES + 1

        assert Code.UNABLE_TO_FIND_CHUNK.value == code_of(
            lambda: list(peer.parts_from(CONTAINER, BlockId(1), end, end + missing_bytes))
        )

    def test_bytes_that_were_damaged_end_a_block_where_they_are(
        self, peer: Peer, datanode: Datanode
    ) -> None:
        """The bytes before them were verified and are used, whichever call they came by."""
        ask(peer.stub.CreateContainer, pb.CreateContainerRequest(container_id=OPEN))
        datas = [noise(MiB, 1), noise(MiB, 2), noise(100, 3), noise(100, 4)]
        write(peer, 5, *datas)
        file = datanode.replica.file(5, OPEN)
        content = bytearray(file.read_bytes())
        for at in (MiB + 7, 2 * MiB + 107):
            content[at] ^= 1
        file.write_bytes(bytes(content))

        taken: list[bytes] = []
        for at in (0, 2 * MiB):
            with pytest.raises(RefusedError, match="not match the checksums"):
                taken.extend(
                    data for _, data in peer.parts_from(OPEN, BlockId(5), at, 2 * MiB + 200)
                )

        assert [datas[0], datas[2]] == taken

    def test_no_chunk_begins_in_the_middle(self, peer: Peer) -> None:
        """A chunk is named by where it begins."""
        assert Code.UNABLE_TO_FIND_CHUNK.value == code_of(
            lambda: peer.read_chunk(CONTAINER, BlockId(1), 1)
        )

    def test_lists_are_paged_to_their_end(self, datanode: Datanode) -> None:
        """Every replica, block and finding comes exactly once, whatever the page size."""
        store = datanode.replica.store
        for container in range(10, 17):
            store.create_container(ContainerId(container))
        limits = DatanodeServerLimits(replicas_page_max=3, blocks_page_max=2)
        groups = [
            ReadHandlers(store, limits=limits),
            ScanHandlers(store, lambda *_: (), lambda *_: (), limits=limits),
        ]
        with ThreadPoolExecutor(2) as executor:
            built = build_server(
                groups, "127.0.0.1:0", executor, datanode_id="small", limits=limits
            )
            built.server.start()
            with Peer(f"127.0.0.1:{built.port}") as small:
                blocks = [block.block_id for block in small.blocks_of(CONTAINER)]
                found: list[int] = []
                start = 0
                while True:
                    page = small.replicas(start)
                    found += [replica.container_id for replica in page.replicas]
                    if page.next_container_id == 0:
                        break
                    assert start < page.next_container_id
                    start = page.next_container_id
            built.server.stop(0).wait()

        assert ([1, 2, 3], [1, *range(10, 17)]) == (blocks, found)

    def test_the_tree_is_that_of_the_store(self, peer: Peer, datanode: Datanode) -> None:
        """Fetched whole, and metered as it was serialized."""
        meter = TransferCost()

        tree = peer.tree(CONTAINER, meter)

        assert datanode.replica.store.view(CONTAINER).tree() == tree
        assert 0 < meter.tree_bytes < 1_000

    def test_an_open_container_has_no_tree(self, peer: Peer) -> None:
        """Never a root of 0."""
        ask(peer.stub.CreateContainer, pb.CreateContainerRequest(container_id=OPEN))

        assert Code.UNCLOSED_CONTAINER_IO.value == code_of(lambda: peer.summary(OPEN))


class TestJudging:
    def test_a_scan_that_is_refused_as_busy_is_asked_for_again(
        self, peer: Peer, datanode: Datanode, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The caller is notified once of the wait, and of each step. Any other refusal ends the
        wait.
        """
        asked, told, steps = [], list[str](), list[bool]()
        commit = datanode.replica.scan().commit
        refusals = [UnavailableError(Code.BUSY, "20 wait"), UnavailableError(Code.BUSY, "20 wait")]

        def scan(*_: object) -> Iterator[ScanStep]:
            asked.append(1)
            if refusals:
                raise refusals.pop()
            yield ScanStep(0, 9, is_waiting=True)
            yield ScanStep(9, 9, commit)

        monkeypatch.setattr(datanodes, "scan_steps", scan)
        result = peer.scanned(
            CONTAINER,
            progress=lambda step: steps.append(step.waiting),
            waits=lambda error: told.append(str(error)),
        )
        refusals.append(UnavailableError(Code.DISK_OUT_OF_SPACE, "full"))
        ended = code_of(lambda: peer.scanned(CONTAINER))

        assert (3 + 1, [True, False], 9) == (len(asked), steps, result.bytes_read)
        assert 1 == len(told)
        assert "20 wait" in told[0]
        assert Code.DISK_OUT_OF_SPACE.value == ended

    def test_a_scan_tells_what_it_found(self, peer: Peer, datanode: Datanode) -> None:
        """The last message has replica and findings; ListFindings has the same."""
        datanode.replica.flip(2, CHUNK_BYTES + 5)

        *_, last = peer.scan(CONTAINER)

        assert (container_pb2.UNHEALTHY, 1) == (
            last.result.replica.state,
            last.result.finding_count,
        )
        [finding] = last.result.findings
        assert ("CORRUPT", "CHUNK_CHECKSUM", "SINGLE_BIT", 2, CHUNK_BYTES) == (
            finding.verdict,
            finding.fault,
            finding.forensic,
            finding.local_id,
            finding.offset,
        )
        assert [finding] == peer.findings(CONTAINER)
        every = ask(peer.stub.ListFindings, pb.ListFindingsRequest())
        assert [finding] == list(every.findings)  # type: ignore[attr-defined]

    def test_status_is_the_runtimes(self, peer: Peer) -> None:
        """The service returns what the runtime reports."""
        assert "dn1" == peer.status().datanode_id


class Slow(CountingReads):
    """Holds calls of GetContainer until it is told to go on."""

    go_on = Event()
    arrived = Event()

    def GetContainer(self, request):  # type: ignore[no-untyped-def]
        """Wait, then answer."""
        self.arrived.set()
        self.go_on.wait(10)
        return super().GetContainer(request)


class TestLoad:
    def test_calls_beyond_the_limit_are_refused_at_once(self, tmp_path: Path) -> None:
        """Overload is an answer, and those inside are served."""
        datanode = Datanode("dn1", tmp_path)
        datanode.replica.create(blocks=1)
        slow = Slow(datanode)
        datanode.serve(lambda _: slow, limits=DatanodeServerLimits(rpc_count_max=1))
        with Peer(datanode.address) as peer:
            request = pb.GetContainerRequest(container_id=CONTAINER)
            inside = peer.stub.GetContainer.future(request, timeout=10)
            assert slow.arrived.wait(10)

            with pytest.raises(UnavailableError) as raised:
                ask(peer.stub.GetContainer, request)
            slow.go_on.set()

            assert Code.BUSY is raised.value.code
            assert CONTAINER == inside.result().replica.container_id
        datanode.close()

    def test_a_container_that_is_held_is_busy_not_stuck(
        self, peer: Peer, datanode: Datanode
    ) -> None:
        """A change waits for the lease a bounded time, and reads do not wait at all."""
        request = pb.DeleteContainerRequest(container_id=CONTAINER, force=True)

        with datanode.replica.leases.hold(CONTAINER):
            busy = code_of(lambda: ask(peer.stub.DeleteContainer, request))
            read = peer.read_chunk(CONTAINER, BlockId(1), 0)[1]

        assert (Code.BUSY.value, CHUNK_BYTES) == (busy, len(read))
        assert CONTAINER == peer.replica(CONTAINER).container_id

    def test_a_caller_that_gave_up_frees_its_place(self, tmp_path: Path) -> None:
        """No thread waits for a lease for a caller whose deadline has passed."""
        datanode = Datanode("dn1", tmp_path)
        datanode.replica.create(blocks=1)
        datanode.serve(limits=DatanodeServerLimits(rpc_count_max=1, lease_timeout_s=30.0))
        request = pb.DeleteContainerRequest(container_id=CONTAINER, force=True)
        patient = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(UnavailableError),
            stop=tenacity.stop_after_delay(5),
            wait=tenacity.wait_fixed(0.05),
            reraise=True,
        )

        with Peer(datanode.address) as peer, datanode.replica.leases.hold(CONTAINER):
            gave_up = code_of(lambda: call(peer.stub.DeleteContainer, request, timeout_s=0.3))
            replica = patient(peer.replica, CONTAINER)

        datanode.close()
        assert gave_up in {Code.UNAVAILABLE.value, Code.BUSY.value}
        assert CONTAINER == replica.container_id

    def test_a_reader_that_leaves_frees_its_place(self, peer: Peer, datanode: Datanode) -> None:
        """A cancelled stream ends at the server, so the next call is served."""
        service = datanode.replica.store
        data = noise(20 * MiB, 3)
        sums = window_checksums(ChecksumType.CRC32C, 16_384, data)
        chunk = ChunkInfo(0, len(data), ChecksumType.CRC32C, 16_384, sums)
        service.create_container(OPEN)
        block = BlockData(BlockId(1), Bcsid(1), (chunk,))
        service.writer(OPEN).write_chunk(BlockId(1), chunk, data, commit=block)
        request = pb.ReadChunkRequest(block_id=container_pb2.BlockId(container_id=OPEN, local_id=1))

        for _ in range(40):  # more than the server has threads
            answers = stream(peer.stub.ReadChunk, request, timeout_s=10)
            next(answers)
            answers.close()

        assert data == peer.read_chunk(OPEN, BlockId(1), 0)[1]


class TestServer:
    def test_health_says_serving(self, datanode: Datanode) -> None:
        """Both for the process and for the service by name."""
        with grpc.insecure_channel(datanode.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            answers = [
                stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=5).status
                for name in ("", "suture.v1.Datanode")
            ]

        assert [health_pb2.HealthCheckResponse.SERVING] * 2 == answers

    def test_two_servers_cannot_share_a_port(self, datanode: Datanode) -> None:
        """The second is refused, and the error has the address."""
        with ThreadPoolExecutor(1) as executor, pytest.raises(RefusedError) as raised:
            build_server(
                datanode.groups(),
                datanode.address,
                executor,
                datanode_id="second",
                limits=DatanodeServerLimits(),
            )

        assert (Code.INVALID_CONFIG, True) == (
            raised.value.code,
            datanode.address in str(raised.value),
        )

    def test_a_dead_server_is_unavailable_soon(self, datanode: Datanode) -> None:
        """Without a listener, the retries end well before the deadline."""
        datanode.stop_serving()
        before_ms = SystemClock().now_ms()

        with Peer(datanode.address) as peer:
            gone = code_of(lambda: peer.summary(CONTAINER))

        assert (Code.UNAVAILABLE.value, True) == (gone, SystemClock().now_ms() - before_ms < 9_000)
