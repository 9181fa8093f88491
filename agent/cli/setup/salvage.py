"""Command `salvage`: copies all files from volumes, without an agent or a control plane."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

from agent.salvage.salvage import LIST, Progress, SalvageSummary
from agent.salvage.salvage import salvage as carry_out
from suture.ec.scheme import parse_scheme
from suture.runtime.exit_codes import ExitCode
from suture.terminal.common_options import is_json
from suture.terminal.output import (
    bytes_progress,
    pluralize,
    print_json,
    print_line,
    print_list,
    size,
)
from suture.terminal.typer_options import argument, flag, option

PARTS_SHOWN_MAX: Final = 3


def salvage(
    volumes: Annotated[list[Path], argument("VOLUME", "Volume directories.")],
    to: Annotated[Path, option("DIR", "Directory to write the files to.", "--to")],
    scheme: Annotated[
        str, option("SCHEME", "Erasure code for block groups that record none.")
    ] = "",
    partial: Annotated[
        bool, flag("Also write incomplete files, with zeros in the gaps.", "--partial")
    ] = False,
) -> int:
    """Restore files from volumes without a running cluster.

    Files are named by their keys, and contain only verified bytes. Use it if the SCM is lost and
    cannot be restored, or to rescue files from disks of lost hosts. Name all remaining volumes of
    all hosts. Stop their agents first; read-only mounts are sufficient. Nothing is written to a
    volume. A second run continues the first.

    Exit codes:
        2: some file is incomplete

    Example:
        suture salvage /mnt/disk1 /mnt/disk2 --to /mnt/rescue
    """
    code = parse_scheme(scheme) if scheme else None
    with bytes_progress("salvage", 0) as bar:
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
    if is_json():
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
        f"{file.key or file.path}: {'; '.join(file.missing_parts[:PARTS_SHOWN_MAX])}"
        for file in summary.incomplete_files
    ]
    print_list("not whole, and not written", names)
