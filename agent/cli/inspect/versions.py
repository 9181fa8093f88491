"""Command `versions`: shows the version and the start time of every program of the cluster."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version

from suture.runtime.exit_codes import ExitCode
from suture.terminal.common_options import is_json, scm_address
from suture.terminal.credentials import connect
from suture.terminal.datanode_queries import DatanodeReply, query_all
from suture.terminal.output import ago, pluralize, print_json, print_line, print_rows, short
from suture.wire.v1 import datanode_pb2, scm_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramVersion:
    """The version and the start time of one program of the cluster.

    `started_at_ms` is 0 for the command `suture`, and if the time is unknown.
    """

    program: str
    datanode_id: str = ""
    address: str = ""
    version: str
    started_at_ms: int = 0
    differs: bool = False  # `version` is not the version of the SCM
    error: str = ""  # why the datanode did not answer; `version` is then from its registration


def versions() -> int:
    """List the versions of all programs of the cluster.

    A version that differs from that of the SCM is marked.

    Exit codes:
        2: versions differ, or a datanode did not answer

    Example:
        suture versions
    """
    with connect() as client:
        known = client.scm.list_nodes(scm_pb2.ListNodesRequest())
        nodes = [(node.datanode_id, node.address) for node in known.nodes]
        answers = query_all(client, nodes, lambda peer: peer.status())
    programs = [
        ProgramVersion(
            program="suture-scm",
            address=scm_address(),
            version=known.version,
            started_at_ms=known.started_at_ms,
        ),
        *datanode_versions(known, {answer.datanode: answer for answer in answers}),
        command_version(known.version),
    ]
    mixed_count = sum(one.differs for one in programs)
    if is_json():
        print_json({"programs": [asdict(one) for one in programs], "is_mixed": mixed_count > 0})
    else:
        print_programs(programs)
        if mixed_count:
            differing = pluralize(mixed_count, "program")
            print_line(f"mixed versions: not {known.version} as the SCM: {differing}")
    is_whole = not any(one.differs or one.error for one in programs)
    return ExitCode.OK if is_whole else ExitCode.TO_DO


def datanode_versions(
    known: scm_pb2.ListNodesResponse,
    answers: Mapping[str, DatanodeReply[datanode_pb2.StatusResponse]],
) -> Iterator[ProgramVersion]:
    """Yield the version of the agent on each datanode.

    If an agent does not answer, its version at registration is used.
    """
    for node in known.nodes:
        answer = answers[node.datanode_id]
        own = answer.value
        told = node.version if own is None else own.version
        yield ProgramVersion(
            program="suture-agent",
            datanode_id=node.datanode_id,
            address=node.address,
            version=told,
            started_at_ms=0 if own is None else own.started_at_ms,
            differs=told != known.version,
            error=answer.error,
        )


def command_version(of_scm: str) -> ProgramVersion:
    """Return the version of this command. `of_scm` is the version of the SCM."""
    own = version("suture")
    return ProgramVersion(program="suture", version=own, differs=own != of_scm)


def print_programs(programs: Sequence[ProgramVersion]) -> None:
    """Print a table with one row for each program."""
    rows = [
        (
            one.program,
            short(one.datanode_id) if one.datanode_id else "-",
            one.address or "-",
            one.version,
            ago(one.started_at_ms) if one.started_at_ms else "-",
            remark(one),
        )
        for one in programs
    ]
    print_rows(["program", "datanode", "address", "version", "started", "remark"], rows)


def remark(one: ProgramVersion) -> str:
    """Return a remark if the version of a program differs from the SCM's, or if it did not answer.

    Otherwise, return "".
    """
    told = f"as registered; does not answer: {one.error}" if one.error else ""
    return "; ".join(filter(None, ["differs from the SCM" if one.differs else "", told]))
