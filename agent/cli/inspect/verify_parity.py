"""Command `scrub parity`: checks that the shards of erasure-coded containers match each other."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import typer

from agent.cli.inspect.scm_commands import container_pages
from agent.reconstruct.parity_check import ParityReport, verify_parity
from merkle.replica import ContainerId
from suture.client.cluster_client import ClusterClient
from suture.ec.rebuild_task import ShardLocation
from suture.ec.scheme import SHARDS_MAX, parse_scheme
from suture.errors import Code, RefusedError
from suture.runtime.exit_codes import ExitCode
from suture.terminal.common_options import is_json
from suture.terminal.credentials import connect
from suture.terminal.output import pluralize, print_json, print_line, print_note, print_rows, size
from suture.terminal.selection import fetch_container
from suture.terminal.typer_options import OptionalContainerArgument, flag, option
from suture.wire.v1 import scm_pb2

ROWS_SHOWN_MAX = 50  # rows in a table; --json has all
MIB = 1024**2


def verify_parity_command(
    container: OptionalContainerArgument = None,
    every: Annotated[bool, flag("Check all closed erasure-coded containers.", "--all")] = False,
    rate_mib_per_s: Annotated[
        float, option("N", "Limit the read rate, in MiB/s; 0 = unlimited.", "--rate", min=0)
    ] = 0,
) -> None:
    """Check that parity matches the data of EC containers.

    Shards are computed from each other, and a wrong shard is named. This detects data that was
    already wrong when it was written, which no scan can detect.

    Exit codes:
        2: shards do not match, or could not be read

    Example:
        suture scrub parity --all --rate 50
    """
    if (container is None) == (not every):
        raise typer.BadParameter("expected CONTAINER or --all", param_hint="CONTAINER")
    pace = rate_limiter(rate_mib_per_s * MIB)
    with connect() as client, ThreadPoolExecutor(SHARDS_MAX) as executor:
        infos = (
            [requested_container(client, container)]
            if container is not None
            else [
                c
                for page in container_pages(client)
                for c in page
                if c.scheme and c.state == "CLOSED"
            ]
        )
        reports = []
        for info in infos:
            report = verify_container(client, info, executor, pace)
            reports.append(report)
            if not is_json():
                print_result(report)
    if is_json():
        print_json({"containers": [facts(report) for report in reports]})
    elif every and not reports:
        print_line("there is no closed erasure-coded container")
    if not all(report.is_clean for report in reports):
        raise typer.Exit(ExitCode.TO_DO)


def requested_container(client: ClusterClient, container_id: int) -> scm_pb2.ContainerInfo:
    """Return the requested container. Raise RefusedError if it is not erasure-coded."""
    info = fetch_container(client, container_id)
    if not info.scheme:
        raise RefusedError(
            Code.INELIGIBLE,
            f"cannot check the parity of container {container_id}: it is replicated, not "
            "erasure-coded",
            hint="suture diff compares replicas",
        )
    return info


def verify_container(
    client: ClusterClient,
    info: scm_pb2.ContainerInfo,
    executor: ThreadPoolExecutor,
    pace: Callable[[int], None],
) -> ParityReport:
    """Check the parity of one container with the shards that the SCM knows. Return the report."""
    shards = [
        ShardLocation(item.datanode.datanode_id, item.datanode.address, item.replica.replica_index)
        for item in info.replicas
    ]
    scheme = parse_scheme(info.scheme)
    container_id = ContainerId(info.container_id)
    return verify_parity(container_id, scheme, shards, client.peer, executor, pace=pace)


def rate_limiter(bytes_per_s: float) -> Callable[[int], None]:
    """Return a function that limits a read rate to `bytes_per_s`; 0 means unlimited.

    The caller calls the function after each read, with the length in bytes. The function sleeps as
    long as necessary.
    """
    started_s = time.monotonic()
    read_bytes = 0

    def pace(length_bytes: int) -> None:
        nonlocal read_bytes
        read_bytes += length_bytes
        if bytes_per_s:
            time.sleep(max(0.0, started_s + read_bytes / bytes_per_s - time.monotonic()))

    return pace


def print_result(report: ParityReport) -> None:
    """Print the result of the parity check of one container."""
    checked = f"{pluralize(report.stripe_count, 'stripe')}, {size(report.read_bytes)} read"
    if report.is_clean:
        print_line(f"container {report.container_id}: all shards fit together; {checked}")
        return
    print_line(f"container {report.container_id}: {checked}")
    rows = [
        (str(fault.block_id), str(fault.stripe), named(fault.wrong))
        for fault in report.faults[:ROWS_SHOWN_MAX]
    ]
    if rows:
        print_rows(["block#", "stripe#", "wrong shard"], rows)
    if report.unread:
        where = ", ".join(f"block {b} stripe {n}" for b, n in report.unread[:ROWS_SHOWN_MAX])
        print_note(
            f"too few cells can be read of {pluralize(len(report.unread), 'stripe')}: {where}"
        )
    for block_id, index in report.missing_shards[:ROWS_SHOWN_MAX]:
        print_note(f"shard {index} has not block {block_id} as the others have it")
    for index in report.absent:
        print_note(f"shard {index} is not there")
    for datanode_id, why in sorted(report.unreadable.items()):
        print_note(f"{datanode_id}: {why}")
    for block_id, why in sorted(report.orphans.items()):
        print_note(f"block {block_id} is left out: {why}")


def named(wrong: tuple[int, ...]) -> str:
    """Return the indexes of the wrong shards as text."""
    return ", ".join(map(str, wrong)) or "cannot be told"


def facts(report: ParityReport) -> dict[str, object]:
    """Return the result of the parity check of one container as a JSON document."""
    return {
        "container_id": report.container_id,
        "clean": report.is_clean,
        "stripe_count": report.stripe_count,
        "bytes_read": report.read_bytes,
        "wrong_shards": report.wrong,
        "faults": [
            {"block_id": f.block_id, "stripe": f.stripe, "wrong_shards": f.wrong}
            for f in report.faults
        ],
        "missing_shards": report.absent,
        "unread": [{"block_id": block_id, "stripe": n} for block_id, n in report.unread],
        "missing_blocks": [
            {"block_id": block_id, "shard": index} for block_id, index in report.missing_shards
        ],
        "unreadable": report.unreadable,
        "orphans": {str(block_id): why for block_id, why in report.orphans.items()},
    }
