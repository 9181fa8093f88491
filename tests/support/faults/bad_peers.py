"""Datanodes that misbehave as peers, each over a real server."""

from itertools import count
from threading import Event, Thread

from merkle.checksum import window_checksums
from merkle.replica import ChecksumType
from suture.wire.v1 import datanode_pb2
from tests.support.storage.datanodes import CountingReads, Datanode


class Liar(CountingReads):
    """Serves wrong bytes that do not match its tree, with checksums that match the wrong bytes."""

    def ReadChunk(self, request):  # type: ignore[no-untyped-def]
        """Serve a chunk of zeros with the checksums of these zeros."""
        for answer in super().ReadChunk(request):
            if answer.HasField("chunk"):
                lie = bytes(answer.chunk.length)
                kind = answer.chunk.checksum
                kind.checksums = window_checksums(
                    ChecksumType(kind.type), kind.bytes_per_checksum, lie
                )
                answer.data = lie
                yield answer
                return


class Garbler(CountingReads):
    """Serves bytes that do not match the checksums in the same answer."""

    def ReadChunk(self, request):  # type: ignore[no-untyped-def]
        """Flip a bit of every piece of a chunk."""
        for answer in super().ReadChunk(request):
            if answer.data:
                answer.data = bytes([answer.data[0] ^ 1]) + answer.data[1:]
            yield answer


class Dying(CountingReads):
    """Stops in the middle of the first chunk that is read."""

    def __init__(self, datanode: Datanode) -> None:
        super().__init__(datanode)
        self._deaths = count()

    def ReadChunk(self, request, context):  # type: ignore[no-untyped-def]
        """Send the description of a chunk; the first call also stops the server.

        The handler waits for the end of the call. If it returned before, the call could end
        normally, which does not happen when a process dies. The server is stopped by another
        thread, because its own handlers cannot stop it.
        """
        over = Event()
        assert context.add_callback(over.set)
        for answer in super().ReadChunk(request):
            yield datanode_pb2.ReadChunkResponse(chunk=answer.chunk)
            assert self.datanode.built is not None
            if next(self._deaths) == 0:
                Thread(target=self.datanode.built.server.stop, args=(0,), daemon=True).start()
            assert over.wait(20)
            return


class Hanging(CountingReads):
    """Accepts requests for chunks and never answers them."""

    go_on = Event()

    def ReadChunk(self, request):  # type: ignore[no-untyped-def]
        """Record the request, and wait."""
        self.datanode.reads.append((request.block_id.local_id, request.offset))
        self.go_on.wait(20)
        return iter(())


class Shifting(CountingReads):
    """Changes its tree between a peer's request for its blocks and the request for their chunks."""

    def GetContainerHashes(self, request):  # type: ignore[no-untyped-def]
        """Damage and scan the replica before the first request for chunks is answered, so that its
        tree changes."""
        if request.level == datanode_pb2.CHUNKS and not self.datanode.reads:
            self.datanode.reads.append((0, 0))
            self.datanode.replica.flip(3, 5)
            self.datanode.scan()
        yield from super().GetContainerHashes(request)
