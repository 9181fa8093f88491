"""The one line that says whether the data is whole."""

from agent.cli.status import count, headline
from agent.rpc.v1 import container_pb2, scm_pb2


def container(
    container_id: int,
    states: list[container_pb2.ReplicaState],
    checksums: str,
    state: str = "CLOSED",
) -> scm_pb2.ContainerInfo:
    """Return a container with replicas in `states`."""
    return scm_pb2.ContainerInfo(
        container_id=container_id,
        state=state,
        replication_factor=3,
        checksums=checksums,
        replicas=[
            scm_pb2.ContainerInfoReplica(replica=container_pb2.ReplicaReport(state=replica))
            for replica in states
        ],
    )


CLOSED = container_pb2.CLOSED


class TestHeadline:
    def test_all_is_well(self) -> None:
        """
        Whole containers are counted, and nothing else is mentioned.
        """
        counts = count([container(1, [CLOSED] * 3, "match"), container(2, [CLOSED] * 3, "match")])

        assert "2 of 2 closed containers are equal and whole on all replicas; 0 open" == headline(
            counts
        )
        assert 0 == counts["to_do"]

    def test_every_trouble_is_counted_once_as_work(self) -> None:
        """
        Damaged, different, few or unknown replicas each make a container something to do.
        """
        counts = count(
            [
                container(1, [CLOSED, CLOSED, container_pb2.UNHEALTHY], "differ"),
                container(2, [CLOSED, CLOSED], "match"),
                container(3, [CLOSED] * 3, "unknown"),
                container(4, [container_pb2.OPEN] * 3, "unknown", state="OPEN"),
                container(5, [CLOSED] * 3, "match"),
            ]
        )

        assert 3 == counts["to_do"]
        line = headline(counts)
        assert line.startswith("1 of 4 closed containers")
        for words in (
            "1 with damaged",
            "1 whose replicas differ",
            "1 with too few",
            "1 not compared",
        ):
            assert words in line

    def test_an_empty_cluster_says_so(self) -> None:
        """
        No containers is not "all is whole".
        """
        assert "no containers yet" == headline(count([]))
