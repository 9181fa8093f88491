"""Prints the result of `suture status`: a headline and tables."""

import time
from collections.abc import Sequence
from typing import Final

from suture.config.quantity import format_duration
from suture.pages.status_headline import DataStatus, Headline, Told, percent, rebuild_remark
from suture.terminal.output import ago, print_line, print_rows, short, size
from suture.wire.v1 import datanode_pb2, scm_pb2

CLOCK_OFFSET_MS_MAX: Final = 5_000  # as in the alert SutureClockWrong


def show_cluster(
    counts: scm_pb2.CountContainersResponse,
    nodes: Sequence[scm_pb2.NodeInfo],
    answers: Sequence[Told | str],
    line: str,
) -> None:
    """Print the headline `line`, a line about the containers, and the table of datanodes.

    Also print the settings that are in effect.
    """
    print_line(line)
    print_line(containers_line(counts))
    if line_of_scm := scm_clock_line(answers):
        print_line(line_of_scm)
    for setting in counts.settings:
        print_line(setting)
    print_nodes(nodes, answers)


def show_nagios_line(
    counts: scm_pb2.CountContainersResponse, known: DataStatus, line: Headline
) -> None:
    """Print the headline and some numbers in the format of a Nagios plugin: `TEXT | NAME=VALUE`."""
    numbers = {
        "containers": counts.all,
        "containers_faulty": counts.faulty,
        "containers_unknown": counts.unknown,
        "containers_lost": counts.lost + counts.missing_blocks,
        "datanodes": known.asked_count,
        "datanodes_silent": len(known.silent),
        "volumes_failed": known.failed_volume_count,
        "findings": known.finding_count,
        "data": f"{known.data_bytes}B",
        "data_in_time": f"{known.in_time_bytes}B",
    }
    figures = " ".join(f"{name}={value}" for name, value in numbers.items())
    print_line(f"SUTURE {line.verdict}: {line.text.replace('|', '/')} | {figures}")


def containers_line(counts: scm_pb2.CountContainersResponse) -> str:
    """Return a line with the numbers of healthy, damaged and open containers."""
    closed = counts.all - counts.open
    if not counts.all:
        return "no containers yet"
    words = {
        "without a whole replica": counts.lost,
        "without blocks that keys need": counts.missing_blocks,
        "whose replicas contradict each other": counts.contradict,
        "with damaged replicas": counts.unhealthy,
        "whose replicas differ": counts.differ,
        "with too few replicas": counts.few_replicas,
        "not compared yet": counts.unknown,
    }
    wrong = ", ".join(f"{count} {text}" for text, count in words.items() if count)
    text = f"{counts.whole} of {closed} closed containers are equal and whole on all replicas"
    return text + (f"; {wrong}" if wrong else "") + f"; {counts.open} open"


