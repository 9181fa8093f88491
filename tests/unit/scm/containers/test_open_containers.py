"""Writers' sessions: blocks promised, committed, sealed, closed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from merkle.replica import ReplicaState
from scm.api.calls import client_calls
from scm.state.entities import CommandKind, ContainerState, Key
from scm.state.options import ScmOptions
from scm.state.state_metadata import RestoreRecord
from suture.errors import Code, RefusedError, UnavailableError
from tests.support.control.scm_world import ScmWorld, confirm, key, replica

MIB = 1024**2
OPTIONS = ScmOptions(container_bytes_max=10 * MIB)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """Four nodes on two racks, containers of 10 MiB."""
    with ScmWorld(tmp_path, OPTIONS).running() as made:
        made.join("dn1", "dn2", "dn3", "dn4", racks=("/r1", "/r2"))
        yield made


def state_of(world: ScmWorld, container_id: int) -> ContainerState:
    """Return a container's state."""
    container = world.state.containers.get(container_id)
    assert container is not None
    return container.state


class TestAllocate:
    def test_blocks_of_a_session_share_a_container_and_have_rising_bcsids(
        self, world: ScmWorld
    ) -> None:
        """A replica with a higher bcsid has everything a lower one has."""
        blocks = world.control.clients.allocate("a", [1, 2]) + world.control.clients.allocate(
            "a", [3]
        )

        assert [1, 1, 1] == [b.container_id for b in blocks]
        assert [1, 2, 3] == [b.bcsid for b in blocks]
        assert 3 == len({b.local_id for b in blocks})
        assert 3 == len({e.datanode_id for e in blocks[0].replicas})
        assert blocks[0].replicas == blocks[2].replicas

    def test_two_sessions_never_share_an_open_container(self, world: ScmWorld) -> None:
        """One writer's failure must not close another's container."""
        mine = world.control.clients.allocate("a", [1])[0]
        theirs = world.control.clients.allocate("b", [1])[0]

        assert mine.container_id != theirs.container_id

    def test_a_full_container_rolls_over(self, world: ScmWorld) -> None:
        """The next block goes to a new container; nothing ever exceeds the size."""
        blocks = world.control.clients.allocate("a", [6 * MIB, 4 * MIB, 1, 10 * MIB])

        assert [1, 1, 2, 3] == [b.container_id for b in blocks]

    def test_a_block_larger_than_a_container_is_refused(self, world: ScmWorld) -> None:
        """All of the request is: nothing was promised."""
        with pytest.raises(RefusedError) as caught:
            world.control.clients.allocate("a", [1, 10 * MIB + 1])

        assert caught.value.code is Code.INVALID_WRITE_SIZE
        assert "10485761 bytes" in str(caught.value)
        assert 0 == len(world.state.containers)

    def test_without_three_healthy_nodes_nothing_is_promised(self, world: ScmWorld) -> None:
        """Two silent nodes are enough. The error has the number of healthy nodes."""
        world.clock.advance_s(60)
        world.keep_alive("dn1", "dn2")

        with pytest.raises(UnavailableError) as caught:
            world.control.clients.allocate("a", [1])

        assert caught.value.code is Code.NOT_ENOUGH_NODES
        assert "2 are healthy" in str(caught.value)

    def test_a_container_with_a_silent_node_takes_no_more_blocks(self, world: ScmWorld) -> None:
        """The session continues in another container, and may still commit its blocks in the old
        one.
        """
        blocks = world.control.clients.allocate("a", [1])
        silent = blocks[0].replicas[0].datanode_id
        world.clock.advance_s(60)
        world.keep_alive(*{"dn1", "dn2", "dn3", "dn4"} - {silent})

        more = world.control.clients.allocate("a", [1])
        world.control.clients.commit("a", [key("k", blocks, [1])], may_replace=False, failed=())

        assert blocks[0].container_id != more[0].container_id
        assert silent not in {e.datanode_id for e in more[0].replicas}
        assert ContainerState.CLOSING is state_of(world, blocks[0].container_id)

    def test_ids_are_not_given_again_after_a_restart(self, world: ScmWorld) -> None:
        """A promise is durable before the writer gets it."""
        before = world.control.clients.allocate("a", [1, 1])
        world.restart()
        world.join("dn1", "dn2", "dn3", "dn4", racks=("/r1", "/r2"))
        confirm(world, "dn1", "dn2", "dn3", "dn4")

        after = world.control.clients.allocate("a", [1])[0]

        assert after.container_id == before[0].container_id
        assert after.bcsid == 3
        assert after.local_id not in {b.local_id for b in before}


