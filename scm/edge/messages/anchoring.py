"""Anchors of verification logs as messages."""

from agent.rpc.v1 import scm_pb2
from scm.state.history.anchors import VolumeAnchors


def anchors_message(value: VolumeAnchors) -> scm_pb2.LogAnchors:
    """Return the anchors of one volume."""
    return scm_pb2.LogAnchors(
        datanode_id=value.datanode_id,
        volume_id=value.volume_id,
        anchors=[
            scm_pb2.Anchor(at_ms=one.at_ms, count=one.count, checksum=bytes.fromhex(one.checksum))
            for one in value.anchors
        ],
    )
