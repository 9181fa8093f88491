"""How much goes into a container: no replica of it, whole copy or shard, may exceed its size."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest

from scm.state.entities import ContainerState
from scm.state.options import ScmOptions
from suture.errors import Code, RefusedError
from tests.support.control.scm_world import ScmWorld, key

KIB = 1024
MIB = 1024 * KIB
OPTIONS = ScmOptions(container_bytes_max=10 * MIB)
SCHEME = "rs-3-2-1024k"
NODES = tuple(f"dn{number}" for number in range(1, 6))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """Five nodes, containers of 10 MiB."""
    with ScmWorld(tmp_path, OPTIONS).running() as made:
        made.join(*NODES)
        yield made


def counts(world: ScmWorld, sizes: list[int], scheme: str = SCHEME) -> list[int]:
    """Have blocks promised; return how many go into one container after the other."""
    blocks = world.control.clients.allocate("a", sizes, scheme=scheme)
    return [len(list(group)) for _, group in groupby(block.container_id for block in blocks)]


@pytest.mark.parametrize(
    ("scheme", "size_bytes", "count"),
    [
        (SCHEME, MIB, 10),  # one cell: the first shard and both of parity have all of it
        (SCHEME, MIB + 1, 10),
        (SCHEME, 3 * MIB, 10),  # a stripe
        (SCHEME, 3 * MIB + 1, 9),
        (SCHEME, 4 * MIB, 5),
        ("rs-6-3-1024k", 512 * KIB, 20),
        ("xor-2-1-1024k", 2 * MIB, 10),
        ("", MIB, 10),
    ],
)
def test_a_container_is_full_when_its_largest_replica_is(
    tmp_path: Path, scheme: str, size_bytes: int, count: int
) -> None:
    """Small keys are in one data shard and all of parity: a datanode refuses what exceeds."""
    with ScmWorld(tmp_path, OPTIONS).running() as world:
        world.join(*(f"dn{number}" for number in range(9)))

        assert [count, 1] == counts(world, [size_bytes] * (count + 1), scheme)


@pytest.mark.parametrize(
    ("size_bytes", "is_taken"),
    [
        (30 * MIB, True),
        (30 * MIB + 512 * KIB, True),
        (30 * MIB + 512 * KIB + 1, False),
        (31 * MIB + 512 * KIB, False),  # three times a container
    ],
)
def test_a_group_with_a_shard_larger_than_a_container_is_refused(
    tmp_path: Path, size_bytes: int, *, is_taken: bool
) -> None:
    """Its last stripe is in the first shard and in parity. The error has the size that fits."""
    options = OPTIONS.model_copy(update={"container_bytes_max": 10 * MIB + 512 * KIB})
    with ScmWorld(tmp_path, options).running() as world:
        world.join(*NODES)
        try:
            taken = counts(world, [size_bytes])
            told: tuple[str, ...] = ()
        except RefusedError as error:
            taken, told = [], (error.code, error.facts["block_bytes_max"])

    refused = ([], (Code.INVALID_WRITE_SIZE, str(30 * MIB + 512 * KIB)))
    assert (([1], ()) if is_taken else refused) == (taken, told)


def test_space_promised_of_a_datanode_is_the_rest_of_its_shard(world: ScmWorld) -> None:
    """The promised space is the rest of that shard and not of all data shards together, so other
    containers get the space.
    """
    sizes = [3 * MIB] * 4
    blocks = world.control.clients.allocate("a", sizes, scheme=SCHEME)
    world.control.clients.commit("a", [key("k", blocks, sizes)], may_replace=False, failed=())

    promised = {c.datanode_id: c.scheduled_bytes for c in world.control.cases.candidates()}

    assert dict.fromkeys(NODES, 6 * MIB) == promised


def test_a_container_of_an_earlier_version_ends_where_its_keys_would_fill_a_replica(
    world: ScmWorld,
) -> None:
    """
    Its books say how many bytes of keys it was promised, which is no less than any shard has: no
    more goes into it, and its keys stay.
    """
    sizes = [9 * MIB]
    [block] = world.control.clients.allocate("a", sizes, scheme=SCHEME)
    world.control.clients.commit("a", [key("k", [block], sizes)], may_replace=False, failed=())
    made = world.state.containers.get(block.container_id)
    assert made is not None
    with world.state.change() as change:
        older = replace(made, allocated_bytes=27 * MIB, committed_bytes=27 * MIB)
        change.put(world.state.containers, older)
    world.restart()
    world.join(*NODES)
    for node in NODES:
        world.beat(node, full=True)

    promised = {c.scheduled_bytes for c in world.control.cases.candidates()}
    [later] = world.control.clients.allocate("a", [1], scheme=SCHEME)

    ended = world.state.containers.get(block.container_id)
    assert {0} == promised
    assert later.container_id != block.container_id
    assert ended is not None
    assert ContainerState.CLOSING is ended.state
    assert block.local_id == world.control.clients.lookup("k")[0].blocks[0].local_id
