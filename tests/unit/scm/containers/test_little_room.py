"""Many writer sessions in a cluster with room for two containers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from scm.state.entities import Container, ContainerState
from scm.state.options import ScmOptions
from suture.errors import Code, UnavailableError
from tests.support.control.scm_world import GIB, ScmWorld, key

OPTIONS = ScmOptions().model_copy(
    update={"container_bytes_max": 40 * GIB}
)  # of the 90 GiB that each node has
SIZES = [8192]
SCHEME = "xor-2-1-1024k"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """Three nodes, each with room for two containers."""
    with ScmWorld(tmp_path, OPTIONS).running() as made:
        made.join("dn1", "dn2", "dn3")
        yield made


def container_of(world: ScmWorld, container_id: int) -> Container:
    """Return a container that exists."""
    found = world.state.containers.get(container_id)
    assert found is not None
    return found


def test_sessions_without_pending_blocks_share_the_room_of_two_containers(
    world: ScmWorld,
) -> None:
    """A session that keeps its container between puts keeps no other session from writing."""
    clients, bcsids = world.control.clients, dict[int, list[int]]()

    for number in range(64):
        blocks = clients.allocate(f"session-{number}", SIZES)
        stored = key(f"k{number}", blocks, SIZES)
        clients.commit(f"session-{number}", [stored], may_replace=False, failed=())
        bcsids.setdefault(blocks[0].container_id, []).append(blocks[0].bcsid)

    assert 2 == len(world.state.containers.open_all()) == len(bcsids)
    assert all(sorted(found) == found for found in bcsids.values())
    assert 64 == sum(map(len, bcsids.values()))


def test_session_waits_while_all_containers_have_pending_blocks(world: ScmWorld) -> None:
    """It gets the first container whose blocks are committed; the commit ids rise on."""
    clients = world.control.clients
    mine, theirs = clients.allocate("a", SIZES), clients.allocate("b", SIZES)

    with pytest.raises(UnavailableError) as caught:
        clients.allocate("c", SIZES)
    clients.commit("b", [key("k", theirs, SIZES)], may_replace=False, failed=())
    [block] = clients.allocate("c", SIZES)

    assert Code.BUSY is caught.value.code
    assert (theirs[0].container_id, 2) == (block.container_id, block.bcsid)
    assert "a" == container_of(world, mine[0].container_id).client_id


def test_container_that_changed_hands_ignores_its_earlier_session(world: ScmWorld) -> None:
    """The end of that session closes it no more, and a late failure report drops no replica."""
    clients = world.control.clients
    clients.allocate("a", SIZES)
    blocks = clients.allocate("b", SIZES)
    clients.commit("b", [key("k", blocks, SIZES)], may_replace=False, failed=())
    [block] = clients.allocate("c", SIZES)

    clients.commit("b", [], may_replace=False, failed=[(block.container_id, "dn1")])
    ended = clients.finish("b", close=True)

    found = container_of(world, block.container_id)
    assert [] == ended
    assert (ContainerState.OPEN, "c", 3) == (found.state, found.client_id, len(found.pipeline))


def test_container_of_the_session_idle_longest_changes_hands(world: ScmWorld) -> None:
    """A busy session keeps its container as long as another one is idle."""
    clients = world.control.clients
    for session in ("a", "b", "a"):
        world.clock.advance_s(1)
        blocks = clients.allocate(session, SIZES)
        stored = key(f"{session}{blocks[0].bcsid}", blocks, SIZES)
        clients.commit(session, [stored], may_replace=False, failed=())

    [block] = clients.allocate("c", SIZES)

    assert ["a", "c"] == sorted(one.client_id for one in world.state.containers.open_all())
    assert 2 == block.bcsid


def test_idle_container_of_another_scheme_is_closed_for_its_room(world: ScmWorld) -> None:
    """An erasure-coded key does not fail because of room that idle containers reserve."""
    clients = world.control.clients
    for session in ("a", "b"):
        blocks = clients.allocate(session, SIZES)
        stored = key(session, blocks, SIZES)
        clients.commit(session, [stored], may_replace=False, failed=())

    [block] = clients.allocate("c", SIZES, scheme=SCHEME)

    assert SCHEME == container_of(world, block.container_id).scheme
    assert [ContainerState.CLOSING, ContainerState.OPEN] == [
        container_of(world, number).state for number in (1, 2)
    ]


def test_sealed_container_reserves_only_its_pending_blocks(world: ScmWorld) -> None:
    """It takes no more blocks, so the rest of a full container is free for others."""
    clients = world.control.clients
    clients.allocate("a", [30 * GIB])
    clients.allocate("a", [20 * GIB])  # does not fit: the first container is sealed

    [promised] = {one.scheduled_bytes for one in world.control.cases.candidates()}

    assert 70 * GIB == promised


def test_node_without_room_for_one_container_is_no_reason_to_wait(tmp_path: Path) -> None:
    """The error names the lack of room at once, although another session has a container."""
    options = ScmOptions().model_copy(update={"container_bytes_max": 40 * GIB})
    with ScmWorld(tmp_path, options).running() as world:
        world.join("dn1", "dn2", "dn3", "dn4")
        world.control.clients.allocate("a", SIZES)

        with pytest.raises(UnavailableError) as caught:
            world.control.clients.allocate("b", SIZES, scheme="rs-3-2-1024k")

    assert Code.NOT_ENOUGH_NODES is caught.value.code
