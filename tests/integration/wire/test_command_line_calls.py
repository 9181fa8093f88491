"""Every field that commands send and receive, over a real connection.

The test is the control plane and the datanode. It expects that a command sends what its options
say. It answers with a different value in each field, and expects all values in the output.
"""

import base64
import itertools
import json
import tarfile
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from google.protobuf.message import Message

from agent.cli.main import run
from health.tables.snapshot_columns import RESULT_VERSION
from suture.wire.v1 import container_pb2 as c
from suture.wire.v1 import datanode_pb2 as d
from suture.wire.v1 import scm_pb2 as s
from tests.support.control.recovery_answers import FOUND, FOUND_KEY, LOOKED_INTO, RECOVERED
from tests.support.control.scripted_calls import FIRST, ScriptedCalls, filled
from tests.support.verification.result_files import write_result_table

ME, PEER = "dn-1", "dn-2"
VOLUME, OTHER_VOLUME = "volume-9", "volume-8"
WORLDS: Final = {7: 2**63 + 1, 8: 2**63 + 2}
MINUTE_MS: Final = 60_000
WORDS: Final[Mapping[str, Any]] = {
    "code": "OK",
    "datanode_id": ME,
    "health": "HEALTHY",
    "node_health": "HEALTHY",
    "op_state": "IN_SERVICE",
    "verdict": "DEGRADED",
    "volume_id": VOLUME,
}
CALLS: Final = {"HashesPage": "GetContainerHashes"}
PAGES: Final = (
    s.ListContainerInfosResponse,
    s.ListContainerKeysResponse,
    s.ListKeysResponse,
    s.ListOutcomesResponse,
    d.ListFindingsResponse,
)
"""Answers of which the next one is empty: it is the last page."""
NOT_SHOWN: Final = {
    "ListKeysResponse.next_start_after",
    "ListContainerKeysResponse.next_start_after",
    "ListContainerInfosResponse.next_container_id",
    "ListFindingsResponse.next_container_id",
}
"""They begin the next request."""


@dataclass(frozen=True)
class Row:
    """A command, the requests that it sends, and the answers that it gets. The fields of an answer
    that are not set get a value. `silent` are fields of the answers that the output leaves out.
    `shows` are texts of the output. Nothing is added to `exact` answers."""

    words: str
    asked: Sequence[Message]
    answers: Sequence[Message] = ()
    exact: Sequence[Message] = ()
    silent: Set[str] = frozenset()
    shows: Sequence[str] = ()
    as_json: bool = True


def replicas(*names: str) -> s.GetContainerInfoResponse:
    """Return a container of these datanodes."""
    places = [c.DatanodeEndpoint(datanode_id=name) for name in names]
    held = [s.ContainerInfoReplica(datanode=place) for place in places]
    return s.GetContainerInfoResponse(container=s.ContainerInfo(container_id=7, replicas=held))


