"""status: is my data whole, and if not, where."""

import time
from typing import Annotated, Final

import typer
from rich.table import Table

from agent.cli.connection import security
from agent.cli.output import (
    SCM_DEFAULT,
    Exit,
    JsonFlag,
    ScmOption,
    emit,
    grid,
    say,
    short,
    show,
    size,
)
from agent.observe.answer import Told, answer_of, sentence
from agent.quantity import spoken_duration
from agent.rpc.channel import call, open_channel
from agent.rpc.v1 import container_pb2, datanode_pb2, datanode_pb2_grpc, scm_pb2

REPLICAS_WANTED: Final = 3
TIMEOUT_S: Final = 15.0


def status(
    scm: ScmOption = SCM_DEFAULT,
    datanode: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Ask one datanode only, not the SCM.")
    ] = None,
    as_json: JsonFlag = False,
) -> int:
    """Say in one line whether the data is whole, then show every datanode."""
    if datanode is not None:
        return one_datanode(datanode, as_json=as_json)
    # One datanode answers at once: what the cluster needs is imported for the cluster only.
    from agent.cli.ask import ask_each, told
    from agent.cli.connection import connect
    from agent.cli.scm import all_containers

    with connect(scm) as client:
        nodes = list(client.scm.list_nodes(scm_pb2.ListNodesRequest()).nodes)
        containers = all_containers(client)
        named = [(node.datanode_id, node.address) for node in nodes]
        answers = [
            answer.value or answer.error
            for answer in (ask_each(client, named, told) if named else ())
        ]
    counts = count(containers)
    now_ms = int(time.time() * 1000)
    line = sentence(answer_of([a for a in answers if not isinstance(a, str)], now_ms), now_ms)
    if as_json:
        from agent.cli.document import facts

        emit(
            {
                "answer": line,
                "containers": counts,
                "nodes": [
                    {
                        **facts(node),
                        "status": answer if isinstance(answer, str) else facts(answer[0]),
                    }
                    for node, answer in zip(nodes, answers, strict=True)
                ],
            }
        )
    else:
        say(line)
        say(headline(counts))
        show(node_table(nodes, answers))
    silent = any(isinstance(answer, str) for answer in answers)
    return Exit.TO_DO if counts["to_do"] or silent else Exit.OK


def count(containers: list[scm_pb2.ContainerInfo]) -> dict[str, int]:
    """Count containers by what an operator would do about them."""
    from agent.cli.scm import BEING_WRITTEN

    result = {"all": len(containers), "whole": 0, "open": 0, "unhealthy": 0, "differ": 0}
    result |= {"few_replicas": 0, "unknown": 0, "to_do": 0}
    for info in containers:
        states = {replica.replica.state for replica in info.replicas}
        if info.state in BEING_WRITTEN:
            result["open"] += 1
            continue
        flags = {
            "unhealthy": container_pb2.UNHEALTHY in states,
            "differ": info.checksums == "differ",
            "few_replicas": replica_count(info) < (info.replication_factor or REPLICAS_WANTED),
            "unknown": info.checksums == "unknown",
        }
        for name, is_set in flags.items():
            result[name] += is_set
        result["to_do" if any(flags.values()) else "whole"] += 1
    return result


def replica_count(info: scm_pb2.ContainerInfo) -> int:
    """Return how many replicas count: of an erasure-coded container, one a shard."""
    if not info.scheme:
        return len(info.replicas)
    return len({replica.replica.replica_index for replica in info.replicas})


def headline(counts: dict[str, int]) -> str:
    """Return the one line that a person asks for."""
    closed = counts["all"] - counts["open"]
    if not counts["all"]:
        return "no containers yet"
    words = {
        "unhealthy": "with damaged replicas",
        "differ": "whose replicas differ",
        "few_replicas": "with too few replicas",
        "unknown": "not compared yet",
    }
    wrong = ", ".join(f"{counts[name]} {text}" for name, text in words.items() if counts[name])
    text = f"{counts['whole']} of {closed} closed containers are equal and whole on all replicas"
    return text + (f"; {wrong}" if wrong else "") + f"; {counts['open']} open"


