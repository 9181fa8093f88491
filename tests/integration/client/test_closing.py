"""What `close` of a client does to calls under way, and to those that come later."""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest

from suture import AsyncClient, Client, KeyNotFound, SutureError, UnavailableError
from suture.client.writer import WriterSession
from suture.errors import Code
from suture.wire.clients import message_groups
from suture.wire.clients.channel import retry_while
from suture.wire.clients.scm import ScmClient
from suture.wire.v1 import scm_pb2
from tools.demo.cluster import Cluster

BLOCK_BYTES = 3 * 1024**2
SIZE_BYTES = 2 * BLOCK_BYTES + 12_345
SCHEMES = pytest.mark.parametrize("replication", ["", "xor-2-1-16k"], ids=["copies", "coded"])
CLOSED = "the client was closed"


@pytest.fixture(autouse=True)
def blocks_of_some_mib(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have files become several blocks."""
    monkeypatch.setattr(WriterSession, "block_bytes", BLOCK_BYTES)


def content() -> bytes:
    """Return bytes of which no two pieces are alike."""
    return random.Random(11).randbytes(SIZE_BYTES)


def refusal(call: Callable[[], object]) -> tuple[Code, str]:
    """Return the error of the client's own that a call ends with."""
    with pytest.raises(SutureError) as caught:
        call()
    assert isinstance(caught.value, UnavailableError)
    return caught.value.code, str(caught.value)


@SCHEMES
def test_a_read_under_way_says_so(
    cluster: Cluster, replication: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    No datanode is accused, and nothing of how the bytes are fetched shows.
    """
    monkeypatch.setattr(message_groups, "GROUP_COUNT_MAX", 1)  # else all may be here already
    name = f"closing/read/{replication}"
    with Client(cluster.scm.address) as writer:
        writer.put(name, content(), replication=replication, replace=True)
    client = Client(cluster.scm.address)
    pieces = client.stream(name)
    next(pieces)

    client.close()

    assert (Code.UNAVAILABLE, CLOSED) == refusal(lambda: list(pieces))


@SCHEMES
def test_a_put_under_way_says_so_and_stores_nothing(cluster: Cluster, replication: str) -> None:
    """The put fails at once, and no datanode is reported as failed, which would exclude it from
    further blocks.
    """
    name = f"closing/put/{replication}"
    client = Client(cluster.scm.address)

    def close(_length_bytes: int) -> None:
        client.close()

    said = refusal(lambda: client.put(name, content(), replication=replication, progress=close))

    assert (Code.UNAVAILABLE, CLOSED) == said
    with Client(cluster.scm.address) as other:
        with pytest.raises(KeyNotFound):
            other.info(name)
        other.put(name, b"another", replication=replication)


def test_calls_after_close_are_refused_without_a_connection(
    cluster: Cluster, tmp_path: Path
) -> None:
    """No connection is opened for them, and a second close does nothing."""
    with Client(cluster.scm.address) as writer:
        writer.put("closing/after", b"x", replace=True)
        writer.put("closing/coded", b"x", replace=True, replication="xor-2-1-16k")
    with Client(cluster.scm.address) as client:
        opened = [client.stream("closing/after"), client.stream("closing/coded")]
        listed = client.list("closing/")
    calls: list[Callable[[], object]] = [
        lambda: client.put("closing/more", b"x"),
        lambda: client.get("closing/after"),
        lambda: client.download("closing/after", tmp_path / "file"),
        lambda: client.info("closing/after"),
        lambda: client.delete("closing/after"),
        lambda: list(listed),
        lambda: list(opened[0]),
        lambda: list(opened[1]),
    ]

    said = [refusal(call) for call in calls]
    client.close()

    assert [(Code.UNAVAILABLE, CLOSED)] * len(calls) == said
    assert [] == list(tmp_path.iterdir())
    assert {} == client._cluster._peers
    assert client._cluster._cells is None


def test_awaited_calls_end_when_the_async_client_closes(cluster: Cluster) -> None:
    """Calls under way, calls that wait for their turn, and later calls all raise
    UnavailableError.
    """

    async def scenario() -> list[BaseException | None]:
        client = AsyncClient(cluster.scm.address)
        await client.put("closing/async", content(), replace=True)
        stream = client.stream("closing/async")
        await anext(stream)
        waiting = [asyncio.create_task(client.get("closing/async")) for _ in range(20)]
        await asyncio.sleep(0)
        await client.close()
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        later = await asyncio.gather(
            drained(stream),
            drained(client.list("closing/")),
            client.info("closing/async"),
            client.put("closing/more", b"x"),
            client.delete("closing/async"),
            client.close(),
            return_exceptions=True,
        )
        return [one for one in (*ended, *later) if not isinstance(one, bytes)]

    async def drained(source: AsyncGenerator[object, None]) -> None:
        async for _ in source:
            pass

    *said, last = asyncio.run(scenario())

    assert last is None
    assert len(said) >= 5
    assert {(UnavailableError, CLOSED)} == {(type(one), str(one)) for one in said}


def test_closed_own_connection_is_not_retried(cluster: Cluster) -> None:
    """A silent control plane may be restarting, so the client retries. A connection that the
    client itself closed is not retried.
    """
    waits: list[SutureError] = []
    with ScmClient(cluster.scm.address) as scm:
        scm.list_nodes(scm_pb2.ListNodesRequest())

    with pytest.raises(UnavailableError, match="the connection was closed"):
        retry_while(
            lambda: scm.list_nodes(scm_pb2.ListNodesRequest()),
            codes={Code.UNAVAILABLE},
            must_end=lambda: len(waits) > 0,
            waits=waits.append,
        )

    assert [] == waits