def scm_clock_line(answers: Sequence[Told | str]) -> str:
    """Return a line that says that the clock of the SCM is wrong, or "".

    The clock of the SCM is wrong if the clocks of most datanodes, and of at least two, differ from
    it in the same direction.
    """
    told = [answer for answer in answers if not isinstance(answer, str)]
    offsets_ms = [status.clock_offset_ms for status, _ in told]
    for sign, word in ((1, "behind"), (-1, "ahead of")):
        wrong_ms = [sign * one for one in offsets_ms if sign * one > CLOCK_OFFSET_MS_MAX]
        if len(wrong_ms) > max(1, len(told) // 2):
            amount = format_duration(min(wrong_ms) / 1000)
            clocks = f"the clocks of {len(wrong_ms)} of {len(told)} datanodes"
            return f"the SCM's clock is {amount} or more {word} {clocks}"
    return ""


def clock_remark(offset_ms: int) -> str:
    """Return a remark about the clock of a datanode that differs from the clock of the SCM.

    Return "" if the difference is small.
    """
    if abs(offset_ms) <= CLOCK_OFFSET_MS_MAX:
        return ""
    word = "ahead of" if offset_ms > 0 else "behind"
    return f"its clock is {format_duration(abs(offset_ms) / 1000)} {word} the SCM's"


def print_nodes(nodes: Sequence[scm_pb2.NodeInfo], answers: Sequence[Told | str]) -> None:
    """Print the table of all datanodes."""
    columns = ["datanode", "address", "health", "containers#", "used#", "free#", "oldest scan"]
    columns += ["verified#", "time left#"]
    columns += ["findings#", "tasks#", "remark"]
    rows = [node_row(node, answer) for node, answer in zip(nodes, answers, strict=True)]
    print_rows(columns, rows)


def node_row(node: scm_pb2.NodeInfo, told_by: Told | str) -> tuple[object, ...]:
    """Return the table row about one datanode. `told_by` is its status, or an error text."""
    if isinstance(told_by, str):
        return (short(node.datanode_id), node.address, node.health, *["-"] * 8, told_by)
    answer, scrub = told_by
    failed = [f"{v.path}: {v.error or 'failed'}" for v in answer.volumes if v.failed]
    errors = [f"{w.name} is stalled" for w in answer.workers if w.stalled]
    errors += [f"{w.name}: {w.last_error}" for w in answer.workers if w.last_error]
    blind = [
        f"{v.path}: the planted fault was not found" for v in scrub.volumes if v.canary_overdue
    ]
    errors += [f"{v.path} is slow: {v.slow}" for v in answer.volumes if v.slow]
    errors += [f"{v.path}: {rebuild_remark(v)}" for v in answer.volumes if v.rebuild_count]
    errors += filter(None, [clock_remark(answer.clock_offset_ms)])
    if scrub.challenges.failed_count:
        errors.append(f"{scrub.challenges.failed_count} proofs of its peers were refuted")
    if scrub.shadow_hashing.differing_count:
        errors.append(f"{scrub.shadow_hashing.differing_count} scans held: hashes differ")
    return (
        short(node.datanode_id),
        node.address,
        node.health,
        sum(answer.containers_by_state.values()),
        size(sum(v.used_bytes for v in answer.volumes)),
        size(sum(v.available_bytes for v in answer.volumes)),
        oldest_scan(answer),
        verified_share(answer),
        pass_left(scrub),
        answer.finding_count,
        answer.task_count,
        "; ".join(failed + errors + blind),
    )


def verified_share(answer: datanode_pb2.StatusResponse) -> str:
    """Return the percentage of a datanode's bytes that were verified within the scan interval, as
    text."""
    data_bytes = sum(volume.data_bytes for volume in answer.volumes)
    in_time_bytes = sum(volume.in_time_bytes for volume in answer.volumes)
    return percent(in_time_bytes, data_bytes) if data_bytes else "-"


def pass_left(scrub: datanode_pb2.ScrubStatusResponse) -> str:
    """Return the time until all scans of a datanode that are due now are complete, as text."""
    scans = [volume for volume in scrub.volumes if volume.state != "off"]
    if not scans:
        return "-"
    if any(volume.eta_ms < 0 for volume in scans):
        return "?"
    return format_duration(max(volume.eta_ms for volume in scans) / 1000)


def oldest_scan(answer: datanode_pb2.StatusResponse) -> str:
    """Return the age of the oldest scan of a datanode's volumes, as text."""
    with_data = [volume for volume in answer.volumes if volume.container_count]
    if not with_data:
        return "-"
    return ago(min(volume.oldest_scan_at_ms for volume in with_data))


def challenges_line(asked: datanode_pb2.Challenges, now_s: float) -> str:
    """Return a line about the challenges of a datanode to its peers.

    A challenge is a request to prove that the peer has a randomly chosen chunk.
    """
    count = asked.proven_count + asked.failed_count + asked.unanswered_count + asked.own_count
    if not asked.interval_ms:
        return "challenges: off"
    if not count:
        return "challenges: none yet"
    text = f"challenges: {count} chunks asked of peers, {asked.proven_count} proven, "
    text += f"{asked.failed_count} refuted, {asked.unanswered_count} unanswered"
    text += f", {asked.own_count} wrong here" if asked.own_count else ""
    return f"{text}; last {format_duration(max(0.0, now_s - asked.asked_at_ms / 1000))} ago"


def shadow_line(shadow: datanode_pb2.ShadowHashing) -> str:
    """Return a line about shadow hashing, which computes checksums also by a second
    implementation."""
    state = "running" if shadow.running else "not running"
    counts = f"{shadow.compared_count} chunks compared, {shadow.differing_count} scans differing"
    return f"shadow hashing: {state}, {counts}"


def show_datanode(told: Told, line: str) -> None:
    """Print the status of one datanode: volumes, workers, challenges, shadow hashing."""
    answer, scrub = told
    print_line(line)
    print_line(f"datanode {answer.datanode_id}, version {answer.version}, SCM: {answer.scm_state}")
    print_line(challenges_line(scrub.challenges, time.time()))
    print_line(shadow_line(scrub.shadow_hashing))
    volumes = [
        (
            volume.path,
            volume.container_count,
            size(volume.used_bytes),
            size(volume.available_bytes),
            volume.error
            or ("failed" if volume.failed else rebuild_remark(volume) or volume.slow or "good"),
        )
        for volume in answer.volumes
    ]
    print_rows(["path", "containers#", "used#", "free#", "state"], volumes, title="volumes")
    workers = [
        (
            w.name,
            f"{w.state}, stalled" if w.stalled else w.state,
            w.steps,
            w.error_count,
            w.last_error,
        )
        for w in answer.workers
    ]
    print_rows(["worker", "state", "steps#", "errors#", "last error"], workers, title="workers")
