"""Command `salvage`: copy every file off volumes, without an agent or a control plane."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer

from agent.salvage.salvage import LIST, Progress, SalvageSummary
from agent.salvage.salvage import salvage as carry_out
from suture.ec.scheme import parse_scheme
from suture.runtime.exit_codes import ExitCode
from suture.terminal.output import (
    bytes_progress,
    pluralize,
    print_json,
    print_line,
    print_list,
    size,
)
from suture.terminal.typer_options import JsonFlag

WHY_SHOWN_MAX: Final = 3


def salvage(
    volumes: Annotated[list[Path], typer.Argument(metavar="VOLUME...", help="Volume directories.")],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Where to write the files.")],
    scheme: Annotated[
        str,
        typer.Option(
            metavar="SCHEME", help="Code of block groups that do not name theirs: rs-3-2-1024k."
        ),
    ] = "",
    partial: Annotated[
        bool,
        typer.Option("--partial", help="Write what is not whole, too, with zeros, to DIR/partial."),
    ] = False,
    as_json: JsonFlag = False,
) -> int:
    """Copy every file off volumes by key, verified bytes only.

    Use it when the control plane is lost and cannot be restored, or to get files off disks of lost
    hosts: name all remaining volumes of all hosts. Their agents must be stopped; read-only mounts
    are sufficient. Nothing is written to a volume. A second run continues the first. Exit code 2:
    something is incomplete.
    """
    code = parse_scheme(scheme) if scheme else None
    with bytes_progress("salvage", 0, quiet=as_json) as bar:
        task = bar.tasks[0].id
        summary = carry_out(
            volumes,
            to,
            scheme=code,
            is_partial=partial,
            progress=Progress(
                lambda total: bar.update(task, total=total), lambda done: bar.advance(task, done)
            ),
        )
    if as_json:
        print_json(asdict(summary))
    else:
        _show(summary, to)
    return ExitCode.OK if summary.is_whole else ExitCode.TO_DO


def _show(summary: SalvageSummary, to: Path) -> None:
    print_line(
        f"{pluralize(summary.written_count, 'file')} written, {size(summary.written_bytes)}, "
        f"{summary.kept_count} were there: {to / LIST} lists them"
    )
    if summary.nameless_count:
        print_line(
            f"{pluralize(summary.nameless_count, 'block')} of these name no key: {to / 'blocks'}"
        )
    if summary.deleted_count:
        print_line(f"{pluralize(summary.deleted_count, 'block')} were deleted on another volume")
    for path, why in summary.unreadable_volumes.items():
        print_line(f"cannot be read: {path}: {why}")
    print_list("damaged rows", summary.damaged_rows)
    names = [
        f"{lack.key or lack.path}: {'; '.join(lack.why[:WHY_SHOWN_MAX])}" for lack in summary.lacks
    ]
    print_list("not whole, and not written", names)