class TestCommit:
    def test_a_committed_key_is_found_with_its_blocks_in_order(self, world: ScmWorld) -> None:
        """The look-up also gives the datanodes of the key's containers."""
        blocks = world.write("a", "dir/file", 3, 4)

        found, containers = world.control.clients.lookup("dir/file")

        assert (7, [b.local_id for b in blocks]) == (
            found.size_bytes,
            [b.local_id for b in found.blocks],
        )
        assert [(1, {e.datanode_id for e in blocks[0].replicas})] == [
            (one.container_id, {e.datanode_id for e in one.endpoints}) for one in containers
        ]

    def test_the_same_commit_twice_is_one_commit(self, world: ScmWorld) -> None:
        """The answer to the first may have been lost."""
        blocks = world.write("a", "k", 3)

        world.control.clients.commit("a", [key("k", blocks, [3])], may_replace=False, failed=())

        assert 1 == len(world.state.keys)

    def test_an_existing_key_is_replaced_only_on_purpose(self, world: ScmWorld) -> None:
        """Without `replace` nothing changes, not even the promises of the other keys."""
        world.write("a", "k", 3)
        blocks = world.control.clients.allocate("a", [5, 6])
        keys = [key("new", blocks[:1], [5]), key("k", blocks[1:], [6])]

        with pytest.raises(RefusedError) as caught:
            world.control.clients.commit("a", keys, may_replace=False, failed=())
        names = [
            k.name for k in world.control.clients.list_keys(prefix="", start_after="", count=9)[0]
        ]
        world.control.clients.commit("a", keys, may_replace=True, failed=())

        assert caught.value.code is Code.KEY_EXISTS
        assert ["k"] == names
        assert 6 == world.control.clients.lookup("k")[0].size_bytes
        assert 5 == world.control.clients.lookup("new")[0].size_bytes

    def test_only_promised_blocks_can_be_committed(self, world: ScmWorld) -> None:
        """A block of another session, with another bcsid, of a greater length or committed twice
        is refused.
        """
        blocks = world.control.clients.allocate("a", [5])
        good = key("k", blocks, [5])
        long = key("k", blocks, [6])
        wrong = Key("k", 5, 0, (type(good.blocks[0])(1, blocks[0].local_id, 9, 5),))
        codes = []

        for session, attempt in [("b", good), ("a", long), ("a", wrong), ("a", good)]:
            try:
                world.control.clients.commit(session, [attempt], may_replace=False, failed=())
                codes.append("OK")
            except RefusedError as error:
                codes.append(error.code)
        with pytest.raises(RefusedError) as twice:
            world.control.clients.commit(
                "a", [key("other", blocks, [5])], may_replace=False, failed=()
            )

        assert ["BLOCK_NOT_COMMITTED", "MALFORMED_REQUEST", "MALFORMED_REQUEST", "OK"] == codes
        assert twice.value.code is Code.BLOCK_NOT_COMMITTED

    def test_a_commit_after_the_close_is_refused_with_the_reason(self, world: ScmWorld) -> None:
        """The writer must write again, and the error has the reason."""
        blocks = world.control.clients.allocate("a", [5])
        world.control.closures.close_containers([1])
        node = blocks[0].replicas[0].datanode_id
        world.beat(node, replica(node, bcsid=1))

        with pytest.raises(RefusedError) as caught:
            world.control.clients.commit("a", [key("k", blocks, [5])], may_replace=False, failed=())

        assert caught.value.code is Code.CONTAINER_NOT_OPEN
        assert "closed by an operator" in str(caught.value)

    def test_a_commit_while_closing_is_taken(self, world: ScmWorld) -> None:
        """The datanodes have the block; a replica without it will show by its bcsid."""
        blocks = world.control.clients.allocate("a", [5])
        world.control.closures.close_containers([1])

        world.control.clients.commit("a", [key("k", blocks, [5])], may_replace=False, failed=())

        container = world.state.containers.get(1)
        assert container is not None
        assert (ContainerState.CLOSING, 1) == (container.state, container.sequence_id)

    def test_a_replica_left_behind_ends_the_container_soon(self, world: ScmWorld) -> None:
        """No new block goes into it; it closes when the last promised one is committed."""
        blocks = world.control.clients.allocate("a", [5, 5])
        behind = blocks[0].replicas[2].datanode_id
        first, second = key("1", blocks[:1], [5]), key("2", blocks[1:], [5])

        world.control.clients.commit("a", [first], may_replace=False, failed=[(1, behind)])
        half_way = state_of(world, 1)
        elsewhere = [world.control.clients.allocate(session, [5])[0] for session in "abcdef"]
        world.control.clients.commit("a", [second], may_replace=False, failed=[])

        assert ContainerState.OPEN is half_way
        assert 1 not in {block.container_id for block in elsewhere}
        assert behind not in {e.datanode_id for block in elsewhere for e in block.replicas}
        assert ContainerState.CLOSING is state_of(world, 1)


