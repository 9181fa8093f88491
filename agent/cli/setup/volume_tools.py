"""Command `fsck`: checks the volumes of this host, without an agent."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from agent.store.recovery.fsck import fsck as check
from suture.runtime.exit_codes import ExitCode
from suture.terminal.common_options import is_json
from suture.terminal.output import print_json, print_line, print_rows
from suture.terminal.typer_options import argument, flag


def fsck(
    volumes: Annotated[list[Path], argument("DIR", "Volume directories.")],
    read_data: Annotated[
        bool, flag("Also read every chunk and verify its checksums.", "--read-data")
    ] = False,
) -> int:
    """Check volumes offline, without changing them.

    Stop the agent that uses the volumes first.

    Exit codes:
        2: there are problems

    Example:
        suture fsck /data/1 /data/2
    """
    reports = [check(volume, read_data=read_data) for volume in volumes]
    problems = [(str(v), p) for v, r in zip(volumes, reports, strict=True) for p in r.problems]
    if is_json():
        known = [{"volume": str(v), **asdict(r)} for v, r in zip(volumes, reports, strict=True)]
        print_json({"volumes": known})
    else:
        if problems:
            rows = [(volume, p.kind, p.path, p.message) for volume, p in problems]
            print_rows(["volume", "problem", "path", "details"], rows)
        for volume, report in zip(volumes, reports, strict=True):
            print_line(
                f"{volume}: {report.replica_count} replicas, {len(report.problems)} problems"
            )
    return ExitCode.TO_DO if problems else ExitCode.OK