IDS: Final = {"container_ids": [7, 8], "worlds": WORLDS.values()}
LEAVE: Final[Any] = {"datanode_ids": [ME], "op_state": "DECOMMISSIONING", "dry_run": True}
EXPECT: Final = "--yes --expect {expected}"
STOP: Final = s.CheckStopRequest(
    volumes=[s.CheckStopRequest.Volume(datanode_id=ME, volume_id=VOLUME)], keep_count=1
)
PLANNED: Final = {
    "reconcile_plan": {
        "container_id": 7,
        "action": "reconcile",
        "reason": "roots differ",
        "replicas": [{"datanode_id": ME, "state": "CLOSED", "root": -1}],
        "expires_at_ms": 71,
        "priority": 0,
    },
    "plan": {
        "container_id": 8,
        "action": "delete",
        "reason": "too many",
        "sources": [PEER],
        "targets": [ME],
        "copies": 72,
        "is_forced": True,
        "expires_at_ms": 73,
        "priority": 0,
    },
}
PLAN: Final = {
    "snapshot_id": "snapshot-5",
    "run_id": "run-6",
    "rows": [
        s.PlanRow(
            container_id=7,
            action="reconcile",
            reason="roots differ",
            replicas=[s.PlanReplica(datanode_id=ME, state=c.CLOSED, root=2**64 - 1)],
            expires_at_ms=71,
        ),
        s.PlanRow(
            container_id=8,
            action="delete",
            reason="too many",
            sources=[PEER],
            targets=[ME],
            copies=72,
            forced=True,
            expires_at_ms=73,
        ),
    ],
}
ROWS: Final = (
    Row("scm apply-plan {plan} --dry-run", [s.ApplyPlanRequest(**PLAN, dry_run=True)]),
    Row(
        f"scm apply-plan {{plan}} {EXPECT}",
        [s.ApplyPlanRequest(**PLAN, worlds=WORLDS.values())],
        [s.ContainerDecisions()],
    ),
    Row(
        f"reconcile 7 8 --wait-s 0.1 {EXPECT}",
        [s.ReconcileContainersRequest(**IDS), s.ListOutcomesRequest(command_ids=[71], count=1)],
        [
            s.ContainerDecisions(
                decisions=[s.ContainerDecision(container_id=7, code="OK", command_ids=[71])]
            )
        ],
        exact=[s.ListOutcomesResponse(pending_command_ids=[9_172])],
        shows=["9172"],
    ),
    Row(
        f"scm close 7 8 --force {EXPECT}",
        [s.CloseContainersRequest(**IDS, force=True)],
        [s.ContainerDecisions()],
    ),
    Row(
        f"scm replicate 7 8 --target {ME} {EXPECT}",
        [s.ReplicateContainersRequest(**IDS, target_datanode_id=ME)],
        [s.ContainerDecisions()],
    ),
    Row(
        f"scm delete 7 8 --datanode {ME} {EXPECT}",
        [s.DeleteReplicasRequest(**IDS, datanode_id=ME)],
        [s.ContainerDecisions()],
    ),
    Row(f"reconcile 7 8 {EXPECT}", [s.ReconcileContainersRequest(**IDS)], [s.ContainerDecisions()]),
    Row(
        f"scm mark-lost 7 8 {EXPECT}",
        [s.MarkContainersLostRequest(**IDS)],
        [s.MarkContainersLostResponse()],
    ),
    Row(
        "scm mark-lost 7 --undo --dry-run",
        [s.MarkContainersLostRequest(container_ids=[7], undo=True, dry_run=True)],
    ),
    Row("scm close 7 --dry-run", [s.CloseContainersRequest(container_ids=[7], dry_run=True)]),
    Row(
        "scm replicate 7 --dry-run",
        [s.ReplicateContainersRequest(container_ids=[7], dry_run=True)],
    ),
    Row(
        f"scm delete 7 --datanode {ME} --dry-run",
        [s.DeleteReplicasRequest(container_ids=[7], datanode_id=ME, dry_run=True)],
    ),
    Row("reconcile 7 --dry-run", [s.ReconcileContainersRequest(container_ids=[7], dry_run=True)]),
    Row(
        f"scm hold 7 8 --datanode {ME} --release",
        [s.HoldContainersRequest(container_ids=[7, 8], datanode_id=ME, release=True)],
        [s.ContainerDecisions()],
    ),
    Row("scm hold", [s.ListHoldsRequest()], [s.ListHoldsResponse()]),
    Row(
        f"scm remove-node {ME} --force --yes",
        [s.RemoveNodesRequest(datanode_ids=[ME], force=True)],
        [s.NodeDecisions()],
    ),
    Row(f"scm remove-node {ME} --dry-run", [s.RemoveNodesRequest(datanode_ids=[ME], dry_run=True)]),
    Row(
        f"scm decommission {ME} --force --skip space --dry-run",
        [s.SetOperationalStatesRequest(**LEAVE, force=True, skipped_checks=["space"])],
        [s.NodeDecisions()],
    ),
    Row(
        f"scm refresh-volumes {ME} --register",
        [s.CommandNodesRequest(datanode_ids=[ME], type="reregister")],
        [s.NodeDecisions()],
    ),
    Row(
        "scm balance --threshold 7.5 --iterations 3 --dry-run",
        [s.BalanceRequest(threshold_permille=75, iteration_count=3, dry_run=True)],
        [s.BalanceResponse()],
    ),
    Row("scm balance --stop --yes", [s.BalanceRequest(iteration_count=10, stop=True)]),
    Row(
        f"ok-to-stop {ME} --keep 2",
        [s.CheckStopRequest(datanode_ids=[ME], keep_count=2)],
        [s.CheckStopResponse(answer="NO")],
    ),
    Row(
        f"ok-to-stop {ME} --for-good",
        [s.CheckStopRequest(datanode_ids=[ME], for_good=True)],
        [s.CheckStopResponse(answer="NO")],
    ),
    Row(
        f"ok-to-stop {VOLUME}",
        [STOP],
        [s.CheckStopResponse(answer="NO")],
    ),
    Row(
        "scm nodes",
        [s.ListNodesRequest()],
        [s.ListNodesResponse()],
        silent={f"ListNodesResponse.{name}" for name in ("cluster_id", "version", "started_at_ms")},
    ),
    Row(
        "versions",
        [s.ListNodesRequest()],
        exact=[s.ListNodesResponse(version="9.1", started_at_ms=71)],
        shows=['"version": "9.1"', '"started_at_ms": 71'],
    ),
    Row(
        "scm report",
        [
            s.GetReportRequest(),
            s.CountContainersRequest(),
            s.ListContainerKeysRequest(at_risk=True, start_after="page 2"),
        ],
        [
            s.GetReportResponse(),
            s.ListContainerKeysResponse(next_start_after="page 2"),
        ],
        exact=[s.CountContainersResponse(verdict="WHOLE")],
    ),
    Row("status", [s.CountContainersRequest()], [s.CountContainersResponse()]),
    Row(
        "scm decommission-status",
        [s.ListDecommissionsRequest()],
        [s.ListDecommissionsResponse()],
        silent={
            "ListDecommissionsResponse.leaving_locked_count",
            "ListDecommissionsResponse.resting_locked_count",
        },
    ),
    Row(
        "scm decommission-status",
        [],
        [s.ListDecommissionsResponse(leaving_locked_count=71, resting_locked_count=72)],
        shows=["without all that leave: 71", "without all that rest: 72"],
        as_json=False,
    ),
    Row("scm queues", [s.GetQueuesRequest()], [s.GetQueuesResponse()]),
    Row("scm safemode --leave --yes", [s.SafeModeRequest(leave=True)], [s.SafeModeResponse()]),
    Row("scm snapshot", [s.ExportSnapshotRequest()], [s.ExportSnapshotResponse()]),
    Row(
        "scm containers",
        [s.ListContainerInfosRequest(start_container_id=77, count=1_000)],
        [s.ListContainerInfosResponse(next_container_id=77)],
    ),
    Row("scm containers 7", [s.GetContainerInfoRequest(container_id=7)], [replicas(ME, PEER)]),
    Row(
        "history --commands --count 9",
        [s.ListOutcomesRequest(count=10_000, before_command_id=77)],
        [
            s.ListOutcomesResponse(
                outcomes=[s.Outcome(status=s.CommandStatus(command_id=77, state=2))],
                pending_command_ids=[78],
            ),
        ],
        silent={"ListOutcomesResponse.pending_command_ids"},
    ),
    Row(
        "ls key --container 7",
        [s.ListKeysRequest(prefix="key", count=1_000, container_ids=[7], start_after="page 2")],
        [s.ListKeysResponse(next_start_after="page 2")],
    ),
    Row(
        "rm key other --yes",
        [
            s.DeleteKeysRequest(keys=["key", "other"], dry_run=True),
            s.DeleteKeysRequest(keys=["key"], worlds=[WORLDS[7]]),
        ],
        [s.DeleteKeysResponse(deletions=[s.KeyDeletion(key="key", code="OK", world=WORLDS[7])])],
    ),
    Row(
        f"verify-log --list-anchors --datanode {ME}",
        [s.ListAnchorsRequest(datanode_id=ME)],
        [s.ListAnchorsResponse()],
        silent={"Anchor.checksum"},
    ),
    Row(
        f"status --datanode {ME}",
        [d.StatusRequest()],
        [d.StatusResponse(), d.ScrubStatusResponse()],
    ),
    Row(
        "findings",
        [d.ListFindingsRequest(start_container_id=77)],
        [d.ListFindingsResponse(next_container_id=77)],
    ),
    Row(
        "scm recover --force",
        [
            s.RecoverFromRestoreRequest(containers=[LOOKED_INTO]),
            s.RecoverFromRestoreRequest(finish=True, force=True, last_local_id=3),
        ],
        exact=RECOVERED,
        shows=[
            "restored from a backup of 2023-11-14T22:13:20+00:00; 1 container to look into",
            "1 container taken over",
            "1 key KEPT_ASIDE",
            "key.old (of key)",
            "deleted since the backup: 1\n  other",
        ],
        as_json=False,
    ),
    Row(
        "scm recover --dry-run",
        [
            s.RecoverFromRestoreRequest(
                containers=[s.RecoveredContainer(container_id=7)], dry_run=True
            ),
            s.RecoverFromRestoreRequest(
                containers=[s.RecoveredContainer(container_id=7)], keys=[FOUND_KEY], dry_run=True
            ),
        ],
        exact=(RECOVERED[0], *FOUND, RECOVERED[3]),
        shows=["not reported yet: dn-9"],
        as_json=False,
    ),
    Row(
        "explain 7",
        [
            d.ListFindingsRequest(container_id=7),
            s.ListContainerKeysRequest(container_ids=[7], count=20),
        ],
        exact=[replicas(ME)],
        as_json=False,
    ),
    Row(
        f"history --since 2h --datanode {ME}",
        [],
        [
            d.ListChangesResponse(
                changes=[d.ReplicaChange(container_id=7_001)],
                left_out_count=71,
                unread_paths=["/gone"],
            )
        ],
        shows=[
            '"container_id": 7001',
            '"state": "RECOVERING"',
            f"{ME}: 71 older changes left out",
            f"{ME}: /gone cannot be read",
        ],
    ),
    Row(
        "history --audit --since 2h",
        [],
        [c.ListAuditResponse(lines=['{"at": "2026"}'], left_out_count=71)],
        shows=['"at": "2026"', f"{ME}: 71 older lines left out", "scm: 71 older lines"],
    ),
    Row(
        f"scrub sample --fraction 0.5 --datanode {ME}",
        [d.SampleChunksRequest()],
        [d.SampleProgress(result=d.SampleResult(chunk_count=10))],
        silent={"SampleProgress.read_count"},
    ),
    Row(
        "diagnose 7 --output {bundle}",
        [d.ListDisksRequest()],
        [
            s.ListContainerInfosResponse(containers=[replicas(ME).container]),
            d.ListDisksResponse(
                disks=[d.DiskReport(volume_id="volume-7", smart='{"temperature": 41}')]
            ),
        ],
        silent={"DiskReport.smart"},
        shows=['"temperature": 41', '"volume_id": "volume-7"'],
    ),
    Row("scrub status", [d.ScrubStatusRequest(with_last_pass=True)], [d.ScrubStatusResponse()]),
    Row(
        f"scrub pause --for 2h --volume {VOLUME} --datanode {ME}",
        [d.ControlScrubRequest(volume_id=VOLUME, pause_ms=120 * MINUTE_MS)],
    ),
    Row(f"scrub pause --end --datanode {ME}", [d.ControlScrubRequest(resume=True)]),
    Row("scrub scan 7 --cancel", [d.ControlScrubRequest(skip_container_id=7)], [replicas(ME)]),
    Row(
        "scrub scan 7 --full-speed --wait",
        [d.ScanContainerRequest(container_id=7, full_speed=True)],
        [replicas(ME), d.ScanProgress()],
        silent={
            f"ScanProgress.{name}" for name in ("bytes_read", "bytes_total", "queued", "waiting")
        },
    ),
    Row(
        "scrub scan 7",
        [d.ScanContainerRequest(container_id=7, queue=True)],
        [replicas(ME), d.ScanProgress(bytes_total=5 * 1024**2)],
        shows=["in line, 5.0 MiB to read"],
        as_json=False,
    ),
    Row(
        f"volume add /disk --datanode {ME}",
        [d.ControlVolumeRequest(add_path="/disk")],
        [d.ControlVolumeResponse()],
    ),
    Row(
        f"volume retire {VOLUME} --to volume-8 --yes",
        [d.ControlVolumeRequest(volume_id=VOLUME, service="RETIRING", target_volume_id="volume-8")],
        [
            d.StatusResponse(
                volumes=[d.VolumeStatus(volume_id=VOLUME), d.VolumeStatus(volume_id="volume-8")]
            ),
            d.ControlVolumeResponse(volumes=[d.VolumeStatus(service="RETIRING")]),
        ],
    ),
    Row(
        "history 7",
        [d.ListHistoryRequest(container_id=7)],
        [replicas(ME), d.ListHistoryResponse(entries=[d.HistoryEntry(root=0x7C)])],
        silent={"HistoryEntry.root"},
        shows=['"root": "000000000000007c"'],
    ),
    Row(
        f"reconcile 7 --trust {ME} --yes",
        [
            s.ReconcileContainersRequest(container_ids=[7]),
            d.TrustReplicaRequest(container_id=7, trusted_datanode_id=ME, dry_run=True),
            d.TrustReplicaRequest(container_id=7, trusted_datanode_id=ME, shown=WORLDS[7]),
        ],
        [
            replicas(ME, PEER),
            s.ContainerDecisions(),
            d.TrustReplicaResponse(
                shown=WORLDS[7],
                change_count=71,
                changes=[d.TrustedChange(before=0x7A, after=0x7B)],
                result="partial",
                failed_count=72,
            ),
        ],
        silent={"ContainerDecisions"}
        | {f"TrustedChange.{name}" for name in ("local_id", "length", "before", "after")}
        | {f"TrustReplicaResponse.{name}" for name in ("shown", "result", "failed_count")},
        shows=[
            f"{PEER}: partial, 72 chunks failed",
            '"block_id": 100',
            '"length_bytes": 100',
            '"before": "000000000000007a"',
            '"after": "000000000000007b"',
        ],
    ),
)


