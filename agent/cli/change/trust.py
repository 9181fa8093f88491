"""Option `reconcile --trust`: an operator decides between replicas that contradict each other."""

from functools import partial

import typer

from suture.client.cluster_client import ClusterClient
from suture.errors import Code, RefusedError
from suture.runtime.exit_codes import ExitCode
from suture.terminal.common_options import is_json
from suture.terminal.output import print_json, print_line, print_note, print_rows, size
from suture.terminal.selection import fetch_container
from suture.terminal.transient_refusals import until_decided, until_free
from suture.wire.v1 import container_pb2, datanode_pb2, scm_pb2

SHOWN_MAX = 50  # changes in the table; --json has the first thousand per datanode

Shown = dict[str, datanode_pb2.TrustReplicaResponse]  # previews by datanode id


def trust(
    client: ClusterClient, container_id: int, trusted_id: str, *, dry_run: bool, yes: bool
) -> int:
    """Make all other replicas of a container equal to the replica on datanode `trusted_id`.

    The changes are shown first, and the user must confirm them. Return the exit code.
    """
    replicas = [r.datanode for r in fetch_container(client, container_id).replicas]
    trusted = next((one for one in replicas if one.datanode_id == trusted_id), None)
    if trusted is None:
        raise RefusedError(
            Code.CONTAINER_NOT_FOUND,
            f"{trusted_id} has no replica of container {container_id}",
            hint=f"suture scm containers {container_id}",
        )
    others = [one for one in replicas if one.datanode_id != trusted_id]
    ask = partial(request_trust, client, container_id, trusted)
    shown: Shown = {one.datanode_id: ask(one) for one in others}
    print_changes(shown)
    if dry_run or not any(answer.change_count for answer in shown.values()):
        return ExitCode.OK
    if not yes and not typer.confirm(f"replace as shown, trusting {trusted_id}?", err=True):
        return ExitCode.FAILED
    failed = 0
    for one in others:
        answer = ask(one, shown=shown[one.datanode_id].shown)
        print_note(f"{one.datanode_id}: {answer.result}, {answer.failed_count} chunks failed")
        failed += answer.failed_count
    # The contradictions end when all replicas have been reconciled again.
    request = scm_pb2.ReconcileContainersRequest(container_ids=[container_id])
    [decision] = until_decided(client.scm.reconcile_containers, request).decisions
    if decision.code != "OK":
        print_note(f"not reconciled: {decision.code}: {decision.message}")
    return ExitCode.TO_DO if failed or decision.code != "OK" else ExitCode.OK


def request_trust(
    client: ClusterClient,
    container_id: int,
    trusted: container_pb2.DatanodeEndpoint,
    datanode: container_pb2.DatanodeEndpoint,
    *,
    shown: int = 0,
) -> datanode_pb2.TrustReplicaResponse:
    """Request that `datanode` makes its replica equal to the replica on `trusted`. Return the
    response.

    If `shown` is 0, this is a dry run. Otherwise, `shown` is the fingerprint of the changes that
    the user has seen, and the request is rejected if the changes are different now.
    """
    request = datanode_pb2.TrustReplicaRequest(
        container_id=container_id,
        trusted_datanode_id=trusted.datanode_id,
        trusted_address=trusted.address,
        dry_run=not shown,
        shown=shown,
    )
    peer = client.peer(datanode)
    return until_free(datanode.datanode_id, lambda: peer.trust(request))


def print_changes(shown: Shown) -> None:
    """Print the data that would be written, and the data that would be replaced."""
    if is_json():
        replicas = [
            {
                "datanode_id": datanode_id,
                "change_count": answer.change_count,
                "changes": [
                    {
                        "block_id": one.local_id,
                        "offset": one.offset,
                        "length_bytes": one.length,
                        "change": one.change,
                        "before": f"{one.before:016x}",
                        "after": f"{one.after:016x}",
                    }
                    for one in answer.changes
                ],
            }
            for datanode_id, answer in shown.items()
        ]
        print_json({"replicas": replicas})
        return
    rows = [
        (
            datanode_id,
            one.local_id,
            one.offset,
            size(one.length),
            one.change,
            f"{one.before:016x}" if one.before else "-",
            f"{one.after:016x}",
        )
        for datanode_id, answer in shown.items()
        for one in answer.changes
    ]
    columns = ["datanode", "block#", "offset#", "bytes#", "change", "checksum", "trusted checksum"]
    print_rows(columns, rows[:SHOWN_MAX])
    total = sum(answer.change_count for answer in shown.values())
    print_line(f"{total} changes; what is replaced or deleted goes to quarantine")
