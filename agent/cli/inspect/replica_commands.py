"""Commands `tree`, `diff`, `explain` and `scan`, which show one container and its replicas."""

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Final

from agent.cli.inspect.key_lists import keys_in
from agent.cli.inspect.last_verified import verified_text
from agent.cli.inspect.scm_commands import (
    BEING_WRITTEN,
    OUTCOME_COLUMNS,
    container_info,
    outcome_row,
    print_replicas,
)
from merkle.diff import Divergence, SummaryComparison, compare
from merkle.diff import diff as diverge
from merkle.replica import ContainerId
from merkle.tree import Leaf, Tree
from suture.client.cluster_client import ClusterClient
from suture.errors import Code, RefusedError, SutureError
from suture.runtime.exit_codes import ExitCode
from suture.terminal.common_options import is_json
from suture.terminal.credentials import connect
from suture.terminal.document import facts
from suture.terminal.outcomes import outcomes_in
from suture.terminal.output import (
    bytes_progress,
    checksum,
    pluralize,
    print_json,
    print_line,
    print_rows,
    print_waiting_once,
    short,
    size,
)
from suture.terminal.transient_refusals import until_free
from suture.terminal.tree_document import block_facts, leaf_facts
from suture.terminal.typer_options import ContainerArgument, flag, option
from suture.wire.v1 import datanode_pb2, scm_pb2

ROWS_SHOWN_MAX: Final = 50  # rows in a table; --json has all
NO_FORENSIC: Final = frozenset({"", "UNKNOWN"})  # the kind of fault is unknown
UNKNOWN: Final = "UNKNOWN"  # comparison with a replica without a tree: never equal

DatanodeOption = Annotated[
    str | None, option("ID|HOST:PORT", "Query only this datanode; default: all.")
]


@dataclass(frozen=True, slots=True)
class FetchedReplica:
    """A replica whose tree was fetched from its datanode. If `tree` is None, `error` has the
    reason."""

    datanode_id: str
    address: str
    tree: Tree | None
    error: str
    index: int = 0  # shard of an erasure-coded container


def replicas_of(
    client: ClusterClient, container_id: int, datanode: str | None
) -> list[FetchedReplica]:
    """Fetch the trees of all replicas of a container that the SCM knows.

    If `datanode` is not None, fetch only the tree of the replica on this datanode. Each replica in
    the result has its complete tree or an error.
    """
    result, wanted = [], ContainerId(container_id)
    for replica in chosen_replicas(container_info(client, container_id), datanode):
        endpoint = replica.datanode
        peer = client.peer(endpoint)
        try:
            tree, error = until_free(endpoint.datanode_id, partial(peer.tree, wanted)), ""
        except SutureError as failure:
            tree, error = None, f"{failure} [{failure.code.value}]"
        index = replica.replica.replica_index
        result.append(FetchedReplica(endpoint.datanode_id, endpoint.address, tree, error, index))
    return result


def chosen_replicas(
    info: scm_pb2.ContainerInfo, datanode: str | None
) -> list[scm_pb2.ContainerInfoReplica]:
    """Return the replica on the datanode with the address or id prefix `datanode`.

    If `datanode` is None, return all replicas of the container. Raise RefusedError if no datanode
    matches, or if several match.
    """
    if datanode is None:
        return list(info.replicas)
    chosen = [r for r in info.replicas if r.datanode.address == datanode]
    chosen = chosen or [r for r in info.replicas if r.datanode.datanode_id.startswith(datanode)]
    if len(chosen) > 1:
        raise RefusedError(
            Code.WRONG_DATANODE,
            f"{len(chosen)} datanodes with a replica have this address, or an id that begins so: "
            f"{datanode}: " + ", ".join(r.datanode.datanode_id for r in chosen),
            hint="give more characters of the id",
        )
    if not chosen:
        raise RefusedError(
            Code.CONTAINER_NOT_FOUND,
            f"no datanode {datanode} has a replica of container {info.container_id}",
            hint=f"see suture scm containers {info.container_id}",
        )
    return chosen


