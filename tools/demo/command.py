"""suture demo: damage and repair a small cluster, from start to end."""

import shutil
import signal
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated, Final

import typer
from rich.text import Text

from suture.client.cluster_client import ClusterClient
from suture.errors import Code, UnavailableError
from suture.observe.terminal_escape import printable
from suture.runtime.exit_codes import ExitCode
from suture.terminal.common_options import is_json
from suture.terminal.output import aside, grid, people, print_json, print_line, print_table, short
from suture.wire.v1 import scm_pb2
from tools.demo.cluster import Cluster
from tools.demo.damage_choice import Harm
from tools.demo.death import TIMES, Death
from tools.demo.liar import CONTRADICTORY, Contest
from tools.demo.stage import Stage
from tools.demo.story import Evidence, Say, Story, collect, default_directories, freeze

AGENTS_MIN: Final = 3


def demo(
    directories: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="DIR",
            help="Directories with files to store; default: sample files.",
        ),
    ] = None,
    agents: Annotated[
        int, typer.Option(metavar="N", min=AGENTS_MIN, max=32, help="Number of datanodes.")
    ] = 5,
    work: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Directory to work in; default: a temporary one."),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the cluster's data; reports are always kept.")
    ] = False,
) -> int:
    """Store files, damage them on disk, and repair them.

    The demo starts one SCM and several datanodes as processes on loopback. It stops them before it
    exits.

    Exit codes:
        2: some damage was not repaired

    Example:
        suture demo --agents 5
    """
    root = work or Path(tempfile.mkdtemp(prefix="suture-demo-"))
    if work is not None and work.is_dir() and any(work.iterdir()):
        raise UnavailableError(
            Code.INELIGIBLE, f"{work} is not empty", hint="give an empty directory"
        )
    steps = Steps(silence if is_json() else Printer())
    steps.listen()
    try:
        evidence = run(root, agents, directories or default_directories(), steps)
    finally:
        if not keep:
            for below in (*root.glob("datanode*/"), root / "scm", root / "source"):
                shutil.rmtree(below, ignore_errors=True)
        with suppress(OSError):
            root.rmdir()  # fails if there is a report or a log
    if is_json():
        print_json(as_facts(evidence))
    else:
        tell(evidence)
    return ExitCode.TO_DO if evidence.not_healed else ExitCode.OK


class Steps:
    """Reports the steps of the demo, until SIGINT or SIGTERM. Both end the demo cleanly.

    The exception that a signal handler raises is not sufficient: if it is raised in a callback of a
    library, it is printed and lost. In this case, the demo ends after the current step.
    """

    def __init__(self, tell: Say) -> None:
        self.is_interrupted = False
        self._tell = tell

    def listen(self) -> None:
        """Handle the signals. A signal that the parent process ignores remains ignored, as nohup
        expects."""
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self.interrupt)

    def interrupt(self, _signal: int, _frame: FrameType | None) -> None:
        """Record the signal, and interrupt the current step."""
        self.is_interrupted = True
        raise KeyboardInterrupt

    def __call__(self, text: str) -> None:
        """Report a step. Raise KeyboardInterrupt if the demo must end."""
        if self.is_interrupted:
            raise KeyboardInterrupt
        self._tell(text)


def silence(_text: str) -> None:
    """Print nothing, because the JSON output is one document at the end."""


