"""Command `status`: shows whether the data is healthy, and what is damaged.

Modules that print results are imported only when they are needed, so that the command starts
faster. The command should take at most 300 ms from the start of the interpreter (`make bench
NAME=node`).
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Final

import typer

from health.cluster_verdict import DataVerdict
from suture.errors import SutureError
from suture.pages.status_headline import Told, answer_of, headline, unreachable_nodes
from suture.runtime.exit_codes import ExitCode
from suture.terminal.common_options import is_json, scm_address
from suture.terminal.credentials import security
from suture.terminal.typer_options import flag, option
from suture.wire.clients.channel import Method, call, call_with_retry, open_channel
from suture.wire.mapping.addressee import ADDRESSEE_HEADER
from suture.wire.mapping.rpc_services import DATANODE, Stub
from suture.wire.security.tls import Security
from suture.wire.v1 import datanode_pb2, scm_pb2

ASKED_AT_ONCE: Final = 16
TIMEOUT_S: Final = 15.0
EXIT_CODES: Final = {
    DataVerdict.WHOLE: ExitCode.OK,
    DataVerdict.DEGRADED: ExitCode.TO_DO,
    DataVerdict.UNKNOWN: ExitCode.UNAVAILABLE,
}


def status(
    datanode: Annotated[
        str | None, option("ID|HOST:PORT", "Query only this datanode; default: all.", "--datanode")
    ] = None,
    as_nagios: Annotated[
        bool, flag("Print one line with numbers, for Nagios or Icinga.", "--nagios")
    ] = False,
) -> int:
    """Show the health of all data and of every datanode.

    Exit codes:
        2: data or datanodes need attention
        3: the health of the data is unknown, or the SCM does not answer

    Example:
        suture status
    """
    if as_nagios and (is_json() or datanode is not None):
        raise typer.BadParameter("cannot combine with --json or --datanode", param_hint="--nagios")
    if datanode is not None:
        return one_datanode(address_of(datanode))
    try:
        return whole_cluster(as_nagios=as_nagios)
    except SutureError as error:
        if not as_nagios:
            raise
        from suture.terminal.output import print_line

        print_line(f"SUTURE {DataVerdict.UNKNOWN}: {error}")  # Nagios reads only stdout
        return ExitCode.UNAVAILABLE


def address_of(datanode: str) -> str:
    """Return the address of a datanode that is given by its id or address.

    An address is returned unchanged, because the SCM may be unavailable.
    """
    if ":" in datanode:
        return datanode
    from suture.terminal.selection import one_node
    from suture.wire.clients.scm import ScmClient

    with ScmClient(scm_address(), security=security()) as control:
        return one_node(control.list_nodes(scm_pb2.ListNodesRequest()).nodes, datanode).address


def one_datanode(address: str) -> int:
    """Show the volumes and the workers of one datanode. Return the exit code."""
    answer = fetch_status(address, security())
    now_ms = int(time.time() * 1000)
    line = headline(answer_of([answer], now_ms), now_ms)
    if is_json():
        from suture.terminal.output import print_json

        print_json({"summary": line.text, "healthy": line.is_well, **document_of(answer)})
    else:
        from agent.cli.inspect.status_tables import show_datanode

        show_datanode(answer, line.text)
    return EXIT_CODES[line.verdict]


def document_of(told: Told) -> dict[str, object]:
    """Return the status of a datanode as a JSON document."""
    from suture.terminal.document import facts

    answer, scrub = told
    return {
        **facts(answer),
        "challenges": facts(scrub.challenges),
        "shadow_hashing": facts(scrub.shadow_hashing),
    }


def whole_cluster(*, as_nagios: bool = False) -> int:
    """Show the state of the cluster according to the SCM and to each datanode. Return the exit
    code.

    The exit codes are also valid for Nagios: 0 is OK, 2 CRITICAL, 3 UNKNOWN.
    """
    from suture.wire.clients.scm import ScmClient  # not needed for a single datanode

    proof = security()
    with ScmClient(scm_address(), security=proof) as control:
        nodes = list(control.list_nodes(scm_pb2.ListNodesRequest()).nodes)
        counts = control.count_containers(scm_pb2.CountContainersRequest())
    answers = fetch_all_statuses(nodes, proof)
    now_ms = int(time.time() * 1000)
    told = [answer for answer in answers if not isinstance(answer, str)]
    silent = unreachable_nodes(nodes, [not isinstance(answer, str) for answer in answers])
    known = answer_of(
        told,
        now_ms,
        silent=silent,
        verdict=DataVerdict(counts.verdict),
        reasons=counts.reasons,
    )
    line = headline(known, now_ms)
    if is_json():
        from suture.terminal.document import facts
        from suture.terminal.output import print_json

        shown = [answer if isinstance(answer, str) else document_of(answer) for answer in answers]
        print_json(
            {
                "summary": line.text,
                "healthy": line.is_well,
                "verdict": counts.verdict,
                "containers": facts(counts),
                "nodes": [
                    {**facts(node), "status": answer}
                    for node, answer in zip(nodes, shown, strict=True)
                ],
            }
        )
    elif as_nagios:
        from agent.cli.inspect.status_tables import show_nagios_line

        show_nagios_line(counts, known, line)
    else:
        from agent.cli.inspect.status_tables import show_cluster

        show_cluster(counts, nodes, answers, line.text)
    return EXIT_CODES[line.verdict]


def fetch_all_statuses(nodes: Sequence[scm_pb2.NodeInfo], proof: Security) -> list[Told | str]:
    """Fetch the status of all datanodes at the same time. Return them in the order of `nodes`.

    If a datanode does not answer, its item is the error as text.
    """

    def ask_one(node: scm_pb2.NodeInfo) -> Told | str:
        try:
            return fetch_status(node.address, proof, node.datanode_id)
        except SutureError as error:
            return str(error)

    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        return list(pool.map(ask_one, nodes))


def fetch_status(address: str, proof: Security, datanode_id: str = "") -> Told:
    """Fetch the status and the scans of one datanode. Raise SutureError if it does not answer.

    If `datanode_id` is set, and another datanode has this address, raise SutureError.
    """
    header = (ADDRESSEE_HEADER, datanode_id) if datanode_id else None
    channel = open_channel(address, proof)
    try:
        stub = Stub(channel, DATANODE, header=header)

        def ask(method: Method, request: object) -> Any:  # the method's answer
            party = f"the datanode at {address}"
            return call_with_retry(
                lambda: call(method, request, timeout_s=TIMEOUT_S, party=party),
                timeout_s=TIMEOUT_S,
            )

        return (
            ask(stub.Status, datanode_pb2.StatusRequest()),
            ask(stub.ScrubStatus, datanode_pb2.ScrubStatusRequest()),
        )
    finally:
        channel.close()