def tree(
    container_id: ContainerArgument,
    datanode: DatanodeOption = None,
    chunks: Annotated[bool, flag("Also show the chunks of each block.", "--chunks")] = False,
) -> int:
    """Show the Merkle tree of each replica of a container.

    The tree has a root, blocks, tombstones of deleted blocks, and chunks.

    Example:
        suture tree 42 --chunks
    """
    with connect() as client:
        replicas = replicas_of(client, container_id, datanode)
    if is_json():
        print_json({"replicas": [tree_facts(replica) for replica in replicas]})
        return ExitCode.OK if all(r.tree is not None for r in replicas) else ExitCode.TO_DO
    for replica in replicas:
        if replica.tree is None:
            print_line(f"{short(replica.datanode_id)}: no tree: {replica.error}")
            continue
        root = replica.tree
        print_line(
            f"{short(replica.datanode_id)}: root {checksum(root.root)} ({root.algorithm}), "
            f"generation {root.generation}, {pluralize(root.block_count, 'block')}, "
            f"{pluralize(root.tombstone_count, 'tombstone')}, "
            f"{pluralize(root.chunk_count, 'chunk')}, "
            f"{root.unhealthy_count} unhealthy"
        )
        show_rows(
            ["block#", "checksum", "offset#", "bytes#", "chunk checksum", "remark"],
            tree_rows(root, chunks),
        )
    return ExitCode.OK if all(r.tree is not None for r in replicas) else ExitCode.TO_DO


def tree_rows(root: Tree, chunks: bool) -> Iterator[tuple[object, ...]]:
    """Yield a table row for each block of a tree. If `chunks` is True, also yield a row for each
    chunk."""
    for index, block_id in enumerate(root.block_ids.tolist()):
        remark = "deleted" if root.deleted[index] else ""
        leaves = root.leaves_at(index)
        bad = sum(not leaf.healthy for leaf in leaves)
        remark = remark or (f"{bad} unhealthy" if bad else "")
        count = pluralize(len(leaves), "chunk") if not chunks else ""
        yield block_id, checksum(int(root.block_checksums[index])), "", count, "", remark
        if chunks:
            for leaf in leaves:
                healthy = "" if leaf.healthy else "unhealthy"
                yield "", "", leaf.offset, leaf.length_bytes, checksum(leaf.checksum), healthy


def show_rows(columns: list[str], rows: Iterator[tuple[object, ...]]) -> None:
    """Print the first rows of a table, and the number of omitted rows."""
    kept = list(rows)
    print_rows(columns, kept[:ROWS_SHOWN_MAX])
    if len(kept) > ROWS_SHOWN_MAX:
        print_line(f"{len(kept) - ROWS_SHOWN_MAX} more rows; all of them with --json")


def tree_facts(replica: FetchedReplica) -> dict[str, object]:
    """Return the tree of a replica as a JSON document, with checksums in hex.

    If there is no tree, the root is null.
    """
    root = replica.tree
    if root is None:
        return {"datanode_id": replica.datanode_id, "error": replica.error, "root": None}
    return {
        "datanode_id": replica.datanode_id,
        "algorithm": root.algorithm.value,
        "root": checksum(root.root),
        "generation": root.generation,
        "blocks": [block_facts(root, index) for index in range(len(root.block_ids))],
    }


def diff(
    container_id: ContainerArgument,
    datanode: Annotated[
        str | None, option("ID|HOST:PORT", "Show only repairs by this datanode; default: all.")
    ] = None,
) -> int:
    """Show differences between replicas, and how to repair them.

    Exit codes:
        0: all replicas are equal
        2: replicas differ

    Example:
        suture diff 42
    """
    with connect() as client:
        info = container_info(client, container_id)
        wanted = {r.datanode.datanode_id for r in chosen_replicas(info, datanode)}
        replicas = replicas_of(client, container_id, None)
    pairs = [
        (mine, theirs)
        for mine in replicas
        for theirs in replicas
        if mine is not theirs and mine.index == theirs.index and mine.datanode_id in wanted
    ]
    if info.scheme and not pairs:
        raise RefusedError(
            Code.INELIGIBLE,
            f"cannot compare replicas of container {container_id}: it is erasure-coded "
            f"({info.scheme})",
            hint=f"suture scrub parity {container_id} checks its shards against each other",
        )
    compared = [(mine, theirs, *compare_pair(mine, theirs)) for mine, theirs in pairs]
    if is_json():
        print_json({"comparisons": [pair_facts(*pair) for pair in compared]})
    else:
        for mine, theirs, verdict, divergence in compared:
            why = f": {mine.error or theirs.error}" if verdict == UNKNOWN else ""
            print_line(
                f"{short(mine.datanode_id)} compared with {short(theirs.datanode_id)}: "
                f"{verdict}{why}"
            )
            if divergence is not None and divergence.differences:
                columns = ["difference", "block#", "offset#", "bytes#", "checksum", "peer checksum"]
                show_rows(columns, difference_rows(divergence))
    equal = bool(compared) and all(
        verdict == SummaryComparison.EQUAL for _, _, verdict, _ in compared
    )
    return ExitCode.OK if equal else ExitCode.TO_DO


