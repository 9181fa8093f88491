"""Option `verify-log --list-anchors`: prints the heads of verification logs that the SCM stores.

The head of a log is its number of entries, and the checksum of its last entry.
"""

from typing import Any

from suture.runtime.exit_codes import ExitCode
from suture.terminal.common_options import is_json
from suture.terminal.credentials import connect
from suture.terminal.output import ago, print_json, print_line, print_rows, short
from suture.terminal.selection import datanode_id
from suture.wire.v1 import scm_pb2


def show_anchors(datanode: str) -> int:
    """Print the stored heads of verification logs.

    If `datanode` is "", print the newest head of each volume. Otherwise, print all heads of this
    datanode.
    """
    with connect() as client:
        chosen = datanode_id(client, datanode) if datanode else ""
        answer = client.scm.list_anchors(scm_pb2.ListAnchorsRequest(datanode_id=chosen))
    if is_json():
        print_json({"logs": [document(one) for one in answer.logs]})
    elif not answer.logs:
        print_line("the SCM stores no head of a log yet")
    else:
        rows = [
            (short(log.datanode_id), log.volume_id, ago(one.at_ms), one.count, one.checksum.hex())
            for log in answer.logs
            for one in log.anchors
        ]
        print_rows(["datanode", "volume", "age", "entries#", "head"], rows)
    return ExitCode.OK


def document(log: scm_pb2.LogAnchors) -> dict[str, Any]:
    """Return the stored heads of one volume's log as a JSON document."""
    return {
        "datanode_id": log.datanode_id,
        "volume_id": log.volume_id,
        "anchors": [
            {"at_ms": one.at_ms, "count": one.count, "checksum": one.checksum.hex()}
            for one in log.anchors
        ],
    }
