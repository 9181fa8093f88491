"""Commands `suture scm backup` and `suture scm restore`, for the state of the SCM.

They read and write files on the host of the SCM. The SCM may be running or stopped.
"""

import time
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from scm.backup.backup_writer import list_backups, take_backup
from scm.backup.manifest import BackupManifest
from scm.backup.restore import restore_backup
from suture.runtime.exit_codes import ExitCode
from suture.terminal.common_options import is_json
from suture.terminal.output import pluralize, print_json, print_line, print_note, print_rows, size
from suture.terminal.typer_options import argument, flag, option

app = typer.Typer()

DATA_DEFAULT: Final = Path("/var/lib/suture-scm")
KEEP_DEFAULT: Final = 48
ROWS_PER_REMARK: Final = 1_000_000

DataOption = Annotated[Path, option("DIR", "Data directory of the SCM.", "--data")]


class _Progress:
    """Prints a line after every ROWS_PER_REMARK rows."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, count: int) -> None:
        before, self._count = self._count, self._count + count
        if not is_json() and before // ROWS_PER_REMARK < self._count // ROWS_PER_REMARK:
            print_note(f"{self._count} rows read and understood")


@app.command("backup")
def backup(
    to: Annotated[Path, argument("DIR", "Parent directory of backups; each has a subdirectory.")],
    data: DataOption = DATA_DEFAULT,
    keep: Annotated[
        int, option("N", "Number of newest backups to keep; 0 = unlimited.", min=0)
    ] = KEEP_DEFAULT,
    only_list: Annotated[bool, flag("List the backups in DIR, and exit.", "--list")] = False,
) -> int:
    """Back up the state of a running SCM.

    Run it on the host of the SCM, as its user. The backup is a directory with the time in its name,
    and is read back. DIR should be on another disk, or be copied to another host.

    Exit codes:
        2: with --list: there is no backup, or a damaged one

    Example:
        suture scm backup /srv/backup
    """
    if only_list:
        return show_backups(to)
    taken = take_backup(
        data,
        to,
        now_ms=int(time.time() * 1000),
        version=version("suture"),
        keep_count=keep,
        looked_at=_Progress(),
    )
    if is_json():
        print_json(
            {
                "path": str(taken.path),
                "manifest": asdict(taken.manifest),
                "removed": [str(path) for path in taken.removed],
            }
        )
        return ExitCode.OK
    print_line(f"{taken.path}: {_words(taken.manifest)}; every row read back")
    if taken.removed:
        print_line(f"removed {pluralize(len(taken.removed), 'older backup')}")
    return ExitCode.OK


def show_backups(directory: Path) -> int:
    """Print the backups in a directory, oldest first. Return the exit code."""
    found = list_backups(directory)
    if is_json():
        print_json({"backups": [{"path": str(path), **_facts(one)} for path, one in found]})
    elif not found:
        print_line(f"no backup is in {directory}")
    else:
        rows = [
            (path.name, "damaged", "", one)
            if isinstance(one, str)
            else (path.name, one.cluster_id, size(one.size_bytes), _counts(one))
            for path, one in found
        ]
        print_rows(["backup", "cluster", "bytes#", "contents"], rows)
    is_well = found and all(isinstance(one, BackupManifest) for _, one in found)
    return ExitCode.OK if is_well else ExitCode.TO_DO


@app.command("restore")
def restore(
    path: Annotated[Path, argument("BACKUP", "Directory of one backup.")],
    to: Annotated[Path, option("DIR", "New data directory; must be empty or absent.", "--to")],
    cluster: Annotated[
        str, option("ID", "Cluster id that the backup must have; default: any.", "--cluster")
    ] = "",
) -> int:
    """Create a data directory of the SCM from a backup.

    Nothing else is changed. Start suture-scm on the directory. It stays in safe mode until `suture
    scm recover` has recovered what was stored since the backup.

    Example:
        suture scm restore /srv/backup/20261101T020000Z --to /var/lib/suture-scm
    """
    done = restore_backup(
        path,
        to,
        now_ms=int(time.time() * 1000),
        cluster_id=cluster,
        looked_at=_Progress(),
    )
    if is_json():
        print_json(
            {"path": str(to), "manifest": asdict(done.manifest), "restored": asdict(done.restored)}
        )
        return ExitCode.OK
    if done.was_cut_off:
        print_line(f"what an earlier restore into {to} left that was cut off is removed")
    print_line(f"restored into {to}: {_words(done.manifest)}")
    print_line(
        "ids of blocks, commands and transactions, and the term, go on from the clock: "
        "none that was given out since the backup is given out again"
    )
    print_line(
        f"{pluralize(len(done.restored.unfinished), 'container')} "
        "took writes then; containers from "
        f"{done.restored.first_new_container_id} on are new to it"
    )
    print_line(
        f"next: start suture-scm with --data {to}, and all datanodes; then suture scm recover"
    )
    return ExitCode.OK


def _facts(one: BackupManifest | str) -> dict[str, Any]:
    return {"error": one} if isinstance(one, str) else asdict(one)


def _words(manifest: BackupManifest) -> str:
    taken = datetime.fromtimestamp(manifest.taken_at_ms / 1000, UTC).isoformat(timespec="seconds")
    return (
        f"the state of cluster {manifest.cluster_id} at {taken}, {size(manifest.size_bytes)}, "
        f"{_counts(manifest)}"
    )


def _counts(manifest: BackupManifest) -> str:
    shown = ("nodes", "containers", "keys", "replicas")
    return ", ".join(pluralize(manifest.counts.get(noun, 0), noun[:-1]) for noun in shown)
