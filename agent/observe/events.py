"""Every log event, declared once with its meaning and its ids.

Names are in the past tense or name a state; facts are key=value with units. A line also has `level`
and `timestamp`; within a task it has `command_id`, `task` and `container_id`. Each decision has one
event; single chunks have none.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

CONTAINER: Final = "container_id"
VOLUME: Final = "volume_id"
DATANODE: Final = "datanode_id"
COMMAND: Final = "command_id"


@dataclass(frozen=True, slots=True)
class EventSpec:
    """Meaning of an event, and the ids that it always has."""

    meaning: str
    ids: tuple[str, ...] = ()


AGENT: Final[Mapping[str, EventSpec]] = {
    "seen_start_not_kept": EventSpec("No volume took which start of an SCM was seen."),
    "agent_started": EventSpec("Calls are answered from now on.", (DATANODE,)),
    "agent_stopped": EventSpec("The agent has drained; `unfinished` says what it had to leave."),
    "ballast_released": EventSpec(
        "A disk was too full to delete from: the room that is kept for that was given back."
    ),
    "canary_found": EventSpec("A scan found the fault that was planted, in a drill.", (VOLUME,)),
    "canary_not_found": EventSpec("A scan passed over the fault that was planted.", (VOLUME,)),
    "canary_renewed": EventSpec(
        "The store with the fault that a scan has to find was damaged and is rebuilt.",
        (VOLUME,),
    ),
    "change_watch_died": EventSpec("The kernel tells no more of writes; scans go on."),
    "change_watch_limited": EventSpec("Not all directories can be watched; raise the limit."),
    "change_watch_overflowed": EventSpec("Too many writes at once; some were not seen."),
    "commands_refused": EventSpec("So many commands were refused, by reason."),
    "config_not_reloaded": EventSpec("A reload found a wrong config; nothing was changed."),
    "config_reloaded": EventSpec("What a reload changed, and what needs a restart."),
    "deleted_files_removed": EventSpec(
        "Files of deleted replicas, and of arrivals given up, that could not be removed are.",
        (VOLUME,),
    ),
    "deleted_files_stay": EventSpec(
        "Files of deleted replicas take room and cannot be removed; it is tried again every hour.",
        (VOLUME,),
    ),
    "deletes_not_confirmed": EventSpec(
        "The control plane did not say whether it ordered deletes that peers claim.", (CONTAINER,)
    ),
    "drop_callback_died": EventSpec("A defect: the callback for a dropped task failed."),
    "metadata_fault": EventSpec("Descriptor, tree or directories are not well.", (CONTAINER,)),
    "neighbours_asked_for": EventSpec(
        "What lies beside damage is read next, by place on the disk (`how`) or by id.",
        (CONTAINER, VOLUME),
    ),
    "neighbours_not_known": EventSpec(
        "Where files lie could not be asked; those next by id are read.", (CONTAINER, VOLUME)
    ),
    "orphan_block": EventSpec("Too few shards know this block group.", (CONTAINER,)),
    "ozone_command_refused": EventSpec(
        "Ozone's SCM ordered what this agent cannot do, or what cannot be meant.", (COMMAND,)
    ),
    "ozone_command_stale": EventSpec("It was ordered by an SCM that leads no more.", (COMMAND,)),
    "ozone_command_unknown": EventSpec("Ozone's SCM ordered something this agent has no word for."),
    "ozone_container_not_whole": EventSpec(
        "A read of Ozone's container found damage or doubts.", (CONTAINER, VOLUME)
    ),
    "ozone_container_refused": EventSpec(
        "Ozone's container cannot be read, and why.", (CONTAINER, VOLUME)
    ),
    "ozone_metrics_served": EventSpec("Where the scrub of Ozone shows metrics and health."),
    "ozone_pipeline_refused": EventSpec(
        "Ozone's SCM chose this agent for a pipeline of Ratis: see docs/OZONE.md.", (COMMAND,)
    ),
    "ozone_root_not_known": EventSpec(
        "A replica is reported without its root; the next report tries again.", (CONTAINER,)
    ),
    "ozone_scrub_started": EventSpec("A volume of Ozone is read from now on.", (VOLUME,)),
    "ozone_volume_absent": EventSpec(
        "No volume of Ozone that can be read is in a directory; and why."
    ),
    "page_failed": EventSpec("A page of the HTTP listener could not be made."),
    "parity_not_verified": EventSpec("Shards could not be read or compared.", (CONTAINER,)),
    "parity_verified": EventSpec(
        "Shards were computed from each other and compared.", (CONTAINER,)
    ),
    "promise_not_possible": EventSpec("By the arithmetic, scans cannot be in time.", (VOLUME,)),
    "proof_failed": EventSpec(
        "A peer's medium does not hold what it serves, or what its tree says.", (CONTAINER,)
    ),
    "quarantine_purged": EventSpec("Replaced bytes that were old enough are removed."),
    "reconstruction_expired": EventSpec("Its coordinator went away; the shard goes.", (CONTAINER,)),
    "reconstruction_replaced": EventSpec("An unfinished shard made way.", (CONTAINER,)),
    "registered": EventSpec("The control plane knows this datanode."),
    "replica_moved": EventSpec(
        "It left a volume that retires, or where another volume serves the same.",
        (CONTAINER, VOLUME),
    ),
    "replica_not_moved": EventSpec(
        "It stays on a volume that retires, or beside that of another volume, or open on one that "
        "is read-only, and why; it is tried again.",
        (CONTAINER, VOLUME),
    ),
    "repair_proven": EventSpec("What a reconcile changed was read; the rest waits.", (CONTAINER,)),
    "replica_not_proven": EventSpec(
        "It stays: no other datanode proved to have it, and why.", (CONTAINER,)
    ),
    "replica_reconciled": EventSpec("What a reconcile came to, in chunks and bytes.", (CONTAINER,)),
    "replica_scanned": EventSpec(
        "A replica was read whole, and what came of it.", (CONTAINER, VOLUME)
    ),
    "report_exported": EventSpec("All replicas were written to a file for the Spark job."),
    "scan_given_up": EventSpec("A scan that was asked for failed too often.", (CONTAINER,)),
    "scan_not_queued": EventSpec("A scan that was asked for cannot be.", (CONTAINER,)),
    "scan_requested": EventSpec("A scan of a replica was requested.", (CONTAINER,)),
    "scm_not_reached": EventSpec("The first of perhaps many failures to call it."),
    "identity_from_scm": EventSpec(
        "No volume can be read: the agent has the id that the SCM knows at its address."
    ),
    "scm_reached_again": EventSpec("It answers again, after so many failures."),
    "scrub_paused": EventSpec("An operator paused the scans.", (VOLUME,)),
    "scrub_resumed": EventSpec("An operator let them go on.", (VOLUME,)),
    "scrub_skips": EventSpec("An operator has a replica passed over.", (CONTAINER,)),
    "second_witness_is_slow": EventSpec("A library lacks its compiled part."),
    "shadow_hash_differs": EventSpec(
        "After an upgrade the former code judges chunks otherwise: the verdict is held.",
        (CONTAINER,),
    ),
    "shadow_hash_unavailable": EventSpec("Its process does not answer; scans go on without it."),
    "supervisor_unreachable": EventSpec("systemd's socket does not answer."),
    "task_died": EventSpec("A defect: the traceback says where."),
    "task_dropped": EventSpec("A task that waited will not run: late, stale, or we stop."),
    "task_failed": EventSpec("A command was not carried out, with its code."),
    "task_finished": EventSpec("A command was carried out, in `duration_ms`."),
    "task_refused": EventSpec("A command was not taken: twice, late, or no room."),
    "tasks_still_running": EventSpec("The stop does not wait longer."),
    "verification_file_changed": EventSpec(
        "The newest file of the log was removed or changed from outside; another one was begun.",
        (VOLUME,),
    ),
    "verification_not_logged": EventSpec(
        "The verification log did not take an entry; the next one tells how many.", (VOLUME,)
    ),
    "verdicts_held_back": EventSpec(
        "This host is suspect; nothing is called corrupt.", (CONTAINER, VOLUME)
    ),
    "volume_added": EventSpec("An operator added it; it serves.", (VOLUME,)),
    "volume_check_failed": EventSpec("Writing, reading or looking failed.", (VOLUME,)),
    "volume_check_postponed": EventSpec(
        "The host is short of descriptors, memory or threads: the disk is tried again.", (VOLUME,)
    ),
    "volume_check_requested": EventSpec("A read error had the disk checked.", (VOLUME,)),
    "volume_fenced": EventSpec("Nothing is served from this volume any more.", (VOLUME,)),
    "volume_in_doubt": EventSpec("A check failed once.", (VOLUME,)),
    "volume_left_out": EventSpec("It cannot be served; the others are. `error` says what to do."),
    "volume_place_freed": EventSpec(
        "Something else stood where the agent has a file or directory of its own: it was renamed."
    ),
    "volume_recovered": EventSpec("What the last process had left was finished.", (VOLUME,)),
    "volume_retired": EventSpec("It is empty, and may be pulled after a restart.", (VOLUME,)),
    "volume_service_changed": EventSpec("In service, read-only, retiring.", (VOLUME,)),
    "volume_not_slow_any_more": EventSpec("It answers as its siblings do again.", (VOLUME,)),
    "volume_slow": EventSpec(
        "For minutes much slower than its siblings; nothing is done.", (VOLUME,)
    ),
    "waiting_for_scm": EventSpec("A first start needs the control plane to name the cluster."),
    "watchdog_not_fed": EventSpec("Workers do not move; systemd will restart us."),
    "worker_step_failed": EventSpec("A worker's step failed; it is tried again."),
}
SCM: Final[Mapping[str, EventSpec]] = {
    "balance_ended": EventSpec("The run is over, and why."),
    "balance_iteration": EventSpec("So many moves were ordered."),
    "balance_started": EventSpec("An operator began a run."),
    "blocks_given_up": EventSpec(
        "Promised, and not committed until the container was closed: what writers left of them is "
        "deleted.",
        (CONTAINER,),
    ),
    "command_answered_by_another": EventSpec(
        "An answer that is not believed.", (COMMAND, DATANODE)
    ),
    "command_sent_again": EventSpec("It seems to be lost.", (COMMAND, DATANODE)),
    "container_allocated": EventSpec("A new container, and where.", (CONTAINER,)),
    "container_closed_short": EventSpec("Without its last commits.", (CONTAINER,)),
    "container_closing": EventSpec("Nothing more is written to it.", (CONTAINER,)),
    "container_forgotten": EventSpec("A person gave up what nobody has any more.", (CONTAINER,)),
    "container_adopted": EventSpec(
        "After a restore: datanodes have it, the backup does not know it.", (CONTAINER,)
    ),
    "restore_finished": EventSpec("What was stored since the backup is known; decisions begin."),
    "container_recalled": EventSpec("It was forgotten, and is a container again.", (CONTAINER,)),
    "container_state_changed": EventSpec("By what the replicas show.", (CONTAINER,)),
    "delete_ordered": EventSpec("A replica is to be removed.", (CONTAINER, COMMAND, DATANODE)),
    "deletes_told_again": EventSpec(
        "A shard has more blocks than others: its datanode may have missed a delete.", (CONTAINER,)
    ),
    "history_row_damaged": EventSpec(
        "A row of the weeks before, or of anchors, cannot be read; it is left out."
    ),
    "maintenance_over": EventSpec("Its time is over; it is in service.", (DATANODE,)),
    "node_health_changed": EventSpec("By the age of its last heartbeat.", (DATANODE,)),
    "node_may_be_switched_off": EventSpec("Nothing needs it any more.", (DATANODE,)),
    "node_op_state_changed": EventSpec("In service, leaving, resting, gone.", (DATANODE,)),
    "node_state_believed": EventSpec(
        "After a restore: the state that it keeps is newer than the backup's.", (DATANODE,)
    ),
    "node_read_only": EventSpec("Its layout is not ours; nothing is ordered.", (DATANODE,)),
    "node_registered": EventSpec("A datanode called in.", (DATANODE,)),
    "node_removed": EventSpec(
        "An operator removed a dead datanode from the control plane.", (DATANODE,)
    ),
    "plan_applied": EventSpec("What Spark proposed, by what was decided."),
    "reconstruct_ordered": EventSpec("Shards are to be computed.", (CONTAINER, COMMAND)),
    "replicas_struck_off": EventSpec("What a dead decommissioned datanode had leaves the books."),
    "released": EventSpec("A person lets it be managed again.", (CONTAINER, DATANODE)),
    "replica_excluded": EventSpec(
        "Orders to it failed too often: it gets none for an hour, or until a person releases it.",
        (CONTAINER, DATANODE),
    ),
    "replica_left_behind": EventSpec("A writer went on without it.", (CONTAINER, DATANODE)),
    "replicate_ordered": EventSpec("A copy is to be made.", (CONTAINER, COMMAND)),
    "report_page_out_of_order": EventSpec("A report begins again.", (DATANODE,)),
    "registration_refused": EventSpec(
        "A datanode of another cluster calls, or one at the address of another.", (DATANODE,)
    ),
    "report_refused_in_part": EventSpec(
        "What a datanode says breaks a rule; that part is left out, and the rest counts.",
        (DATANODE,),
    ),
    "restore_cut_off_removed": EventSpec("Part of a copy that a killed restore had left."),
    "scm_started": EventSpec("Calls are answered from now on."),
    "scm_stopped": EventSpec("The state is closed."),
    "shard_gives_way": EventSpec("A bad or double shard is removed.", (CONTAINER, DATANODE)),
    "later_state_seen": EventSpec(
        "A datanode has seen a later state: this one goes into safe mode, to be recovered.",
        (DATANODE,),
    ),
    "state_is_older": EventSpec(
        "A container that a later state made: `suture scm recover` brings it back.",
        (CONTAINER, DATANODE),
    ),
    "state_not_written": EventSpec(
        "A change was refused, and why; told once, until `state_written_again`."
    ),
    "state_on_btrfs": EventSpec(
        "The disk of the SCM's state is a btrfs, and if it fills up, the SCM is killed (SIGBUS)."
    ),
    "state_set_aside": EventSpec("What is left of a lost state was kept; a new cluster begins."),
    "state_written_again": EventSpec("None has failed for a minute."),
    "tick_failed": EventSpec("What could not be written is tried again."),
    "unhealthy_replica_gives_way": EventSpec("For a good one.", (CONTAINER, DATANODE)),
    "unknown_container_reported": EventSpec("Recorded, not acted on.", (CONTAINER, DATANODE)),
    "verification_log_changed": EventSpec(
        "A verification log is shorter than it was, or another one.", (DATANODE, VOLUME)
    ),
    "verification_failed": EventSpec("Spark's run failed; the next one is in its time."),
}
BOTH: Final[Mapping[str, EventSpec]] = {
    "audit": EventSpec("One line of the audit log, where it has no file of its own."),
    "audit_not_written": EventSpec("A line of the audit log, which its file did not take."),
    "certificate_not_reloaded": EventSpec("New files do not fit; the old ones are used."),
    "certificate_reloaded": EventSpec("New certificates are used."),
    "connections_max_lowered": EventSpec(
        "The limit of open files is too low for `connections_max`: raise the unit's LimitNOFILE."
    ),
    "connections_ended": EventSpec(
        "A peer had more connections than its share, or few were left: its idle ones were ended."
    ),
    "died": EventSpec("A defect nobody caught: of the process or a thread; with the traceback."),
    "library_message": EventSpec("What a library says, in its own words."),
    "listening_line_write_failed": EventSpec(
        "stdout takes nothing; calls are answered all the same."
    ),
    "log_not_written": EventSpec("So many lines of the log were lost: a full disk, a closed pipe."),
    "rpc_failed": EventSpec("A defect: a call ended with an error that is none of ours."),
    "rpc_thread_failed": EventSpec(
        "A defect: a call ended without an answer, in gRPC's part of it; with the traceback."
    ),
    "rpc_thread_not_started": EventSpec(
        "The host has no thread left; the call waits for one of those that are there."
    ),
}
EVENTS: Final[Mapping[str, EventSpec]] = {**AGENT, **SCM, **BOTH}


def document() -> str:
    """Return docs/EVENTS.md."""
    lines = [
        "# Events",
        "",
        "Generated from `agent/observe/events.py` by `tools/gen_docs.py`.",
        "",
        "Both processes log JSON to stderr, one object a line, where journald picks it up:",
        "`event`, `level`, `timestamp`, and facts. The ids below are always there; what happens",
        "within a command also has `command_id`, `task` and `container_id`. An event that comes",
        "more than 100 times in 10 s is cut, and the next one says how many were dropped",
        "(`dropped_before_count`).",
    ]
    for title, events in (("Agent", AGENT), ("Control plane", SCM), ("Both", BOTH)):
        lines += ["", f"## {title}", "", "| event | ids | meaning |", "|---|---|---|"]
        lines += _rows(events)
    return "\n".join(lines) + "\n"


def _rows(events: Mapping[str, EventSpec]) -> Iterable[str]:
    for name, event in sorted(events.items()):
        ids = ", ".join(f"`{name}`" for name in event.ids) or "-"
        yield f"| `{name}` | {ids} | {event.meaning} |"
