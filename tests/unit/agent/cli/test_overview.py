"""The one line that says whether the data is whole."""

from agent.cli.inspect.overview import containers_line
from agent.rpc.v1 import scm_pb2


def test_all_is_well() -> None:
    """
    Whole containers are counted, and nothing else is mentioned.
    """
    counts = scm_pb2.CountContainersResponse(all=2, whole=2)

    line = containers_line(counts)

    assert "2 of 2 closed containers are equal and whole on all replicas; 0 open" == line


def test_every_trouble_is_named() -> None:
    """
    Damaged, different, few and unknown replicas are each told, beside what is whole.
    """
    counts = scm_pb2.CountContainersResponse(
        all=6, open=2, whole=1, to_do=3, unhealthy=3, differ=2, few_replicas=1, unknown=4
    )

    line = containers_line(counts)

    assert (
        "1 of 4 closed containers are equal and whole on all replicas; 3 with damaged replicas, "
        "2 whose replicas differ, 1 with too few replicas, 4 not compared yet; 2 open"
    ) == line


def test_no_container_is_no_trouble() -> None:
    """
    Before the first container there is nothing to be worried about.
    """
    assert "no containers yet" == containers_line(scm_pb2.CountContainersResponse())
