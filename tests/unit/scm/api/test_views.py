"""What people and clients are shown."""

from pathlib import Path

import pytest

from merkle.replica import ReplicaState
from scm.api.views import checksums_hint, shards_hint, used_bytes
from scm.state.entities import ContainerState, Key, KeyBlock, Replica
from tests.support.control.scm_world import ScmWorld, container, replica

QUASI_CLOSED, UNHEALTHY = ReplicaState.QUASI_CLOSED, ReplicaState.UNHEALTHY


class TestHint:
    @pytest.mark.parametrize(
        ("replicas", "expected"),
        [
            ([], "unknown"),
            ([replica("a", root=None)], "unknown"),
            ([replica("a", root=7), replica("b", root=None)], "unknown"),
            ([replica("a", root=7), replica("b", ReplicaState.OPEN, root=7)], "unknown"),
            ([replica("a", root=7), replica("b", UNHEALTHY, root=7)], "match"),
            ([replica("a", root=7), replica("b", root=8), replica("c", root=None)], "differ"),
            ([replica("a", root=0), replica("b", root=None)], "unknown"),
        ],
    )
    def test_unknown_is_neither_match_nor_difference(
        self, replicas: list[Replica], expected: str
    ) -> None:
        """One proven difference is enough, and a match needs all replicas."""
        assert expected == checksums_hint(replicas)


class TestUsedBytes:
    def test_the_largest_replica_that_can_be_believed(self) -> None:
        """The size is the committed one until a replica is reported."""
        assert 0 == used_bytes(container(), [])
        assert 1_000 == used_bytes(container(), [replica("a")])
        assert 0 == used_bytes(container(), [replica("a", UNHEALTHY)])


class TestLocations:
    def test_the_most_promising_replica_is_first(self, tmp_path: Path) -> None:
        """Complete before behind before damaged before silent; unloadable ones not at all."""
        with ScmWorld(tmp_path).running() as world:
            world.join("a", "b", "c", "d", "e", "f")
            with world.state.change() as change:
                change.put(world.state.containers, container(ContainerState.CLOSED))
                change.put(world.state.keys, Key("k", 1, 1, (KeyBlock(1, 1, 1, 1),)))
            world.beat("a", replica("a"))
            world.clock.advance_s(30)
            world.beat("b", replica("b", UNHEALTHY))
            world.beat("c", replica("c", QUASI_CLOSED, bcsid=4))
            world.beat("d", replica("d"))
            world.beat("e", replica("e", UNHEALTHY, load_error="damaged"))

            (located,) = world.control.clients.lookup("k")[1]

        assert ["d", "c", "b", "a"] == [endpoint.datanode_id for endpoint in located.endpoints]
        assert "d:9859" == located.endpoints[0].address

    def test_cached_location_of_a_container_follows_each_change(self, tmp_path: Path) -> None:
        """Clients are sent a replica's damage, lack of commits, return and end as soon as the
        control plane knows. A read in between keeps no stale answer.
        """
        with ScmWorld(tmp_path).running() as world:
            world.join("a", "b")

            def order() -> tuple[list[str], int]:
                (located,) = world.control.clients.lookup("k")[1]
                return [one.datanode_id for one in located.endpoints], located.equal_count

            with world.state.change() as change:
                change.put(world.state.containers, container(pipeline=("a", "b")))
                change.put(world.state.keys, Key("k", 1, 1, (KeyBlock(1, 1, 1, 1),)))
            assert (["a", "b"], 2) == order()
            world.beat("a", replica("a", UNHEALTHY))
            assert (["b", "a"], 1) == order()
            world.beat("a", replica("a"))
            assert (["a", "b"], 2) == order()
            world.beat("a", replica("a", QUASI_CLOSED, bcsid=4))
            assert (["b", "a"], 1) == order()
            with world.state.change() as change:
                change.put(world.state.containers, container(sequence_id=4))
            assert (["a"], 1) == order()
            world.beat("b", replica("b", bcsid=4))
            assert (["b", "a"], 1) == order()
            world.beat("b", replica("b", UNHEALTHY, load_error="damaged"))
            assert (["a"], 1) == order()


class TestShardsHint:
    @pytest.mark.parametrize(
        ("roots", "expected"),
        [
            (((1, 7), (2, 8), (3, 9)), "shards"),
            (((1, 7), (2, 8), (2, 8)), "shards"),
            (((1, 7), (2, 8), (2, 9)), "differ"),
            (((1, 7), (2, None)), "unknown"),
            ((), "unknown"),
        ],
    )
    def test_only_shards_of_one_index_are_compared(
        self, roots: tuple[tuple[int, int | None], ...], expected: str
    ) -> None:
        """Shards never match; two of one index may differ, and one may have no tree yet."""
        shards = [replica(f"dn{i}", root=root, replica_index=i) for i, root in roots]

        assert expected == shards_hint(shards)
