"""Command `ok-to-stop`: shows the effect of stopping datanodes or volumes before they are
stopped."""

from collections.abc import Sequence
from typing import Annotated, Final

from suture.config.quantity import format_duration
from suture.runtime.exit_codes import ExitCode
from suture.terminal.common_options import is_json
from suture.terminal.credentials import connect
from suture.terminal.document import facts
from suture.terminal.output import pluralize, print_json, print_line, size
from suture.terminal.selection import resolve_targets
from suture.terminal.typer_options import argument, flag, option
from suture.wire.v1 import scm_pb2

EXITS: Final = {"YES": ExitCode.OK, "NO": ExitCode.TO_DO, "UNKNOWN": ExitCode.UNAVAILABLE}
WORDS: Final = {
    "YES": "yes: all that can be read now could still be read",
    "NO": "no: {}",
    "UNKNOWN": "nobody can tell: {}",
}
IDS_SHOWN_MAX: Final = 20  # container ids shown; --json has up to 1,000

Named = Annotated[
    list[str], argument("NAME", "Datanodes, /racks, or volumes (id or DATANODE:/path).")
]
KeepOption = Annotated[
    int, option("N", "Copies of each container that must stay readable.", "--keep", min=1, max=32)
]


def ok_to_stop(
    names: Named,
    keep: KeepOption = 1,
    for_good: Annotated[
        bool, flag("Assume that these datanodes or volumes never return.", "--for-good")
    ] = False,
) -> int:
    """Check whether datanodes or volumes are safe to stop.

    All named objects are considered together.

    Exit codes:
        0: yes, they can be stopped
        2: no: data would be unreadable; with --for-good, data would be lost, or there is no
            room for new copies
        3: unknown: safe mode, unreachable datanodes, missing reports, or doubtful replicas

    Example:
        suture ok-to-stop dn1.example.org:9861
    """
    answer = check_stop(names, for_good=for_good, keep_count=0 if for_good else keep)
    if is_json():
        print_json(facts(answer))
    else:
        if for_good:
            show_lost(answer)
        else:
            print_line(WORDS[answer.answer].format("; ".join(answer.reasons)))
        show_reading(answer)
        show_missing_replicas(answer)
        if not for_good:
            show_writing(answer)
    if for_good and (answer.lost_count or not answer.has_room):
        return ExitCode.TO_DO
    return ExitCode.OK if for_good and answer.answer == "NO" else EXITS[answer.answer]


def check_stop(
    names: list[str], *, for_good: bool = False, keep_count: int = 0
) -> scm_pb2.CheckStopResponse:
    """Ask the SCM for the effect of stopping datanodes or volumes. Raise RefusedError if a name is
    unknown."""
    with connect() as client:
        ids, volumes = resolve_targets(client, names)
        return client.scm.check_stop(
            scm_pb2.CheckStopRequest(
                datanode_ids=ids,
                volumes=[
                    scm_pb2.CheckStopRequest.Volume(datanode_id=node, volume_id=volume)
                    for node, volume in volumes
                ],
                for_good=for_good,
                keep_count=keep_count,
            )
        )


def show_lost(answer: scm_pb2.CheckStopResponse) -> None:
    """Print the containers that would be lost, because no other datanode has their data."""
    if answer.lost_count:
        states = ", ".join(
            f"{state or 'known from replicas only'}: {count}"
            for state, count in sorted(answer.lost_states.items())
        )
        print_line(f"lost: {pluralize(answer.lost_count, 'container')} ({states})")
        show_ids(answer.lost_container_ids, answer.lost_count)
    else:
        print_line("nothing would be lost")
    for reason in answer.reasons:
        print_line(f"{reason}")
    healths = ", ".join(f"{word}: {count}" for word, count in sorted(answer.healths.items()))
    print_line(f"health of the containers there, afterwards: {healths or 'all HEALTHY'}")


def show_reading(answer: scm_pb2.CheckStopResponse) -> None:
    """Print how many containers would become unreadable if the named datanodes or volumes were
    stopped."""
    print_line(f"containers with a replica there: {answer.container_count}")
    print_line(f"could not be read any more: {answer.unreadable_count}")
    show_ids(answer.unreadable_container_ids, answer.unreadable_count)
    if answer.doubtful_count:
        print_line(f"nobody can tell whether they could be read: {answer.doubtful_count}")
        show_ids(answer.doubtful_container_ids, answer.doubtful_count)
    if answer.already_unreadable_count:
        print_line(f"cannot be read as it is: {answer.already_unreadable_count}")
    print_line(f"at their last copy: {answer.last_copy_count}")


def show_missing_replicas(answer: scm_pb2.CheckStopResponse) -> None:
    """Print the copies that the SCM would make, and how long this would take."""
    if not answer.missing_replica_count:
        print_line("no container would lack a replica")
        return
    parts = ", ".join(
        f"{pluralize(count, 'container')} by {short}"
        for short, count in sorted(answer.missing_replicas.items())
    )
    print_line(f"under-replicated: {parts}")
    until = (
        f"{format_duration(answer.wait_ms / 1000)} until that begins, " if answer.wait_ms else ""
    )
    print_line(
        f"to make again: {size(answer.rebuild_bytes)}; {until}then about "
        f"{format_duration(answer.rebuild_ms / 1000)} at the rate of the latest copies"
    )
    print_line(
        f"{pluralize(answer.datanodes_left, 'datanode')} would take new replicas, with "
        f"{size(answer.free_bytes)} free: "
        + ("enough" if answer.has_room else "not enough to have all replicas again")
    )


def show_writing(answer: scm_pb2.CheckStopResponse) -> None:
    """Print how many containers on the named datanodes or volumes are open, and how many clients
    write.

    The clients would continue in other containers.
    """
    if answer.open_count:
        print_line(
            f"{pluralize(answer.open_count, 'container')} being written there, by "
            f"{pluralize(answer.writer_count, 'client')}: they go on elsewhere"
        )


def show_ids(ids: Sequence[int], count: int) -> None:
    """Print the first container ids, and the number of containers that are not printed.

    `count` is the number of all containers.
    """
    known = ids[:IDS_SHOWN_MAX]
    if known:
        more = f" and {count - len(known)} more" if count > len(known) else ""
        print_line(f"  containers {', '.join(map(str, known))}{more}")
