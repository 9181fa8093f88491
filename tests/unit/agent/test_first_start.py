"""A first start asks the control plane whether it really is one."""

from pathlib import Path

import pytest

from agent.config.options import AgentConfig
from agent.main import replicas_elsewhere
from suture.wire.v1 import datanode_pb2, scm_pb2


def config() -> AgentConfig:
    """Return the config of the datanode dn1.example.org."""
    return AgentConfig.model_validate(
        {
            "node": {"advertise": "dn1.example.org:9859"},
            "storage": {"volumes": (Path("/data"),)},
        }
    )


def answer(**facts: object) -> scm_pb2.ListNodesResponse:
    """Return what the control plane knows of one datanode."""
    node: dict[str, object] = {
        "datanode_id": "dn-1",
        "address": "dn1.example.org:9859",
        "op_state": "IN_SERVICE",
        "container_count": 7,
        "volumes": [datanode_pb2.VolumeStatus(path="/data")],
    }
    return scm_pb2.ListNodesResponse(nodes=[scm_pb2.NodeInfo(**{**node, **facts})])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("facts", "certified_id"),
    [({}, ""), ({"address": "moved:1"}, "dn-1"), ({"op_state": "DECOMMISSIONING"}, "")],
)
def test_a_datanode_of_our_address_or_name_has_our_replicas(
    facts: dict[str, object], certified_id: str
) -> None:
    """Empty volumes would create a second datanode. The error names the existing one with its
    replicas.
    """
    words = replicas_elsewhere(answer(**facts), config(), certified_id)

    assert "datanode dn-1" in words
    assert "has 7 replicas on /data" in words


@pytest.mark.parametrize(
    "facts",
    [{"address": "dn2.example.org:9859"}, {"container_count": 0}, {"op_state": "DECOMMISSIONED"}],
)
def test_others_and_those_without_replicas_do_not_stop_us(facts: dict[str, object]) -> None:
    """A new host, one that never held anything, and one whose replicas are all elsewhere."""
    assert "" == replicas_elsewhere(answer(**facts), config(), "")
