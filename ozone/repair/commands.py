"""The command `suture ozone repair`: its output, its confirmation and its results."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from agent.plan.reconcile_outcome import PeerState
from merkle.replica import ContainerId, ReplicaState
from ozone.access_options import ConfOption, site_config
from ozone.disk.layout import local_path
from ozone.repair.proposal import NOT_ASKED, Proposal, RepairTarget
from ozone.repair.repair import (
    ChunkRepairOutcome,
    OzoneRepair,
    PeerAddress,
    RepairOptions,
    WriteResult,
    repairing,
)
from ozone.repair.replica_damage import InspectedReplica
from ozone.scrub.scrub import STATE_DIR_DEFAULT, default_state_dir
from ozone.security.datanode_access import datanode_access
from scanner.finding import Forensic, ScanFinding
from suture.errors import SutureError
from suture.observe import logs
from suture.runtime.clock import SystemClock
from suture.runtime.exit_codes import ExitCode
from suture.terminal.common_options import is_json
from suture.terminal.output import (
    bytes_progress,
    pluralize,
    print_json,
    print_line,
    print_note,
    print_rows,
    size,
)
from suture.terminal.typer_options import ID_MAX, argument, flag, option

SHOWN_MAX: Final = 50  # chunks in a table; --json has all
PORT_MAX: Final = 65_535

PeersOption = Annotated[
    list[str],
    option("HOST:PORT[/UUID]", "Datanode with a healthy replica (hdds.container.ipc.port)."),
]
JournalOption = Annotated[
    Path | None,
    option(
        "DIR", "Directory for the journal, outside Ozone's volumes.", show_default=STATE_DIR_DEFAULT
    ),
]
DatabasesOption = Annotated[
    list[Path] | None,
    option("DIR", "One directory of hdds.datanode.container.db.dir.", readable=False),
]


@dataclass(slots=True)
class RepairReport:
    """The results of a repair, for terminal and JSON output."""

    container_id: int
    dry_run: bool
    before: InspectedReplica | None = None
    proposal: Proposal | None = None
    outcomes: list[ChunkRepairOutcome] = field(default_factory=list)
    after: InspectedReplica | None = None
    state: str = ""
    quarantine: str = ""
    unfinished_count: int = 0
    recovery: Sequence[str] = ()  # parts of an earlier repair that could not be completed
    compared: list[str] = field(default_factory=list)  # peers found to have no more data

    @property
    def is_unknown(self) -> bool:
        """True if a peer that did not answer may have data that is still missing."""
        return any(outcome.is_unknown for outcome in self.outcomes) or (
            self.proposal is not None and self.proposal.is_unknown
        )

    @property
    def exit(self) -> ExitCode:
        """Exit code of the command."""
        last = self.after or self.before
        if last is not None and last.is_whole:
            return ExitCode.OK
        return ExitCode.UNAVAILABLE if self.is_unknown else ExitCode.TO_DO


def repair_command(
    data_dir: Annotated[
        Path, argument("DATA_DIR", "One directory of hdds.datanode.dir.", readable=False)
    ],
    container: Annotated[int, option("ID", "Id of the damaged container.", min=1, max=ID_MAX)],
    peer: PeersOption,
    dry_run: Annotated[bool, flag("Print the changes without making them.", "--dry-run")] = False,
    yes: Annotated[bool, flag("Skip the confirmation.", "--yes")] = False,
    mark_closed: Annotated[
        bool, flag("Mark an UNHEALTHY replica as CLOSED after a full repair.", "--mark-closed")
    ] = False,
    stopped: Annotated[
        bool, flag("Confirm that a schema V2 datanode is stopped.", "--stopped")
    ] = False,
    state_dir: JournalOption = None,
    db_dir: DatabasesOption = None,
    ozone_conf: ConfOption = None,
) -> int:
    """Repair a damaged Ozone replica from its peers.

    Stop the datanode of this host first. The command shows what it would write, and asks before it
    writes.

    Exit codes:
        2: the replica is still damaged
        3: the replica is still damaged, and a peer could not be asked

    Example:
        suture ozone repair /data/hdds --container 42 --peer dn2.example.org:9859
    """
    if is_json() and not (yes or dry_run):
        raise typer.BadParameter("cannot ask for confirmation with --json: give --yes or --dry-run")
    logs.configure("error")
    wish = RepairOptions(
        data_dir=local_path(data_dir),
        container_id=ContainerId(container),
        peers=[_address(text) for text in dict.fromkeys(peer)],
        state_dir=state_dir or default_state_dir(),
        database_dirs=tuple(map(local_path, db_dir or ())),
        is_stopped=stopped,
        is_dry=dry_run,
        access=datanode_access(site_config(ozone_conf), SystemClock().now_ms),
    )
    with repairing(wish) as repair:
        story = RepairReport(container, dry_run, quarantine=str(repair.quarantine))
        story.unfinished_count = repair.unfinished_count
        story.recovery = tuple(repair.recovery_remarks)
        result = _print_outcomes(repair, story, yes=yes, mark_closed=mark_closed)
        if is_json():
            print_json(document(story))
    return result


def _print_outcomes(
    repair: OzoneRepair, story: RepairReport, *, yes: bool, mark_closed: bool
) -> int:
    story.before = _read(repair, "read")
    story.state = repair.descriptor.state.value
    if story.before.chunk_count:
        story.proposal = repair.propose(story.before)
    if not is_json():
        print_proposal(story)
    is_unknown = story.proposal is not None and story.proposal.is_unknown
    if is_unknown and not is_json():
        print_line("no peer could be asked, so nothing is known of its data; try again later")
    if story.dry_run or is_unknown:
        return story.exit
    if story.proposal is not None:
        wanted = len(story.proposal.targets)
        if not (yes or typer.confirm(f"write up to {pluralize(wanted, 'chunk')}?", err=True)):
            return ExitCode.FAILED
        _execute_repair(repair, story, story.proposal)
        story.after = _read(repair, "read again")
    if mark_closed and repair.descriptor.state is ReplicaState.UNHEALTHY:
        repair.mark_closed(story.after or story.before)
        story.compared = repair.peer_ids
        story.state = repair.descriptor.state.value
    if not is_json():
        print_end(story)
    return story.exit


def _read(repair: OzoneRepair, label: str) -> InspectedReplica:
    with bytes_progress(label, 0) as progress:
        return repair.read(lambda count: progress.advance(progress.task_ids[0], count))


def _execute_repair(repair: OzoneRepair, story: RepairReport, proposal: Proposal) -> None:
    total_bytes = sum(target.chunk.length_bytes for target in proposal.targets)
    with bytes_progress("repair", total_bytes) as progress:

        def done(count: int) -> None:
            progress.advance(progress.task_ids[0], count)

        try:
            story.outcomes.extend(repair.execute(proposal, done))
        except SutureError:
            if not is_json():
                print_outcomes(story)  # print the writes before the error
            raise


def _address(text: str) -> PeerAddress:
    address, _, datanode_id = text.partition("/")
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdecimal() and 0 < int(port) <= PORT_MAX):
        raise typer.BadParameter(f"invalid --peer '{text}': expected HOST:PORT or HOST:PORT/UUID")
    return PeerAddress(address, datanode_id)


# --- output for people ---


def print_proposal(story: RepairReport) -> None:
    """Print the damage, the planned writes, and the answer of each peer."""
    assert story.before is not None
    before, proposal = story.before, story.proposal
    if story.unfinished_count:
        print_line(
            f"{pluralize(story.unfinished_count, 'chunk')} of an earlier repair not ended yet"
        )
    for why in story.recovery:
        print_line(f"  an earlier repair: {why}")
    if proposal is not None:
        faults = {(one.block_id, one.offset): one for one in before.findings}
        rows = [plan_row(target, faults) for target in proposal.targets[:SHOWN_MAX]]
        print_rows(["block", "offset#", "bytes#", "fault", "pattern", "source"], rows)
        more = len(proposal.targets) - len(rows)
        if more:
            print_line(f"  and {more} more")
        for tree in proposal.peers:
            said = proposal.remarks[tree.peer_id]
            state = "has another tree" if tree.state is PeerState.USED else tree.state.value
            print_line(f"  {tree.peer_id}: {state}{f': {said}' if said else ''}")
    print_unrepairable(before.others, before.unjudged)
    whole = "whole" if before.is_whole else "damaged"
    print_line(
        f"container {story.container_id} ({story.state}): {size(before.bytes_read)} read, {whole}: "
        f"{pluralize(before.chunk_count, 'chunk')} of "
        f"{pluralize(len(before.blocks), 'block')} damaged"
    )


def plan_row(
    target: RepairTarget, faults: dict[tuple[Any, int], ScanFinding]
) -> tuple[object, ...]:
    """Return the table row of one damaged chunk."""
    at = (target.block_id, target.chunk.offset)
    finding = faults.get(at) or faults.get((target.block_id, 0))
    source = target.why
    if target.has_checksums and source != NOT_ASKED:
        source += ": in windows, if they are anywhere"
    if target.wanted is not None:
        source = ", ".join(target.wanted.sources)
    return (
        *at,
        target.chunk.length_bytes,
        "" if finding is None else finding.fault.value,
        "" if finding is None or finding.forensic is Forensic.UNKNOWN else finding.forensic.value,
        source,
    )


def print_unrepairable(others: Sequence[ScanFinding], unjudged: Sequence[str]) -> None:
    """Print the faults that cannot be repaired with data of a peer."""
    for finding in others:
        print_line(f"  not to be repaired: {finding.fault.value}: {finding.evidence}")
    for why in unjudged:
        print_line(f"  not judged: {why}")


def print_outcomes(story: RepairReport) -> None:
    """Print the number of written chunks, and one line for each chunk that was not written."""
    counts = Counter(outcome.written for outcome in story.outcomes)
    for outcome in story.outcomes:
        if outcome.written is WriteResult.LEFT:
            target = outcome.target
            print_line(
                f"  block {target.block_id}, chunk at {target.chunk.offset}: {outcome.message}"
            )
    said = ", ".join(f"{counts[word]} {word.value}" for word in WriteResult if counts[word])
    print_line(f"{said or 'nothing'}; what was replaced is in {story.quarantine}")


def print_end(story: RepairReport) -> None:
    """Print the final state of the replica, and what remains to be repaired."""
    if story.proposal is not None:
        print_outcomes(story)
    last = story.after or story.before
    assert last is not None
    if story.after is not None:
        print_unrepairable(last.others, last.unjudged)
    if story.compared:
        print_line(f"marked closed: nothing is missing here that {' or '.join(story.compared)} has")
    whole = "is whole" if last.is_whole else f"has {pluralize(last.chunk_count, 'damaged chunk')}"
    print_line(f"container {story.container_id} ({story.state}) {whole}")
    if last.is_whole and story.state == ReplicaState.UNHEALTHY:
        print_note("hint: Ozone does not take back UNHEALTHY by itself; see --mark-closed")


# --- output for machines ---


def document(story: RepairReport) -> dict[str, Any]:
    """Return the results of a repair, for the JSON output."""
    proposal = story.proposal
    last = story.after or story.before
    return {
        "container_id": story.container_id,
        "dry_run": story.dry_run,
        "state": story.state,
        "is_whole": last is not None and last.is_whole,
        "is_unknown": story.is_unknown,
        "damaged_chunk_count": 0 if last is None else last.chunk_count,
        "quarantine": story.quarantine,
        "compared_with": story.compared,
        "recovery": list(story.recovery),
        "peers": []
        if proposal is None
        else [
            {
                "peer": tree.peer_id,
                "state": tree.state.value,
                "remark": proposal.remarks[tree.peer_id],
            }
            for tree in proposal.peers
        ],
        "plan": [] if proposal is None else [target_facts(one) for one in proposal.targets],
        "outcomes": [
            {
                **target_facts(one.target),
                "written": one.written.value,
                "from": list(one.sources),
                "message": one.message,
            }
            for one in story.outcomes
        ],
        "not_repaired": [
            {"fault": one.fault.value, "block_id": one.block_id, "evidence": one.evidence}
            for one in (() if last is None else last.others)
        ],
    }


def target_facts(target: RepairTarget) -> dict[str, Any]:
    """Return the facts about one damaged chunk, for the JSON output."""
    return {
        "block_id": target.block_id,
        "offset": target.chunk.offset,
        "length_bytes": target.chunk.length_bytes,
        "sources": [] if target.wanted is None else list(target.wanted.sources),
        "why": target.why,
    }