class Printer:
    """Prints the steps of the story, numbered."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self, text: str) -> None:
        """Print a step."""
        self.number += 1
        line = Text.assemble((f"{self.number}.", "bold"), f" {printable(text)}")
        aside.print(line, soft_wrap=True)


def run(root: Path, agents: int, directories: list[Path], steps: Say) -> Evidence:
    """Start the cluster, run all steps of the demo, and stop the cluster; return the
    observations."""
    sources = freeze(collect(directories), root / "source")
    quiet = "[scan]\nenabled = false\nwatch = false\n"  # no scan finds damage before the story does
    cluster = Cluster(root, agents=agents, agent_sections=quiet, scm_settings=TIMES)
    with cluster, ClusterClient(cluster.scm.address) as client:
        steps(f"started an SCM and {agents} datanodes, two volumes each, below {root}")
        return Story(Stage(cluster, client), steps).run(sources)


def tell(evidence: Evidence) -> None:
    """Print the table of damages, the totals and the verdict."""
    columns = [
        "damage",
        "container#",
        "datanode",
        "fault",
        "result",
        "source",
        "damaged bytes#",
        "fetched bytes#",
    ]
    rows = [row(evidence, harm) for harm in evidence.harms]
    print_table(grid("", columns, [*rows, *contest_rows(evidence), death_row(evidence)]))
    ratio = evidence.fetched_bytes / max(1, evidence.spoiled_bytes)
    print_line(
        f"fetched {evidence.fetched_bytes:,} bytes of chunks for {evidence.spoiled_bytes:,} bytes "
        f"spoiled: {ratio:.3f} times; {evidence.tree_bytes:,} bytes of trees to find them"
    )
    print_line(
        f"shards: 1 lost and rebuilt from {evidence.coded.rebuild_read_bytes:,} bytes, 1 damaged "
        f"chunk computed from {evidence.coded_fetched_bytes:,} bytes of its stripe"
    )
    print_line("seconds: " + ", ".join(f"{name} {s}" for name, s in evidence.seconds.items()))
    if evidence.not_healed:
        people.print("NOT HEALED:", style="bold red")
        for why in evidence.not_healed:
            print_line(f"  {why}")
    else:
        people.print("all replicas are equal and whole again", style="bold green")
    print_line(f"report: {evidence.report}")


def row(evidence: Evidence, harm: Harm) -> tuple[object, ...]:
    """Return the table row of a damage and its repair."""
    healed = healed_of(evidence, harm)
    return (
        harm.damage.way,
        harm.damage.container_id,
        short(harm.datanode_id),
        ", ".join(healed.found_as),
        ", ".join(healed.results),
        ", ".join(short(source) for source in healed.sources),
        f"{harm.damage.spoiled_bytes:,}",
        f"{healed.fetched_bytes:,}",
    )


def contest_rows(evidence: Evidence) -> list[tuple[object, ...]]:
    """Return the two rows of the contradiction: the flipped bit and the lie."""
    told = evidence.contest
    if told.flip is None or told.lie is None:
        return []
    found = evidence.findings.get((told.flip_id, told.container_id), [])
    return [
        (
            "bit flip, while a peer lies",
            told.container_id,
            short(told.flip_id),
            ", ".join(sorted({f.fault for f in found if f.local_id == told.block_id})),
            "repaired" if told.repaired_from else "",
            ", ".join(short(source) for source in told.repaired_from),
            f"{told.flip.damage.spoiled_bytes:,}",
            f"{told.repaired_bytes:,}",
        ),
        (
            "wrong bytes, row rewritten to fit",
            told.container_id,
            short(told.lie_id),
            CONTRADICTORY if told.reported_by else "",
            "by --trust" if told.replaced_bytes else "",
            short(told.right_id),
            f"{told.lie.damage.spoiled_bytes:,}",
            f"{told.replaced_bytes:,}",
        ),
    ]


def death_row(evidence: Evidence) -> tuple[object, ...]:
    """Return the row of the datanode that died."""
    told = evidence.death
    return (
        "datanode killed, back later",
        f"{len(told.containers)} of {len(evidence.containers)}",
        short(told.datanode_id),
        "does not answer",
        f"{told.made_count} made, {told.removed_count} removed",
        "",
        "",
        f"{told.made_bytes:,}",
    )


@dataclass(frozen=True, slots=True)
class Healed:
    """The results of the scan and the repair for one damage."""

    found_as: list[str]
    results: list[str]
    sources: list[str]
    fetched_bytes: int


def healed_of(evidence: Evidence, harm: Harm) -> Healed:
    """Return the faults that the scan found for one damage, and the results of its repair."""
    damage = harm.damage
    found = evidence.findings.get((harm.datanode_id, damage.container_id), [])
    about_block = [f for f in found if f.local_id in damage.block_ids[: damage.blocks_hit]]
    about_files = [f for f in found if f.fault in damage.file_faults]
    chunks = [
        chunk
        for outcome in evidence.outcomes
        if (outcome.datanode_id, outcome.status.container_id)
        == (harm.datanode_id, damage.container_id)
        for chunk in outcome.status.reconcile.chunks
        if chunk_belongs(chunk, damage.block_ids[: damage.blocks_hit], damage.file_faults)
    ]
    return Healed(
        found_as=sorted({f.fault for f in (about_files if damage.file_faults else about_block)}),
        results=sorted({chunk.result for chunk in chunks}),
        sources=sorted({chunk.source for chunk in chunks if chunk.source}),
        fetched_bytes=sum(chunk.length for chunk in chunks if chunk.result == "repaired"),
    )


def chunk_belongs(
    chunk: scm_pb2.ChunkOutcome, block_ids: tuple[int, ...], file_faults: tuple[str, ...]
) -> bool:
    """Return True if a repaired chunk belongs to the damage with these blocks and file faults."""
    if file_faults:
        return chunk.difference in file_faults
    return chunk.local_id in block_ids


def as_facts(evidence: Evidence) -> dict[str, object]:
    """Return all observations as a JSON document."""
    return {
        "files": evidence.files,
        "stored_bytes": evidence.stored_bytes,
        "container_ids": evidence.containers,
        "damages": [
            {
                "way": harm.damage.way,
                "container_id": harm.damage.container_id,
                "datanode_id": harm.datanode_id,
                "detail": harm.damage.detail,
                "spoiled_bytes": harm.damage.spoiled_bytes,
                **asdict(healed_of(evidence, harm)),
            }
            for harm in evidence.harms
        ],
        "spoiled_bytes": evidence.spoiled_bytes,
        "fetched_bytes": evidence.fetched_bytes,
        "tree_bytes": evidence.tree_bytes,
        "coded": {
            "scheme": evidence.coded.scheme,
            "container_ids": evidence.coded.containers,
            "rebuilt_on": evidence.coded.rebuilt_on,
            "rebuild_read_bytes": evidence.coded.rebuild_read_bytes,
            "damaged_bytes": evidence.coded.harm.damage.spoiled_bytes if evidence.coded.harm else 0,
            "fetched_bytes": evidence.coded_fetched_bytes,
            "stripes": evidence.coded.stripes,
        },
        "selfheal": asdict(evidence.selfheal),
        "contest": contest_facts(evidence.contest),
        "death": death_facts(evidence.death),
        "summary": evidence.summary,
        "report": str(evidence.report),
        "not_healed": evidence.not_healed,
        "seconds": evidence.seconds,
    }


def contest_facts(told: Contest) -> dict[str, object]:
    """Return the facts about the contradiction as JSON."""
    return {
        "container_id": told.container_id,
        "block_id": told.block_id,
        "right": told.right_id,
        "flipped": told.flip_id,
        "liar": told.lie_id,
        "repaired_from": told.repaired_from,
        "repaired_bytes": told.repaired_bytes,
        "reported_by": told.reported_by,
        "status": told.headline,
        "replaced_bytes": told.replaced_bytes,
    }


def death_facts(told: Death) -> dict[str, object]:
    """Return the facts about the dead datanode as JSON."""
    return {
        "datanode_id": told.datanode_id,
        "container_ids": told.containers,
        "open_container_id": told.open_id,
        "status": told.headline,
        "made_count": told.made_count,
        "made_bytes": told.made_bytes,
        "removed_count": told.removed_count,
    }