def compare_pair(mine: FetchedReplica, theirs: FetchedReplica) -> tuple[str, Divergence | None]:
    """Compare two replicas. Return the result, and the differences between their trees.

    The differences are None if the trees cannot be compared.
    """
    if mine.tree is None or theirs.tree is None:
        return UNKNOWN, None
    verdict = compare(mine.tree.summary(), theirs.tree.summary())
    if verdict is SummaryComparison.NOT_COMPARABLE:
        return verdict.value, None
    return verdict.value, diverge(mine.tree, theirs.tree)


def difference_rows(divergence: Divergence) -> Iterator[tuple[object, ...]]:
    """Yield a table row for each difference between two trees."""
    for item in divergence.differences:
        leaf = item.theirs or item.mine
        yield (
            item.kind.value,
            item.block_id,
            leaf.offset if leaf else "",
            leaf.length_bytes if leaf else "",
            leaf_text(item.mine),
            leaf_text(item.theirs),
        )


def leaf_text(leaf: Leaf | None) -> str:
    """Return the text for a leaf in a table: its checksum, and whether it is unhealthy."""
    return "-" if leaf is None else checksum(leaf.checksum) + ("" if leaf.healthy else " unhealthy")


def pair_facts(
    mine: FetchedReplica, theirs: FetchedReplica, verdict: str, divergence: Divergence | None
) -> dict[str, object]:
    """Return the comparison of two replicas as a JSON document."""
    return {
        "datanode_id": mine.datanode_id,
        "peer_id": theirs.datanode_id,
        "verdict": verdict,
        "error": mine.error or theirs.error,
        "differences": [
            {
                "kind": item.kind.value,
                "block_id": item.block_id,
                "chunk": leaf_facts(item.mine) if item.mine else None,
                "peer_chunk": leaf_facts(item.theirs) if item.theirs else None,
            }
            for item in (divergence.differences if divergence else ())
        ],
    }


def explain(container_id: ContainerArgument) -> int:
    """Explain the state of a container, with the evidence.

    The output includes the repairs that were attempted.

    Exit codes:
        2: the container needs attention

    Example:
        suture explain 42
    """
    with connect() as client:
        info = container_info(client, container_id)
        findings = {
            replica.datanode.datanode_id: findings_of(client, replica, container_id)
            for replica in info.replicas
        }
        outcomes = outcomes_in(client, container_id)
        keys = keys_in(client, [container_id], all_of_them=is_json())
    agree = info.state in BEING_WRITTEN or info.checksums in {"match", "shards"}
    wrong = any(findings.values()) or not agree  # an error text also counts as a finding
    if is_json():
        print_json(
            {
                "container": facts(info),
                "findings": {
                    datanode_id: found if isinstance(found, str) else [facts(f) for f in found]
                    for datanode_id, found in findings.items()
                },
                "outcomes": [facts(o) for o in outcomes],
                "keys": keys.document(),
            }
        )
    else:
        print_line(f"container {container_id}: {info.state}, {checksums_text(info)}")
        print_replicas(info)
        print_line(verified_text(info))
        for line in wait_lines(info):
            print_line(line)
        for datanode_id, found in findings.items():
            explain_findings(datanode_id, found)
        if outcomes:
            print_rows(
                OUTCOME_COLUMNS, map(outcome_row, outcomes), title="what was done, newest first"
            )
        keys.show("in it")
    return ExitCode.TO_DO if wrong else ExitCode.OK


def wait_lines(info: scm_pb2.ContainerInfo) -> Iterator[str]:
    """Yield lines that describe why the repair of an unhealthy container waits.

    They contain the condition of the container, the time since when it lasts, and the reasons. If
    no repair waits, yield nothing.
    """
    if not info.HasField("wait"):
        return
    wait = info.wait
    since = f" since {utc(wait.since_ms)}" if wait.since_ms else ""
    tries = f", {pluralize(wait.try_count, 'attempt')} so far" if wait.try_count else ""
    yield f"{wait.condition}{since}{tries}"
    yield from (f"  {reason}" for reason in wait.reasons)


