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
class Event:
    """Meaning of an event, and the ids that it always has."""

    meaning: str
    ids: tuple[str, ...] = ()


AGENT: Final[Mapping[str, Event]] = {
    "seen_start_not_kept": Event("No volume took which start of an SCM was seen."),
    "agent_started": Event("Calls are answered from now on.", (DATANODE,)),
    "agent_stopped": Event("The agent has drained; `unfinished` says what it had to leave."),
    "ballast_released": Event(
        "A disk was too full to delete from: the room that is kept for that was given back."
    ),
    "canary_found": Event("A scan found the fault that was planted, in a drill.", (VOLUME,)),
    "canary_not_found": Event("A scan passed over the fault that was planted.", (VOLUME,)),
    "canary_renewed": Event(
        "The store of the fault that a scan has to find was damaged, and is made anew.", (VOLUME,)
    ),
    "change_watch_died": Event("The kernel tells no more of writes; scans go on."),
    "change_watch_limited": Event("Not all directories can be watched; raise the limit."),
    "change_watch_overflowed": Event("Too many writes at once; some were not seen."),
    "commands_refused": Event("So many commands were refused, by reason."),
    "config_not_reloaded": Event("A reload found a wrong config; nothing was changed."),
    "config_reloaded": Event("What a reload changed, and what needs a restart."),
    "deleted_files_removed": Event(
        "Files of deleted replicas, and of arrivals given up, that could not be removed are.",
        (VOLUME,),
    ),
    "deleted_files_stay": Event(
        "Files of deleted replicas take room and cannot be removed; it is tried again every hour.",
        (VOLUME,),
    ),
    "deletes_not_confirmed": Event(
        "The control plane did not say whether it ordered deletes that peers claim.", (CONTAINER,)
    ),
    "drop_callback_died": Event("A defect: who was to hear of a dropped task failed."),
    "metadata_fault": Event("Descriptor, tree or directories are not well.", (CONTAINER,)),
    "neighbours_asked_for": Event(
        "What lies beside damage is read next, by place on the disk (`how`) or by id.",
        (CONTAINER, VOLUME),
    ),
    "neighbours_not_known": Event(
        "Where files lie could not be asked; those next by id are read.", (CONTAINER, VOLUME)
    ),
    "orphan_block": Event("Too few shards know this block group.", (CONTAINER,)),
    "ozone_command_refused": Event(
        "Ozone's SCM ordered what this agent cannot do, or what cannot be meant.", (COMMAND,)
    ),
    "ozone_command_stale": Event("It was ordered by an SCM that leads no more.", (COMMAND,)),
    "ozone_command_unknown": Event("Ozone's SCM ordered something this agent has no word for."),
    "ozone_container_not_whole": Event(
        "A read of Ozone's container found damage or doubts.", (CONTAINER, VOLUME)
    ),
    "ozone_container_refused": Event(
        "Ozone's container cannot be read, and why.", (CONTAINER, VOLUME)
    ),
    "ozone_metrics_served": Event("Where the scrub of Ozone shows metrics and health."),
    "ozone_pipeline_refused": Event(
        "Ozone's SCM chose this agent for a pipeline of Ratis: see docs/OZONE.md.", (COMMAND,)
    ),
    "ozone_root_not_known": Event(
        "A replica is reported without its root; the next report tries again.", (CONTAINER,)
    ),
    "ozone_scrub_started": Event("A volume of Ozone is read from now on.", (VOLUME,)),
    "ozone_volume_absent": Event("No volume of Ozone that can be read is in a directory; and why."),
    "page_failed": Event("A page of the HTTP listener could not be made."),
    "parity_not_verified": Event("Shards could not be read or compared.", (CONTAINER,)),
    "parity_verified": Event("Shards were computed from each other and compared.", (CONTAINER,)),
    "promise_not_possible": Event("By the arithmetic, scans cannot be in time.", (VOLUME,)),
    "proof_failed": Event(
        "A peer's medium does not hold what it serves, or what its tree says.", (CONTAINER,)
    ),
    "quarantine_purged": Event("Replaced bytes that were old enough are removed."),
    "reconstruction_expired": Event("Its coordinator went away; the shard goes.", (CONTAINER,)),
    "reconstruction_replaced": Event("An unfinished shard made way.", (CONTAINER,)),
    "registered": Event("The control plane knows this datanode."),
    "replica_moved": Event(
        "It left a volume that retires, or where another volume serves the same.",
        (CONTAINER, VOLUME),
    ),
    "replica_not_moved": Event(
        "It stays on a volume that retires, or beside that of another volume, or open on one that "
        "is read-only, and why; it is tried again.",
        (CONTAINER, VOLUME),
    ),
    "repair_proven": Event("What a reconcile changed was read; the rest waits.", (CONTAINER,)),
    "replica_not_proven": Event(
        "It stays: no other datanode proved to have it, and why.", (CONTAINER,)
    ),
    "replica_reconciled": Event("What a reconcile came to, in chunks and bytes.", (CONTAINER,)),
    "replica_scanned": Event("A replica was read whole, and what came of it.", (CONTAINER, VOLUME)),
    "report_exported": Event("All replicas were written to a file for the Spark job."),
    "scan_given_up": Event("A scan that was asked for failed too often.", (CONTAINER,)),
    "scan_not_queued": Event("A scan that was asked for cannot be.", (CONTAINER,)),
    "scan_requested": Event("Somebody or something wants a replica read.", (CONTAINER,)),
    "scm_not_reached": Event("The first of perhaps many failures to call it."),
    "identity_from_scm": Event(
        "No volume can be read: the agent has the id that the SCM knows at its address."
    ),
    "scm_reached_again": Event("It answers again, after so many failures."),
    "scrub_paused": Event("An operator paused the scans.", (VOLUME,)),
    "scrub_resumed": Event("An operator let them go on.", (VOLUME,)),
    "scrub_skips": Event("An operator has a replica passed over.", (CONTAINER,)),
    "second_witness_is_slow": Event("A library lacks its compiled part."),
    "shadow_hash_differs": Event(
        "After an upgrade the former code judges chunks otherwise: the verdict is held.",
        (CONTAINER,),
    ),
    "shadow_hash_unavailable": Event("Its process does not answer; scans go on without it."),
    "supervisor_unreachable": Event("systemd's socket does not answer."),
    "task_died": Event("A defect: the traceback says where."),
    "task_dropped": Event("A task that waited will not run: late, stale, or we stop."),
    "task_failed": Event("A command was not carried out, with its code."),
    "task_finished": Event("A command was carried out, in `duration_ms`."),
    "task_refused": Event("A command was not taken: twice, late, or no room."),
    "tasks_still_running": Event("The stop does not wait longer."),
    "verification_file_changed": Event(
        "Somebody removed or changed the newest file of the log; another follows.",
        (VOLUME,),
    ),
    "verification_not_logged": Event(
        "The verification log did not take an entry; the next one tells how many.", (VOLUME,)
    ),
    "verdicts_held_back": Event(
        "This host is suspect; nothing is called corrupt.", (CONTAINER, VOLUME)
    ),
    "volume_added": Event("An operator added it; it serves.", (VOLUME,)),
    "volume_check_failed": Event("Writing, reading or looking failed.", (VOLUME,)),
    "volume_check_postponed": Event(
        "The host is short of descriptors, memory or threads: the disk is tried again.", (VOLUME,)
    ),
    "volume_check_requested": Event("A read error had the disk checked.", (VOLUME,)),
    "volume_fenced": Event("Nothing is served from this volume any more.", (VOLUME,)),
    "volume_in_doubt": Event("A check failed once.", (VOLUME,)),
    "volume_left_out": Event("It cannot be served; the others are. `error` says what to do."),
    "volume_place_freed": Event(
        "Something else stood where the agent has a file or directory of its own: it was renamed."
    ),
    "volume_recovered": Event("What the last process had left was finished.", (VOLUME,)),
    "volume_retired": Event("It is empty, and may be pulled after a restart.", (VOLUME,)),
    "volume_service_changed": Event("In service, read-only, retiring.", (VOLUME,)),
    "volume_not_slow_any_more": Event("It answers as its siblings do again.", (VOLUME,)),
    "volume_slow": Event("For minutes much slower than its siblings; nothing is done.", (VOLUME,)),
    "waiting_for_scm": Event("A first start needs the control plane to name the cluster."),
    "watchdog_not_fed": Event("Workers do not move; systemd will restart us."),
    "worker_step_failed": Event("A worker's step failed; it is tried again."),
}
SCM: Final[Mapping[str, Event]] = {
    "balance_ended": Event("The run is over, and why."),
    "balance_iteration": Event("So many moves were ordered."),
    "balance_started": Event("An operator began a run."),
    "blocks_given_up": Event(
        "Promised, and not committed until the container was closed: what writers left of them is "
        "deleted.",
        (CONTAINER,),
    ),
    "command_answered_by_another": Event("An answer that is not believed.", (COMMAND, DATANODE)),
    "command_sent_again": Event("It seems to be lost.", (COMMAND, DATANODE)),
    "container_allocated": Event("A new container, and where.", (CONTAINER,)),
    "container_closed_short": Event("Without its last commits.", (CONTAINER,)),
    "container_closing": Event("Nothing more is written to it.", (CONTAINER,)),
    "container_forgotten": Event("A person gave up what nobody has any more.", (CONTAINER,)),
    "container_adopted": Event(
        "After a restore: datanodes have it, the backup does not know it.", (CONTAINER,)
    ),
    "restore_finished": Event("What was stored since the backup is known; decisions begin."),
    "container_recalled": Event("It was forgotten, and is a container again.", (CONTAINER,)),
    "container_state_changed": Event("By what the replicas show.", (CONTAINER,)),
    "delete_ordered": Event("A replica is to be removed.", (CONTAINER, COMMAND, DATANODE)),
    "deletes_told_again": Event(
        "A shard has more blocks than others: its datanode may have missed a delete.", (CONTAINER,)
    ),
    "history_row_damaged": Event(
        "A row of the weeks before, or of anchors, cannot be read; it is left out."
    ),
    "maintenance_over": Event("Its time is over; it is in service.", (DATANODE,)),
    "node_health_changed": Event("By the age of its last heartbeat.", (DATANODE,)),
    "node_may_be_switched_off": Event("Nothing needs it any more.", (DATANODE,)),
    "node_op_state_changed": Event("In service, leaving, resting, gone.", (DATANODE,)),
    "node_state_believed": Event(
        "After a restore: the state that it keeps is newer than the backup's.", (DATANODE,)
    ),
    "node_read_only": Event("Its layout is not ours; nothing is ordered.", (DATANODE,)),
    "node_registered": Event("A datanode called in.", (DATANODE,)),
    "node_removed": Event("A person struck a dead datanode off the books.", (DATANODE,)),
    "plan_applied": Event("What Spark proposed, by what was decided."),
    "reconstruct_ordered": Event("Shards are to be computed.", (CONTAINER, COMMAND)),
    "replicas_struck_off": Event("What a dead decommissioned datanode had leaves the books."),
    "released": Event("A person lets it be managed again.", (CONTAINER, DATANODE)),
    "replica_excluded": Event(
        "Orders to it failed too often: it gets none for an hour, or until a person releases it.",
        (CONTAINER, DATANODE),
    ),
    "replica_left_behind": Event("A writer went on without it.", (CONTAINER, DATANODE)),
    "replicate_ordered": Event("A copy is to be made.", (CONTAINER, COMMAND)),
    "report_page_out_of_order": Event("A report begins again.", (DATANODE,)),
    "registration_refused": Event(
        "A datanode of another cluster calls, or one at the address of another.", (DATANODE,)
    ),
    "report_refused_in_part": Event(
        "What a datanode says breaks a rule; that part is left out, and the rest counts.",
        (DATANODE,),
    ),
    "restore_cut_off_removed": Event("Part of a copy that a killed restore had left."),
    "scm_started": Event("Calls are answered from now on."),
    "scm_stopped": Event("The state is closed."),
    "shard_gives_way": Event("A bad or double shard is removed.", (CONTAINER, DATANODE)),
    "later_state_seen": Event(
        "A datanode has seen a later state: this one goes into safe mode, to be recovered.",
        (DATANODE,),
    ),
    "state_is_older": Event(
        "A container that a later state made: `suture scm recover` brings it back.",
        (CONTAINER, DATANODE),
    ),
    "state_not_written": Event(
        "A change was refused, and why; told once, until `state_written_again`."
    ),
    "state_set_aside": Event("What is left of a lost state was kept; a new cluster begins."),
    "state_written_again": Event("None has failed for a minute."),
    "tick_failed": Event("What could not be written is tried again."),
    "unhealthy_replica_gives_way": Event("For a good one.", (CONTAINER, DATANODE)),
    "unknown_container_reported": Event("Recorded, not acted on.", (CONTAINER, DATANODE)),
    "verification_log_changed": Event(
        "A verification log is shorter than it was, or another one.", (DATANODE, VOLUME)
    ),
    "verification_failed": Event("Spark's run failed; the next one is in its time."),
}
BOTH: Final[Mapping[str, Event]] = {
    "audit": Event("One line of the audit log, where it has no file of its own."),
    "audit_not_written": Event("A line of the audit log, which its file did not take."),
    "certificate_not_reloaded": Event("New files do not fit; the old ones are used."),
    "certificate_reloaded": Event("New certificates are used."),
    "connections_max_lowered": Event(
        "The limit of open files is too low for `connections_max`: raise the unit's LimitNOFILE."
    ),
    "connections_ended": Event(
        "A peer had more connections than its share, or few were left: its idle ones were ended."
    ),
    "died": Event("A defect nobody caught: of the process or a thread; with the traceback."),
    "library_message": Event("What a library says, in its own words."),
    "listening_line_write_failed": Event("stdout takes nothing; calls are answered all the same."),
    "log_not_written": Event("So many lines of the log were lost: a full disk, a closed pipe."),
    "rpc_failed": Event("A defect: a call ended with an error that is none of ours."),
    "rpc_thread_failed": Event(
        "A defect: a call ended without an answer, in gRPC's part of it; with the traceback."
    ),
    "rpc_thread_not_started": Event(
        "The host has no thread left; the call waits for one of those that are there."
    ),
}
EVENTS: Final[Mapping[str, Event]] = {**AGENT, **SCM, **BOTH}


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


def _rows(events: Mapping[str, Event]) -> Iterable[str]:
    for name, event in sorted(events.items()):
        ids = ", ".join(f"`{name}`" for name in event.ids) or "-"
        yield f"| `{name}` | {ids} | {event.meaning} |"