def leaves(message: Message) -> Iterator[tuple[str, str]]:
    """Yield each field of a message with the text that shows its value in a document."""
    for known, value in message.ListFields():
        name = f"{message.DESCRIPTOR.name}.{known.name}"
        kind = known.message_type
        if kind is not None and kind.GetOptions().map_entry:
            for key, item in value.items():
                yield name, f'"{key}": {json.dumps(item)}'
        elif kind is not None:
            for item in value if known.is_repeated else [value]:
                yield from leaves(item)
        else:
            for item in value if known.is_repeated else [value]:
                if known.enum_type is not None:
                    item = known.enum_type.values_by_number[item].name
                elif isinstance(item, bytes):
                    item = base64.b64encode(item).decode()
                text = json.dumps(item)
                yield name, text if known.is_repeated else f'"{known.name}": {text}'


def call_of(row: Row, answer: Message) -> str:
    """Return the name of the call that an answer belongs to: its own, or the one of the first
    request."""
    name = type(answer).__name__
    if not name.endswith("Response"):
        name = type(row.asked[0]).__name__.removesuffix("Request")
    return name.removesuffix("Response")


def printed(
    calls: ScriptedCalls, row: Row, folder: Path, capsys: pytest.CaptureFixture[str]
) -> str:
    """Prepare the answers, run the command, and return its output."""
    expected = folder / "expected.json"
    shown = [
        {"container_id": number, "world": world, "code": "OK"} for number, world in WORLDS.items()
    ]
    expected.write_text(json.dumps({"schema": 1, "decisions": shown}))
    words = {**WORDS, "address": calls.address}
    volumes = [d.VolumeStatus(volume_id=name) for name in (VOLUME, OTHER_VOLUME)]
    others = [d.VolumeStatus(volume_id="elsewhere")]
    nodes = [s.NodeInfo(volumes=volumes), s.NodeInfo(datanode_id=PEER, volumes=others)]
    numbers = itertools.count(FIRST)
    for answer in (s.ListNodesResponse(nodes=nodes), *row.answers):
        copy = type(answer)()
        copy.CopyFrom(answer)
        last = [type(answer)()] if isinstance(answer, PAGES) else []
        calls.answers[call_of(row, answer)] = [filled(copy, words, numbers), *last]
    for answer in row.exact:
        if isinstance(answer, s.GetContainerInfoResponse):
            for replica in answer.container.replicas:
                replica.datanode.datanode_id, replica.datanode.address = ME, calls.address
        calls.answers[CALLS.get(type(answer).__name__) or call_of(row, answer)] = [answer]
    bundle, plan = folder / "bundle", folder / "run"
    paths = {"expected": expected, "bundle": bundle, "plan": plan}
    if "{plan}" in row.words:
        write_plan(plan)
    command = [word.format(**paths) for word in row.words.split()]
    capsys.readouterr()
    run([*command, *(["--json"] if row.as_json else []), "--scm", calls.address])
    out, err = capsys.readouterr()
    return "\n".join([out, err, *files_in(bundle)])