def utc(at_ms: int) -> str:
    """Return a time in UTC as text."""
    moment = datetime.datetime.fromtimestamp(at_ms / 1000, tz=datetime.UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def checksums_text(info: scm_pb2.ContainerInfo) -> str:
    """Return a text that says whether the checksums of a container's replicas are equal."""
    if info.state in BEING_WRITTEN:
        return "no checksums before it is closed"
    if info.checksums == "shards":
        return f"{info.scheme}, each shard with checksums of its own"
    return f"checksums {info.checksums}"


def findings_of(
    client: ClusterClient, replica: scm_pb2.ContainerInfoReplica, container_id: int
) -> list[datanode_pb2.Finding] | str:
    """Return the unresolved findings about a replica. If they cannot be fetched, return an error
    text."""
    if replica.replica.load_error:
        return f"cannot be loaded: {replica.replica.load_error}"
    try:
        peer = client.peer(replica.datanode)
        return until_free(
            replica.datanode.datanode_id, lambda: peer.findings(ContainerId(container_id))
        )
    except SutureError as error:
        return f"cannot be asked: {error}"


def explain_findings(datanode_id: str, found: list[datanode_pb2.Finding] | str) -> None:
    """Print the findings about one replica, or the error text `found`."""
    if isinstance(found, str):
        print_line(f"{short(datanode_id)}: {found}")
        return
    if not found:
        print_line(f"{short(datanode_id)}: nothing is wrong here")
        return
    print_line(f"{short(datanode_id)}: {pluralize(len(found), 'finding')}")
    for item in found[:ROWS_SHOWN_MAX]:
        where = f"block {item.local_id}" if item.local_id >= 0 else "the replica's files"
        if item.offset >= 0:
            where += f", bytes {item.offset} to {item.offset + item.length - 1}"
        says = item.verdict if item.forensic in NO_FORENSIC else f"{item.verdict}, {item.forensic}"
        print_line(f"  {item.fault} ({says}) in {where}, found {utc(item.found_at_ms)}")
        print_line(f"    {item.evidence}")


def print_scans(
    results: list[tuple[str, datanode_pb2.ScanProgress]],
    failures: list[tuple[str, SutureError]],
    *,
    wait: bool,
) -> int:
    """Print the results of scans, or that the scans are queued. Return the exit code.

    If there is no result, raise the first error in `failures`.
    """
    if not results:
        raise failures[0][1]
    if is_json():
        documents = {
            datanode_id: facts(end.result) if wait else {"queued": end.queued}
            for datanode_id, end in results
        }
        errors = {datanode_id: {"error": str(error)} for datanode_id, error in failures}
        print_json({"datanodes": documents | errors})
    else:
        for datanode_id, end in results:
            if not wait:
                print_line(f"{short(datanode_id)}: in line, {size(end.bytes_total)} to read")
                continue
            result = end.result
            print_line(
                f"{short(datanode_id)}: {size(result.bytes_read)} read, "
                f"{pluralize(result.finding_count, 'finding')}, "
                f"root {checksum(result.replica.tree.root)}"
            )
            explain_findings(datanode_id, list(result.findings))
        for datanode_id, error in failures:
            print_line(f"{short(datanode_id)}: not scanned: {error}")
        if results and not wait:
            print_line("suture scrub status tells how many wait, suture explain what was found")
    found = any(end.result.finding_count for _, end in results)
    return ExitCode.TO_DO if found or failures else ExitCode.OK


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanOptions:
    """Parameters of the scan of a container."""

    container_id: int
    wait: bool
    full_speed: bool


def scan_replicas(datanode: str | None, wish: ScanOptions) -> int:
    """Scan all replicas of a container, or only the replica on one datanode. Return the exit
    code."""
    with connect() as client:
        info = container_info(client, wish.container_id)
        results, failures = scan_each(client, chosen_replicas(info, datanode), wish)
    return print_scans(results, failures, wait=wish.wait)


def scan_each(
    client: ClusterClient, replicas: list[scm_pb2.ContainerInfoReplica], wish: ScanOptions
) -> tuple[list[tuple[str, datanode_pb2.ScanProgress]], list[tuple[str, SutureError]]]:
    """Scan replicas one after the other. Return the results and the errors, each with its datanode
    id."""
    results, failures = [], []
    for replica in replicas:
        datanode_id = replica.datanode.datanode_id
        try:
            results.append((datanode_id, scan_one(client, replica, wish)))
        except SutureError as error:
            failures.append((datanode_id, error))
    return results, failures


def scan_one(
    client: ClusterClient, replica: scm_pb2.ContainerInfoReplica, wish: ScanOptions
) -> datanode_pb2.ScanProgress:
    """Scan one replica with a progress bar, and return the last message of the datanode.

    If `wish.wait` is False, only add the scan to the queue of the datanode.
    """
    datanode_id, container_id = replica.datanode.datanode_id, ContainerId(wish.container_id)
    peer = client.peer(replica.datanode)
    if not wish.wait:
        return until_free(datanode_id, lambda: next(peer.scan(container_id, queue=True)))
    label = f"scanning on {datanode_id}"
    with bytes_progress(label, replica.replica.used_bytes) as bar:

        def progress(step: datanode_pb2.ScanProgress) -> None:
            bar.update(
                bar.task_ids[0],
                completed=step.bytes_read,
                total=step.bytes_total or None,
                description=f"{label}, waiting for other scans" if step.waiting else label,
            )

        result = peer.scanned(
            container_id,
            full_speed=wish.full_speed,
            progress=progress,
            waits=print_waiting_once(datanode_id),
        )
    return datanode_pb2.ScanProgress(result=result)