class TestSessions:
    def test_finish_with_close_closes(self, world: ScmWorld) -> None:
        """The operator of a demo does not wait for idleness."""
        world.write("a", "k", 5)

        assert [1] == world.control.clients.finish("a", close=True)
        assert ContainerState.CLOSING is state_of(world, 1)

    def test_a_released_container_is_gone_on_with(self, world: ScmWorld) -> None:
        """A thousand small puts do not make a thousand containers."""
        for i in range(5):
            world.write(f"session-{i}", f"k{i}", 5)
            world.control.clients.finish(f"session-{i}", close=False)

        assert 1 == len(world.state.containers)
        assert ContainerState.OPEN is state_of(world, 1)

    def test_a_session_that_owes_commits_leaves_nothing_to_the_next(self, world: ScmWorld) -> None:
        """Its replicas may disagree about what it wrote last."""
        world.control.clients.allocate("a", [5])
        world.control.clients.finish("a", close=False)

        assert ContainerState.CLOSING is state_of(world, 1)

    def test_an_idle_container_is_closed(self, world: ScmWorld) -> None:
        """A dead writer sends no message, so the time decides."""
        world.write("a", "k", 5)
        nodes = ("dn1", "dn2", "dn3", "dn4")
        for _ in range(60):
            world.clock.advance_s(10)
            world.keep_alive(*nodes)
            world.control.tick()
        before = state_of(world, 1)
        world.clock.advance_s(10)
        world.keep_alive(*nodes)
        world.control.tick()

        assert ContainerState.OPEN is before
        assert ContainerState.CLOSING is state_of(world, 1)

    @pytest.mark.parametrize("says_so", [True, False])
    def test_container_of_a_large_unfinished_key_stays_open(
        self, tmp_path: Path, *, says_so: bool
    ) -> None:
        """A writer that renews its session keeps the full container and the next one open beyond
        the idle limit. Without renewals both are closed.
        """
        options = OPTIONS.model_copy(update={"session_idle_ms": 60_000})
        nodes = ("dn1", "dn2", "dn3", "dn4")
        with ScmWorld(tmp_path, options).running() as world:
            world.join(*nodes)
            clients = world.control.clients
            blocks = clients.allocate("a", [10 * MIB, 5 * MIB])
            for _ in range(2 * options.session_idle_ms // clients.renew_ms):
                world.clock.advance_s(clients.renew_ms / 1000)
                if says_so:
                    clients.commit("a", [], may_replace=False, failed=())
                clients.commit("b", [], may_replace=False, failed=())
                world.keep_alive(*nodes)
                world.control.tick()

            found = [state_of(world, block.container_id) for block in blocks]

        assert 2 == len({block.container_id for block in blocks})
        assert found == [ContainerState.OPEN if says_so else ContainerState.CLOSING] * 2
        assert clients.renew_ms * 2 <= min(30_000, options.session_idle_ms)

    def test_a_full_container_closes_when_nothing_is_owed(self, world: ScmWorld) -> None:
        """The writer moves on to another container, and no finish is needed."""
        blocks = world.write("a", "k", 10 * MIB)
        before = state_of(world, blocks[0].container_id)
        world.control.clients.allocate("a", [1])

        assert ContainerState.OPEN is before
        assert ContainerState.CLOSING is state_of(world, blocks[0].container_id)


class TestBlocksThatWereNeverCommitted:
    def test_are_deleted_once_no_commit_is_taken(self, world: ScmWorld) -> None:
        """A writer that gave up leaves rows and bytes; those of keys are not touched."""
        [mine] = world.write("a", "k", 5)
        left = world.control.clients.allocate("a", [5, 6])
        world.control.clients.finish("a", close=True)
        before = list(world.state.transactions.values())
        for endpoint in mine.replicas:
            world.beat(endpoint.datanode_id, replica(endpoint.datanode_id, bcsid=1))

        [transaction] = world.state.transactions.values()
        assert [] == before
        assert (1, tuple(block.local_id for block in left)) == (
            transaction.container_id,
            transaction.local_ids,
        )
        assert not world.state.allocations.has_any(1)
        assert mine.local_id not in transaction.local_ids

    def test_stay_where_they_were_promised_before_a_backup(self, world: ScmWorld) -> None:
        """Before and after the recovery it is unknown whether they were committed since."""
        [old] = world.control.clients.allocate("a", [5])
        world.state.note_restore(RestoreRecord(0, 2, ()), None)
        world.control.closures.close_containers([1])
        for endpoint in old.replicas:
            world.beat(endpoint.datanode_id, replica(endpoint.datanode_id, bcsid=1))
        is_over = not world.state.allocations.has_any(1)
        [later] = world.control.clients.allocate("b", [5])
        world.state.note_restore(
            None, RestoreRecord(0, 2, (), end_container_id=later.container_id + 1)
        )
        world.control.closures.close_containers([later.container_id])
        for endpoint in later.replicas:
            mine = replica(endpoint.datanode_id, bcsid=1, container_id=later.container_id)
            world.beat(endpoint.datanode_id, mine)

        assert is_over
        assert ContainerState.CLOSED is state_of(world, later.container_id)
        assert [] == list(world.state.transactions.values())


@pytest.mark.parametrize("is_restored", [False, True])
def test_a_shard_that_missed_what_was_never_committed_is_closed_all_the_same(
    tmp_path: Path, *, is_restored: bool
) -> None:
    """After a restore it is unknown what was committed, so it stays."""
    nodes = [f"dn{number}" for number in range(1, 6)]
    with ScmWorld(tmp_path, OPTIONS).running() as world:
        world.join(*nodes)
        first, _never = world.control.clients.allocate("a", [5, 6], scheme="rs-3-2-1024k")
        world.control.clients.commit("a", [key("k", [first], [5])], may_replace=False, failed=())
        if is_restored:
            world.state.note_restore(RestoreRecord(0, 1, ()), None)
        world.control.clients.finish("a", close=True)
        for index, endpoint in enumerate(first.replicas, start=1):
            is_short = index == 5
            state = ReplicaState.QUASI_CLOSED if is_short else ReplicaState.CLOSED
            node = endpoint.datanode_id
            shard = replica(node, state, bcsid=2 - is_short, replica_index=index)
            world.execute(node, world.beat(node, shard))
        last = first.replicas[4].datanode_id
        world.clock.advance_s(5)
        world.control.tick()

        sent = [
            command for command, _ in world.call(last).commands if command.kind is CommandKind.CLOSE
        ]

        assert ([] if is_restored else [(2, True)]) == [(c.bcsid, c.force) for c in sent if c.force]


class TestListKeys:
    def test_pages_join_to_the_whole(self, world: ScmWorld) -> None:
        """The last page has no continuation."""
        for name in ("a/1", "a/2", "a/3", "b/1"):
            world.write("s", name, 1)

        first, after = world.control.clients.list_keys(prefix="a/", start_after="", count=2)
        second, end = world.control.clients.list_keys(prefix="a/", start_after=after, count=2)

        assert ["a/1", "a/2", "a/3"] == [k.name for k in first + second]
        assert "" == end

    @pytest.mark.parametrize(("blocks_max", "sizes"), [(1, [1, 1, 1]), (2, [2, 1]), (9, [3])])
    def test_a_page_ends_where_its_keys_have_too_many_blocks(
        self, world: ScmWorld, monkeypatch: pytest.MonkeyPatch, blocks_max: int, sizes: list[int]
    ) -> None:
        """A key with more than that is on a page of its own, and the pages join to the whole."""
        monkeypatch.setattr(client_calls, "PAGE_BLOCKS_MAX", blocks_max)
        world.write("s", "a/1", 1)
        world.write("s", "a/2", 1)
        world.write("s", "a/3", 1, 1, 1)

        pages, after = [], "a/"
        while after:
            page, after = world.control.clients.list_keys(prefix="a/", start_after=after, count=9)
            pages.append(page)

        assert ["a/1", "a/2", "a/3"] == [key.name for page in pages for key in page]
        assert sizes == [len(page) for page in pages]

    def test_keys_with_a_block_in_a_container_are_listed(self, world: ScmWorld) -> None:
        """The keys are listed page by page, of which some may be empty, and the prefix counts as
        well.
        """
        for name in ("a/1", "a/2", "a/3", "b/1"):
            world.write("s", name, 1)
        known, _ = world.control.clients.list_keys(prefix="a/", start_after="", count=9)
        wanted = {block.container_id for block in known[-1].blocks}
        expected = [k.name for k in known if wanted & {b.container_id for b in k.blocks}]

        found, after = [], ""
        for _ in range(3):
            page, after = world.control.clients.list_keys(
                prefix="a/", start_after=after, count=1, container_ids=wanted
            )
            found += page
        none, _ = world.control.clients.list_keys(
            prefix="", start_after="", count=9, container_ids=[10**9]
        )

        assert expected == [key.name for key in found]
        assert "" == after
        assert [] == none

    def test_an_unknown_key_is_refused_by_name(self, world: ScmWorld) -> None:
        """The code is stable; the name is in the message."""
        with pytest.raises(RefusedError) as caught:
            world.control.clients.lookup("nope")

        assert caught.value.code is Code.KEY_NOT_FOUND
        assert "nope" in str(caught.value)


def test_a_replica_that_a_container_does_not_have_cannot_have_failed(world: ScmWorld) -> None:
    """A writer's word counts about its own replicas; nothing is kept of any other name."""
    [block] = world.control.clients.allocate("a", [1])
    members = {endpoint.datanode_id for endpoint in block.replicas}
    [other] = {"dn1", "dn2", "dn3", "dn4"} - members

    with pytest.raises(RefusedError) as caught:
        world.control.clients.commit(
            "a", [], may_replace=False, failed=[(block.container_id, other)]
        )

    assert Code.MALFORMED_REQUEST is caught.value.code
    assert {} == world.control.nodes._failed_at_s