def write_plan(run_directory: Path) -> None:
    """Write a finished run of suture-verify with the planned rows."""
    for name, row in PLANNED.items():
        write_result_table(run_directory, name, pa.Table.from_pylist([row]))
    run_directory.mkdir()
    names = {"snapshot_id": PLAN["snapshot_id"], "run_id": PLAN["run_id"]}
    names["result_version"] = RESULT_VERSION
    (run_directory / "manifest.json").write_text(json.dumps(names))
    (run_directory / "_SUCCESS").touch()


def files_in(bundle: Path) -> Iterator[str]:
    """Yield the contents of a bundle, if there is one."""
    if bundle.exists():
        with tarfile.open(bundle) as archive:
            for member in archive:
                file = archive.extractfile(member)
                yield file.read().decode() if file else ""


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.words.partition(" --yes")[0])
def test_command_sends_its_options_and_shows_the_answers(
    row: Row, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each option is in a request, and each value of an answer is in the output."""
    with ScriptedCalls() as calls:
        text = printed(calls, row, tmp_path, capsys)
        answers = [calls.answers[call_of(row, answer)][0] for answer in row.answers]

    for message in row.asked:
        name = type(message).__name__.removesuffix("Request")
        if name == "TrustReplica":
            message.trusted_address = calls.address
        assert message in calls.requests[name], text
    for text_shown in row.shows:
        assert text_shown in text
    asked = {type(message).__name__.removesuffix("Request") for message in row.asked}
    for answer in answers if row.as_json else ():
        if call_of(row, answer) not in asked or type(answer).__name__ in row.silent:
            continue
        lost = {name for name, value in leaves(answer) if value not in text}
        assert set() == lost - NOT_SHOWN - row.silent, text
