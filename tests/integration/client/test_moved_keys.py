"""Keys whose containers move, or that are replaced, while somebody reads them."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from suture import Client, Code, KeyNotFound, KeyReplaced
from suture.client.writer import WriterSession
from suture.wire.clients import message_groups
from tests.support.forked_cluster import forked_cluster
from tests.support.waiting import wait_until
from tools.demo.cluster import Cluster

pytestmark = pytest.mark.slow

BLOCK_BYTES = 5 * 1024**2
SIZE_BYTES = 2 * BLOCK_BYTES + 12_345
SCHEMES = pytest.mark.parametrize("replication", ["", "xor-2-1-16k"], ids=["copies", "coded"])


@pytest.fixture(scope="module")
def moving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of our own: its agents come back under other addresses."""
    with forked_cluster(
        tmp_path_factory.mktemp("moving"),
    ) as running:
        yield running


@pytest.fixture
def client(moving: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client of that cluster, which stores in blocks of some MiB."""
    monkeypatch.setattr(WriterSession, "block_bytes", BLOCK_BYTES)
    with Client(moving.scm.address) as opened:
        yield opened


def content(seed: int) -> bytes:
    """Return bytes of which no two pieces are alike."""
    return random.Random(seed).randbytes(SIZE_BYTES)


def move_all(cluster: Cluster) -> None:
    """Have no replica any more where it was: all agents come back under other addresses."""
    for node in cluster.nodes:
        node.stop()
    for index, node in enumerate(cluster.nodes):
        cluster.write_config(index)
        node.start()
    new = {node.address for node in cluster.nodes}
    with Client(cluster.scm.address) as asking:
        asking.put("moved", b"x", replace=True)
        found = asking._cluster.find
        wait_until(lambda: {at.address for at in found("moved").containers[0].replicas} <= new)


@pytest.fixture(autouse=True)
def few_cells_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have cells come one by one: else those of a whole file are here with the first of them."""
    monkeypatch.setattr(message_groups, "GROUP_COUNT_MAX", 1)


@SCHEMES
def test_a_reader_goes_on_where_the_replicas_are_now(
    moving: Cluster, client: Client, replication: str
) -> None:
    """
    A backup that takes hours outlives that none of them is where it was. Each byte comes once.
    """
    whole = content(1)
    name = f"long/{replication}"
    client.put(name, whole, replication=replication)
    pieces = client.stream(name, start=5, stop=SIZE_BYTES - 5)
    read = [next(pieces)]

    move_all(moving)
    read += pieces

    assert whole[5:-5] == b"".join(read)


@SCHEMES
def test_two_versions_of_a_key_are_never_mixed(
    moving: Cluster, client: Client, replication: str, tmp_path: Path
) -> None:
    """The key was replaced by bytes of the same length, and its old blocks are gone. The reader
    gets an error and no byte of the new version, and an existing download file stays as it was.
    """
    old, new = content(2), content(3)
    name = f"replaced/{replication}"
    client.put(name, old, replication=replication)
    path = tmp_path / "file"
    path.write_bytes(b"as it was")
    read: list[bytes] = []

    def replace(_: int) -> None:
        if not read:
            read.append(b"")
            client.put(name, new, replace=True, replication=replication)
            move_all(moving)

    pieces = client.stream(name)
    taken = [next(pieces)]
    with pytest.raises(KeyReplaced, match=f"{name}: it was replaced during the read") as caught:
        client.download(name, path, progress=replace)
    with pytest.raises(KeyReplaced):
        taken.extend(pieces)

    assert Code.KEY_REPLACED == caught.value.code
    assert old.startswith(b"".join(taken))
    assert b"as it was" == path.read_bytes()
    assert new == client.get(name)


def test_a_key_that_is_deleted_meanwhile_is_not_told_of_as_lost(
    moving: Cluster, client: Client
) -> None:
    """The error says that the key was deleted, and not that its blocks are lost."""
    client.put("deleted", content(4))
    pieces = client.stream("deleted")
    next(pieces)

    client.delete("deleted")
    move_all(moving)

    with pytest.raises(KeyNotFound, match="deleted was deleted while it was read"):
        list(pieces)
