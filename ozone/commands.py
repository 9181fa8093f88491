"""Commands of `suture ozone`, which read the volumes of an Ozone datanode and repair damage."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from merkle.replica import ContainerId
from ozone.cluster.commands import export_command, reconcile_command
from ozone.disk.layout import HDDS, OzoneVolume, local_path
from ozone.repair.commands import DatabasesOption, repair_command
from ozone.scrub.comparison import Agreement, ChecksumDifferenceReason
from ozone.scrub.result import MEANINGS, ContainerResult, ScrubStatus
from ozone.scrub.scrub import (
    STATE_DIR_DEFAULT,
    ScrubListener,
    ScrubOptions,
    default_state_dir,
    error_text,
    scrub,
)
from ozone.scrub.service import ScrubServiceOptions, serve
from scanner.finding import DamageFault, Forensic, ScanFinding
from suture.config.quantity import parse_bytes_per_s, parse_duration_s
from suture.observe import logs
from suture.runtime.exit_codes import ExitCode
from suture.runtime.stop_request import StopRequest
from suture.terminal.common_options import is_json
from suture.terminal.output import (
    bytes_progress,
    pluralize,
    print_json,
    print_line,
    print_rows,
    size,
)
from suture.terminal.typer_options import ID_MAX, argument, flag, option

if TYPE_CHECKING:
    from rich.progress import Progress

INTERVAL_S_MIN: Final = 60.0
BAR_STEP_BYTES: Final = 1024**2
FINDINGS_SHOWN_MAX: Final = 100  # findings per container; the JSON document has all that are stored
NAMED_MAX: Final = 10  # maximum number of containers that a line names
QUIET: Final = frozenset({ScrubStatus.WHOLE, ScrubStatus.SKIPPED})

WORDS: Final = {
    Agreement.EQUAL: "equal to the rows",
    Agreement.EXPLAINED: "other than the rows for a known reason",
    Agreement.DAMAGE: "with the damage that was found",
    Agreement.UNEXPLAINED: "other than the rows for no known reason",
    Agreement.NO_TREE: "without a tree",
}
REASONS: Final = {
    ChecksumDifferenceReason.NO_CHECKSUMS: "blocks without checksums, "
    "which Ozone's scan leaves out",
    ChecksumDifferenceReason.NO_CHUNKS: "blocks without chunks, which Ozone's scan leaves out",
    ChecksumDifferenceReason.LAST_CHUNK: "files never closed, "
    "whose last chunk Ozone's scan leaves out",
}

# The readability of a path is not checked here, because access(2) ignores the capability with which
# the service may read Ozone's files.
DataDirs = Annotated[
    list[Path], argument("DATA_DIR", "Directories of hdds.datanode.dir.", readable=False)
]
StateOption = Annotated[
    Path | None,
    option(
        "DIR", "Directory for results, outside Ozone's volumes.", show_default=STATE_DIR_DEFAULT
    ),
]
RateOption = Annotated[
    str, option("SIZE/s", "Limit per volume, for example 50MiB/s; default: none.")
]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def ozone() -> None:
    """Read the volumes of an Apache Ozone datanode, and repair damaged replicas."""


app.command("repair")(repair_command)


app.command("export")(export_command)
app.command("reconcile")(reconcile_command)


ScrubbedContainers = Annotated[
    list[int] | None, option("ID", "Read only this container; may be repeated.", min=1, max=ID_MAX)
]
RestartFlag = Annotated[
    bool, flag("Start over instead of resuming an unfinished scrub.", "--restart")
]


@app.command("scrub")
def scrub_command(
    data_dirs: DataDirs,
    state_dir: StateOption = None,
    db_dir: DatabasesOption = None,
    container: ScrubbedContainers = None,
    restart: RestartFlag = False,
    rate: RateOption = "",
) -> int:
    """Read and verify every closed Ozone container once.

    The datanode may run meanwhile. Nothing on its volumes is changed.

    Exit codes:
        2: a container needs attention

    Example:
        suture ozone scrub /data/hdds --rate 50MiB/s
    """
    logs.configure("error")  # log less, because findings are printed
    data_dirs = [local_path(path) for path in data_dirs]
    wish = ScrubOptions(
        data_dirs=data_dirs,
        state_dir=state_dir or default_state_dir(),
        database_dirs=tuple(map(local_path, db_dir or ())),
        container_ids=frozenset(map(ContainerId, container or ())),
        restart=restart,
        bytes_per_s_max=_rate(rate),
    )
    found: dict[str, tuple[OzoneVolume, list[ContainerResult]]] = {}
    failures: dict[str, Exception] = {}
    absent: list[str] = []
    with bytes_progress("scrub", 0) as progress:
        bar = _Bar(progress)

        def begun(volume: OzoneVolume, _count: int, used_bytes: int) -> None:
            found[volume.storage_id] = (volume, [])
            bar.add_volume(used_bytes)

        def done(result: ContainerResult) -> None:
            found[result.storage_id][1].append(result)

        def failed(volume: OzoneVolume, error: Exception) -> None:
            found.setdefault(volume.storage_id, (volume, []))
            failures[str(volume.hdds)] = error

        def missed(path: Path, error: Exception) -> None:
            absent.append(str(path))
            failures[str(path)] = error

        scrub(wish, ScrubListener(begun, bar.read, done, failed, missed))
    volumes = sorted(found.values(), key=lambda item: _place(item[0], data_dirs))
    return _reported(volumes, failures, absent, wish.container_ids)


def _reported(
    volumes: Sequence[tuple[OzoneVolume, Sequence[ContainerResult]]],
    failures: Mapping[str, Exception],
    absent: Sequence[str],
    wanted: Set[ContainerId],
) -> int:
    """Print the results of a scrub. Return the exit code."""
    results = [result for _, each in volumes for result in each]
    not_found = sorted(wanted - {result.container_id for result in results})
    several = on_several_volumes(volumes)
    if is_json():
        print_json(document(volumes, failures, absent, not_found))
    else:
        print_scrub(volumes)
        for container_id, places in several.items():
            print_line(
                f"container {container_id} is on several volumes: {', '.join(places)}; Ozone loads "
                "one of them"
            )
        for container_id in not_found:
            print_line(f"container {container_id}: NOT_FOUND on any volume that was read")
        for path, error in failures.items():
            word = "ABSENT" if path in absent else "FAILED"
            print_line(f"{path}: {word}: {error_text(error)}")
    if failures:
        return ExitCode.FAILED
    is_quiet = not (not_found or several) and all(result.status in QUIET for result in results)
    return ExitCode.OK if is_quiet else ExitCode.TO_DO


def _place(volume: OzoneVolume, data_dirs: Sequence[Path]) -> int:
    """Return the position on the command line of the directory that contains `volume`."""
    named = [volume.hdds in {path, path / HDDS} for path in data_dirs]
    return named.index(True)


def on_several_volumes(
    volumes: Sequence[tuple[OzoneVolume, Sequence[ContainerResult]]],
) -> dict[ContainerId, list[str]]:
    """Return the containers that exist on more than one volume, with the paths of these volumes."""
    places: dict[ContainerId, list[str]] = {}
    for volume, results in volumes:
        for result in results:
            if not (result.is_open or result.is_missing):
                places.setdefault(result.container_id, []).append(str(volume.hdds))
    return {key: paths for key, paths in sorted(places.items()) if len(paths) > 1}


class _Bar:
    """The progress bar of a scrub of all volumes.

    It is redrawn once per megabyte, because drawing takes longer than reading a small block.
    """

    def __init__(self, progress: "Progress") -> None:
        self._progress = progress
        self._total_bytes = 0
        self._read_bytes = 0
        self._drawn_bytes = 0

    def add_volume(self, used_bytes: int) -> None:
        """Add the used bytes of a volume to the total of the bar."""
        self._total_bytes += used_bytes
        self._progress.update(self._progress.task_ids[0], total=self._total_bytes)

    def read(self, length_bytes: int) -> None:
        """Count bytes that were read, and redraw the bar once per BAR_STEP_BYTES."""
        self._read_bytes += length_bytes
        if self._read_bytes - self._drawn_bytes >= BAR_STEP_BYTES:
            self._drawn_bytes = self._read_bytes
            self._progress.update(self._progress.task_ids[0], completed=self._read_bytes)


@app.command("serve")
def serve_command(
    data_dirs: DataDirs,
    state_dir: StateOption = None,
    db_dir: DatabasesOption = None,
    interval: Annotated[str, option("TIME", "Time to read every byte once.")] = "7d",
    rate: RateOption = "",
    listen: Annotated[
        str, option("HOST:PORT", "Serve /metrics and /healthz here; default: disabled.")
    ] = "",
) -> int:
    """Scrub Ozone containers at an interval until SIGTERM.

    The scrub uses the lowest rate that meets the interval.

    Example:
        suture ozone serve /data/hdds --interval 14d
    """
    logs.configure("info")
    stop = StopRequest()
    stop.on_signals()
    with _usage("--interval"):
        interval_s = parse_duration_s(interval)
    if interval_s < INTERVAL_S_MIN:
        raise typer.BadParameter(
            f"invalid --interval '{interval}': expected at least {INTERVAL_S_MIN:g} s"
        )
    wish = ScrubOptions(
        data_dirs=[local_path(path) for path in data_dirs],
        state_dir=state_dir or default_state_dir(),
        database_dirs=tuple(map(local_path, db_dir or ())),
        bytes_per_s_max=_rate(rate),
    )
    return serve(ScrubServiceOptions(scrub=wish, interval_s=interval_s, listen=listen), stop)


def _rate(text: str) -> int:
    with _usage("--rate"):
        return parse_bytes_per_s(text) if text else 0


@contextmanager
def _usage(option: str) -> Iterator[None]:
    """Convert an error about an invalid value to a usage error that names the option."""
    try:
        yield
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {error}") from error


def document(
    volumes: Sequence[tuple[OzoneVolume, Sequence[ContainerResult]]],
    failures: Mapping[str, Exception],
    absent: Sequence[str],
    not_found: Sequence[ContainerId],
) -> dict[str, Any]:
    """Return the results of a scrub, for the JSON output."""
    results = [result for _, found in volumes for result in found]
    statuses = Counter(result.status for result in results)
    return {
        "volumes": [
            {
                "path": str(volume.hdds),
                "storage_id": volume.storage_id,
                "cluster_id": volume.cluster_id,
                "datanode_id": volume.datanode_id,
                "containers": [result.facts() for result in found],
            }
            for volume, found in volumes
        ],
        "failed": {path: str(error) for path, error in failures.items()},
        "absent": list(absent),
        "not_found": list(not_found),
        "on_several_volumes": {
            str(key): paths for key, paths in on_several_volumes(volumes).items()
        },
        "statuses": {status.value: statuses[status] for status in ScrubStatus},
    }


def print_scrub(volumes: Sequence[tuple[OzoneVolume, Sequence[ContainerResult]]]) -> None:
    """Print the results of a scrub.

    The containers with findings come first, then the totals of each volume.
    """
    for volume, results in volumes:
        is_treeless = all(result.lacks_tree for result in results if result.read_at_ms)
        for result in map(_without_tree_note, results) if is_treeless else results:
            if result.status not in QUIET or result.findings:
                print_container(result)
        print_volume(volume, results, is_treeless=is_treeless)


def _without_tree_note(result: ContainerResult) -> ContainerResult:
    findings = tuple(one for one in result.findings if one.fault is not DamageFault.TREE_MISSING)
    dropped_count = len(result.findings) - len(findings)
    return replace(result, findings=findings, finding_count=result.finding_count - dropped_count)


def print_container(result: ContainerResult) -> None:
    """Print the status and the findings of one container."""
    index = f", replica index {result.replica_index}" if result.replica_index else ""
    state = f" ({result.state}{index})" if result.state else ""
    why = f": {result.why}" if result.why else ""
    print_line(f"container {result.container_id}{state}: {result.status.value}{why}")
    for doubt in result.caveats():
        print_line(f"  {doubt}")
    if result.findings:
        columns = ["block", "offset#", "bytes#", "verdict", "fault", "pattern", "evidence"]
        shown = result.findings[:FINDINGS_SHOWN_MAX]
        print_rows(columns, map(finding_row, shown))
        for fault in dict.fromkeys(finding.fault for finding in shown):
            if fault in MEANINGS:
                print_line(f"  {fault.value}: {MEANINGS[fault]}")
        if result.finding_count > len(shown):
            print_line(f"  and {result.finding_count - len(shown)} more")


def finding_row(finding: ScanFinding) -> tuple[object, ...]:
    """Return a finding as a table row. Fields that do not apply are empty."""
    where = (finding.block_id, finding.offset, finding.length_bytes)
    return (
        *("" if number < 0 else number for number in where),
        finding.verdict.value,
        finding.fault.value,
        "" if finding.forensic is Forensic.UNKNOWN else finding.forensic.value,
        finding.evidence,
    )


def print_volume(
    volume: OzoneVolume, results: Sequence[ContainerResult], *, is_treeless: bool
) -> None:
    """Print the totals of a volume. `is_treeless` is True if none of its containers has a tree."""
    statuses = Counter(result.status for result in results)
    counts = ", ".join(
        f"{count} {status.value}" for status in ScrubStatus if (count := statuses[status])
    )
    read_bytes = sum(result.bytes_read for result in results)
    containers = pluralize(len(results), "container")
    print_line(f"{volume.hdds}: {containers}: {counts or 'none'}; {size(read_bytes)}")
    read = [result.comparison for result in results if result.read_at_ms]
    agreements = Counter(comparison.agreement for comparison in read)
    for agreement in Agreement:
        if agreements[agreement]:
            why = ": Ozone before 2.1 makes none" if is_treeless else ""
            containers = pluralize(agreements[agreement], "container")
            print_line(f"  {containers} {WORDS[agreement]}{why}")
    reasons: Counter[ChecksumDifferenceReason] = Counter()
    for comparison in read:
        reasons.update(comparison.reasons)
    for reason, count in reasons.items():
        print_line(f"  {count} {REASONS[reason]}")
    leftovers = [str(result.container_id) for result in results if result.is_leftover]
    if leftovers:
        more = f" and {len(leftovers) - NAMED_MAX} more" if len(leftovers) > NAMED_MAX else ""
        named = ", ".join(leftovers[:NAMED_MAX])
        print_line(f"  empty directories, as of deleted containers: {named}{more}")
