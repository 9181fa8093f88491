"""What a client does: store files under keys, and read them back from any replica.

The reader trusts nobody: every window of every chunk is checked, and a bad replica costs one retry
with the next.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from agent.errors import Code, SutureError, Unavailable
from agent.rpc.peer import Peer
from agent.rpc.scm import ScmClient
from agent.rpc.v1 import container_pb2, datanode_pb2_grpc, scm_pb2
from agent.writer import Source, Stored, WriterSession, balanced, put_share
from merkle.replica import BlockId, ContainerId

LANES_DEFAULT: Final = 4  # writer sessions side by side, each with its own container


class Client:
    """Stores and fetches keys through one SCM. Use as a context manager."""

    def __init__(self, scm_address: str) -> None:
        self.scm = ScmClient(scm_address)
        self._peers: dict[str, Peer] = {}

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection."""
        for peer in self._peers.values():
            peer.close()
        self.scm.close()

    def put(
        self,
        sources: Sequence[Source],
        *,
        lanes: int = LANES_DEFAULT,
        replace: bool = False,
        close: bool = False,
        progress: Callable[[Stored], None] = lambda _: None,
    ) -> tuple[list[Stored], list[int]]:
        """Store every source; return what is stored, and the containers that hold it.

        `close` asks the SCM to close those containers. The first failure stops the rest and is
        raised; keys committed before it stay stored.
        """
        shares = balanced(sources, max(1, min(lanes, len(sources))))
        sessions = [WriterSession(self.scm, self._dial) for _ in shares]
        with ThreadPoolExecutor(len(sessions) or 1, thread_name_prefix="put") as pool:
            futures = [
                pool.submit(put_share, session, share, replace, progress)
                for session, share in zip(sessions, shares, strict=True)
            ]
            results = [future.result() for future in futures]
        for session in sessions:
            session.finish(close=close)
        stored = [item for result in results for item in result]
        return stored, sorted({b.block_id.container_id for item in stored for b in item.blocks})

    def get(self, key: str, *, datanode_id: str | None = None) -> Iterator[bytes]:
        """Yield the bytes of `key`, every window verified.

        With `datanode_id` only that replica is read; else a replica that fails or lies is
        replaced by the next, without a byte of it having been yielded.
        """
        answer = self.scm.lookup_key(scm_pb2.LookupKeyRequest(key=key))
        replicas = {item.container_id: list(item.replicas) for item in answer.containers}
        for location in answer.key.blocks:
            container_id = location.block_id.container_id
            candidates = [
                replica
                for replica in replicas.get(container_id, [])
                if datanode_id in (None, replica.datanode_id)
            ]
            yield from self._read_block(key, location, candidates)

    def peer(self, address: str) -> Peer:
        """Return the connection to the datanode at `address`, made on first use."""
        if address not in self._peers:
            self._peers[address] = Peer(address)
        return self._peers[address]

    def _read_block(
        self,
        key: str,
        location: scm_pb2.BlockLocation,
        candidates: Iterable[container_pb2.DatanodeEndpoint],
    ) -> Iterator[bytes]:
        container_id = ContainerId(location.block_id.container_id)
        block_id = BlockId(location.block_id.local_id)
        at = 0
        reasons: list[str] = []
        for replica in candidates:
            try:
                peer = self.peer(replica.address)
                for chunk in peer.block(container_id, block_id).chunks:
                    if chunk.offset < at:
                        continue  # yielded already, from a replica that failed later
                    _, data = peer.read_chunk(container_id, block_id, chunk.offset)
                    at = chunk.end
                    yield data
            except SutureError as error:
                reasons.append(f"{replica.datanode_id}: {error}")
                continue
            if at == location.length:
                return
            reasons.append(f"{replica.datanode_id}: has {at} of {location.length} bytes")
        raise Unavailable(
            Code.UNAVAILABLE,
            f"no replica gives block {block_id} of container {container_id} for {key}: "
            + ("; ".join(reasons) or "no replica is known"),
        )

    def _dial(self, address: str) -> datanode_pb2_grpc.DatanodeStub:
        return self.peer(address).stub
