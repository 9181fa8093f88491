"""A key is looked up again where its bytes cannot be had any more, and read on from there."""

from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace

import pytest

from merkle.replica import BlockId, ContainerId
from suture.client import cluster_client
from suture.client.cluster_client import ClusterClient
from suture.errors import Code, RefusedError, UnavailableError
from suture.wire.clients import channel
from suture.wire.clients.block_peer import NodeAddress
from suture.wire.clients.channel import RESTART_PAUSES_S
from suture.wire.v1 import container_pb2, scm_pb2

MIB = 1024**2
BLOCK_BYTES = 3 * MIB
CONTENT = bytes(range(256)) * (BLOCK_BYTES // 256)


class Cluster:
    """Datanodes by their ports, and a control plane that says where the block is now."""

    def __init__(self) -> None:
        self.sends_until: dict[int, int] = {}  # port -> where its replica ends
        self.asked: list[tuple[int, int]] = []  # port and offset, in their order
        self.answers: list[scm_pb2.LookupKeyResponse | RefusedError] = []
        self.looked_up_count = 0
        self.silent_count = 0  # the next calls of datanodes are not answered

    def peer(self, datanode: NodeAddress) -> "Datanode":
        """Return the datanode at an address."""
        return Datanode(self, int(datanode.address.partition(":")[2]))

    def find(self, _key: str) -> scm_pb2.LookupKeyResponse:
        """Say what is said next, and the last of it for ever."""
        answer = self.answers[min(self.looked_up_count, len(self.answers) - 1)]
        self.looked_up_count += 1
        if isinstance(answer, RefusedError):
            raise answer
        return answer


class Datanode:
    """Sends the block up to a place, in parts of a MiB, and then no more."""

    def __init__(self, cluster: Cluster, port: int) -> None:
        self._cluster = cluster
        self._port = port

    def parts_from(
        self, _container_id: ContainerId, _block_id: BlockId, offset: int, _end: int, **_: object
    ) -> Iterator[tuple[int, bytes]]:
        """Send what is left behind `offset`, up to where this datanode ends."""
        self._cluster.asked.append((self._port, offset))
        if self._cluster.silent_count:
            self._cluster.silent_count -= 1
            raise UnavailableError(Code.UNAVAILABLE, "connection refused")
        for at in range(offset, self._cluster.sends_until.get(self._port, 0), MIB):
            yield at, CONTENT[at : at + MIB]
        raise RefusedError(Code.CONTAINER_NOT_FOUND, "no container 1")


@pytest.fixture
def cluster() -> Cluster:
    """The cluster of one test."""
    return Cluster()


@pytest.fixture
def client(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterClient]:
    """A client of it."""
    with ClusterClient("127.0.0.1:1") as opened:
        monkeypatch.setattr(opened, "block_peer", cluster.peer)
        monkeypatch.setattr(opened, "find", cluster.find)
        yield opened


def at_port(port: int, *, local_id: int = 1) -> scm_pb2.LookupKeyResponse:
    """Return a key of one block, on one datanode."""
    block = scm_pb2.BlockLocation(
        block_id=container_pb2.BlockId(container_id=1, local_id=local_id), length=BLOCK_BYTES
    )
    where = container_pb2.DatanodeEndpoint(datanode_id=f"dn{port}", address=f"127.0.0.1:{port}")
    return scm_pb2.LookupKeyResponse(
        key=scm_pb2.KeyInfo(key="k", size=BLOCK_BYTES, blocks=[block]),
        containers=[scm_pb2.ContainerReplicas(container_id=1, replicas=[where])],
    )


def test_moved_block_is_read_once_byte_for_byte(client: ClusterClient, cluster: Cluster) -> None:
    """The block moves in the middle of a read, and more than once."""
    cluster.sends_until = {1: MIB, 2: 2 * MIB, 3: BLOCK_BYTES}
    cluster.answers = [at_port(2), at_port(3)]

    read = b"".join(client.read(at_port(1), start=7, stop=BLOCK_BYTES - 7))

    assert CONTENT[7:-7] == read
    assert 2 == cluster.looked_up_count


def test_failed_replicas_of_an_unmoved_block_are_not_asked_again(
    client: ClusterClient, cluster: Cluster
) -> None:
    """Each was asked already, so the loss is reported at once and not after the deadlines of a
    second round.
    """
    cluster.sends_until = {1: MIB}
    cluster.answers = [at_port(1)]

    with pytest.raises(UnavailableError, match=f"no good copy of block 1 of .* at offset {MIB}"):
        list(client.read(at_port(1)))

    assert [(1, 0)] == cluster.asked
    assert 1 == cluster.looked_up_count


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The client's pauses, which take no time."""
    slept: list[float] = []
    monkeypatch.setattr(cluster_client, "pause", slept.append)
    return slept


def test_datanodes_that_restart_are_called_again(
    client: ClusterClient, cluster: Cluster, pauses: list[float]
) -> None:
    """The block did not move, and no byte is lost or read twice."""
    cluster.sends_until = {1: BLOCK_BYTES}
    cluster.answers = [at_port(1)]
    cluster.silent_count = len(RESTART_PAUSES_S)

    assert CONTENT == b"".join(client.read(at_port(1)))
    assert list(RESTART_PAUSES_S) == pauses


def test_datanodes_that_do_not_come_back_are_reported(
    client: ClusterClient, cluster: Cluster, pauses: list[float]
) -> None:
    """The client gives up after a few seconds, and names what each datanode did."""
    cluster.answers = [at_port(1)]
    cluster.silent_count = 100

    with pytest.raises(UnavailableError, match="dn1: connection refused"):
        list(client.read(at_port(1)))

    assert list(RESTART_PAUSES_S) == pauses


def test_datanode_that_costs_its_deadline_is_not_called_again(
    client: ClusterClient, cluster: Cluster, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call to a hung datanode takes longer than all pauses."""
    now_s = count(step=sum(RESTART_PAUSES_S))
    monkeypatch.setattr(channel, "time", SimpleNamespace(monotonic=lambda: next(now_s)))
    cluster.answers = [at_port(1)]
    cluster.silent_count = 100

    with pytest.raises(UnavailableError, match="dn1: connection refused"):
        list(client.read(at_port(1)))

    assert [] == pauses
    assert [(1, 0)] == cluster.asked


def test_places_that_change_for_ever_are_not_followed_for_ever(
    client: ClusterClient, cluster: Cluster
) -> None:
    """
    The key is looked up again once for a byte that does not come.
    """
    cluster.answers = [at_port(number) for number in (2, 3, 4, 5)]

    with pytest.raises(UnavailableError, match="dn2: no container 1"):
        list(client.read(at_port(1)))

    assert 1 == cluster.looked_up_count


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (at_port(2, local_id=2), Code.KEY_REPLACED),
        (RefusedError(Code.KEY_NOT_FOUND, "no key k"), Code.KEY_NOT_FOUND),
        (RefusedError(Code.KEY_LOST, "key k is lost"), Code.KEY_LOST),
    ],
    ids=["replaced", "deleted", "lost"],
)
def test_read_of_a_deleted_or_replaced_key_reports_the_change(
    client: ClusterClient,
    cluster: Cluster,
    answer: scm_pb2.LookupKeyResponse | RefusedError,
    code: Code,
) -> None:
    """Datanodes with other bytes under the same name are not asked, even if the length is equal."""
    cluster.sends_until = {1: MIB, 2: BLOCK_BYTES}
    cluster.answers = [answer]
    read: list[bytes] = []

    with pytest.raises(RefusedError) as caught:
        read.extend(map(bytes, client.read(at_port(1))))

    assert code is caught.value.code
    assert CONTENT[:MIB] == b"".join(read)
    assert {1} == {port for port, _ in cluster.asked}