def node_table(nodes: list[scm_pb2.NodeInfo], answers: list[Told | str]) -> Table:
    """Return the table of datanodes."""
    columns = ["datanode", "address", "health", "containers#", "used#", "free#", "oldest scan"]
    return grid(
        "",
        [*columns, "findings#", "tasks#", "remark"],
        [node_row(node, answer) for node, answer in zip(nodes, answers, strict=True)],
    )


def node_row(node: scm_pb2.NodeInfo, told_by: Told | str) -> tuple[object, ...]:
    """Return one datanode's row."""
    if isinstance(told_by, str):
        return (short(node.datanode_id), node.address, node.health, *["-"] * 6, told_by)
    answer, scrub = told_by
    failed = [f"{v.path}: {v.error or 'failed'}" for v in answer.volumes if v.failed]
    errors = [f"{w.name} is stalled" for w in answer.workers if w.stalled]
    errors += [f"{w.name}: {w.last_error}" for w in answer.workers if w.last_error]
    blind = [
        f"{v.path}: the planted fault was not found" for v in scrub.volumes if v.canary_overdue
    ]
    return (
        short(node.datanode_id),
        node.address,
        node.health,
        sum(answer.containers_by_state.values()),
        size(sum(v.used_bytes for v in answer.volumes)),
        size(sum(v.available_bytes for v in answer.volumes)),
        oldest_scan(answer),
        answer.finding_count,
        answer.tasks_queued + answer.tasks_running,
        "; ".join(failed + errors + blind),
    )


def oldest_scan(answer: datanode_pb2.StatusResponse) -> str:
    """Return the age of the byte that was not read for the longest time."""
    with_data = [volume for volume in answer.volumes if volume.container_count]
    if not with_data:
        return "-"
    oldest_ms = min(volume.oldest_scan_at_ms for volume in with_data)
    return (
        "never"
        if not oldest_ms
        else f"{spoken_duration(max(0.0, time.time() - oldest_ms / 1000))} ago"
    )


def told_alone(address: str) -> Told:
    """Ask one datanode how it is, and how far its scans are, and nothing else."""
    channel = open_channel(address, security())
    try:
        stub = datanode_pb2_grpc.DatanodeStub(channel)  # type: ignore[no-untyped-call]
        return (
            call(stub.Status, datanode_pb2.StatusRequest(), timeout_s=TIMEOUT_S),
            call(stub.ScrubStatus, datanode_pb2.ScrubStatusRequest(), timeout_s=TIMEOUT_S),
        )
    finally:
        channel.close()


def one_datanode(address: str, *, as_json: bool) -> int:
    """Show one datanode: volumes and workers."""
    answer, scrub = told_alone(address)
    now_ms = int(time.time() * 1000)
    line = sentence(answer_of([(answer, scrub)], now_ms), now_ms)
    if as_json:
        from agent.cli.document import facts

        emit({"answer": line, **facts(answer)})
        return Exit.OK
    say(line)
    say(f"datanode {answer.datanode_id}, version {answer.version}, SCM: {answer.scm_state}")
    volumes = [
        (
            volume.path,
            volume.container_count,
            size(volume.used_bytes),
            size(volume.available_bytes),
            volume.error or ("failed" if volume.failed else "good"),
        )
        for volume in answer.volumes
    ]
    show(grid("volumes", ["path", "containers#", "used#", "free#", "state"], volumes))
    workers = [
        (
            w.name,
            f"{w.state}, stalled" if w.stalled else w.state,
            w.steps,
            w.error_count,
            w.last_error,
        )
        for w in answer.workers
    ]
    show(grid("workers", ["worker", "state", "steps#", "errors#", "last error"], workers))
    is_wrong = any(v.failed for v in answer.volumes) or any(w.stalled for w in answer.workers)
    return Exit.TO_DO if is_wrong else Exit.OK
