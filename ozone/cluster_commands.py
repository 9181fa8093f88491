"""suture ozone export: a whole cluster, as its storage container manager tells it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agent.cli.terminal.output import Exit, counted, emit, items_progress, remark, say
from agent.cli.terminal.typer_options import JsonFlag
from agent.errors import Code, Refused
from ozone.wire.authentication import choose
from ozone.wire.connection import parse_addresses
from ozone.wire.scm import ScmClient

if TYPE_CHECKING:
    from ozone.export import Exported

ScmAddresses = Annotated[
    str,
    typer.Option(
        "--scm",
        metavar="HOST:PORT[,HOST:PORT...]",
        help="All SCMs of the cluster, by ozone.scm.client.address; the leader is found.",
    ),
]
UserOption = Annotated[
    str, typer.Option(metavar="NAME", help="Who asks; default: who runs the command.")
]


def scm_client(addresses: str, user: str) -> ScmClient:
    """Return a client that is not connected yet. Raises typer.BadParameter."""
    try:
        return ScmClient(parse_addresses(addresses), choose(user))
    except ValueError as error:
        raise typer.BadParameter(f"--scm: {error}") from error


def export_command(
    scm: ScmAddresses,
    to: Annotated[
        Path, typer.Option("--to", metavar="DIR", help="The snapshot; it must not exist yet.")
    ],
    user: UserOption = "",
    as_json: JsonFlag = False,
) -> int:
    """Write what the SCM knows of a live cluster as a snapshot for suture-verify.

    Only reads. 2: some containers are left out, because they are of a kind that is not known.
    """
    try:
        from ozone.export import ExportWish, export  # pyarrow, which a scrub does without
    except ImportError as error:
        raise Refused(
            Code.INELIGIBLE,
            "snapshots need the package pyarrow, which is not installed",
            hint="pip install 'suture[scm]', or suture[spark]",
        ) from error
    client = scm_client(scm, user)
    try:
        with items_progress("containers", 0, quiet=as_json) as progress:

            def told(count: int, total: int) -> None:
                progress.update(progress.task_ids[0], total=total or None, advance=count)

            done = export(ExportWish(client, to), told)
    finally:
        client.close()
    if as_json:
        emit(done.facts())
    else:
        tell(done)
    return Exit.TO_DO if done.left_out.reasons else Exit.OK


def tell(done: "Exported") -> None:
    """Print what was exported, and what the reader must know of it."""
    rows = done.rows
    say(
        f"{done.path}: {counted(rows['containers'], 'container')}, "
        f"{counted(rows['replicas'], 'replica')}, {counted(rows['nodes'], 'datanode')} of cluster "
        f"{done.cluster_id}, as of {done.snapshot_id}"
    )
    say(
        f"{done.elapsed_s:.1f} s, {done.containers_ms:.0f} ms for 1,000 containers, "
        f"{counted(done.requests, 'request')} to {done.scm}"
    )
    if done.is_safe_mode:
        remark("the SCM is in safe mode: it does not know yet what the datanodes have")
    for reason, count in done.left_out.reasons.most_common():
        named = ", ".join(map(str, done.left_out.examples[reason]))
        remark(f"left out, {counted(count, 'container')}: {reason}; first: {named}")
