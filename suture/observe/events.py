"""All log events, each with its meaning and the ids that it has.

The name of an event is in the past tense or names a state. The facts of an event are key=value
pairs with units in the key. A line also has `level` and `timestamp`, and in a task `command_id`,
`task` and `container_id`. Each decision has one event. There are no events for single chunks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

CONTAINER: Final = "container_id"
VOLUME: Final = "volume_id"
DATANODE: Final = "datanode_id"
COMMAND: Final = "command_id"


@dataclass(frozen=True, slots=True)
class EventSpec:
    """The meaning of a log event, and the ids that it always has."""

    meaning: str
    ids: tuple[str, ...] = ()


AGENT: Final[Mapping[str, EventSpec]] = {
    "adjacency_unknown": EventSpec(
        "The disk positions of files are unknown; replicas with adjacent ids are scanned next.",
        (CONTAINER, VOLUME),
    ),
    "adjacent_scans_requested": EventSpec(
        "Replicas adjacent to damage, by disk position or by id (`how`), are scanned next.",
        (CONTAINER, VOLUME),
    ),
    "agent_registered": EventSpec("The SCM registered this datanode."),
    "agent_started": EventSpec("The agent accepts calls.", (DATANODE,)),
    "agent_stopped": EventSpec(
        "The agent drained and stopped; `unfinished` lists the work that it abandoned."
    ),
    "ballast_released": EventSpec(
        "A volume was full; its reserved space was freed so that deletes can be recorded."
    ),
    "canary_found": EventSpec("A scan found the planted fault.", (VOLUME,)),
    "canary_not_found": EventSpec("A scan did not find the planted fault.", (VOLUME,)),
    "canary_recreated": EventSpec(
        "The canary directory with the planted fault was damaged and is created again.", (VOLUME,)
    ),
    "change_watch_limited": EventSpec(
        "The inotify limit is too low to watch every directory; raise it."
    ),
    "change_watch_overflowed": EventSpec(
        "The kernel dropped write notifications; some writes were not seen."
    ),
    "change_watch_stopped": EventSpec(
        "The kernel's write notifications ended; scans continue without them."
    ),
    "commands_rejected": EventSpec("Commands were rejected; counts by reason."),
    "config_reload_failed": EventSpec(
        "A reload found an invalid configuration; the running one is kept."
    ),
    "config_reloaded": EventSpec(
        "The configuration was reloaded; lists the changes and the options that need a restart."
    ),
    "delete_confirmation_failed": EventSpec(
        "The SCM did not confirm whether it ordered the deletes that peers report.", (CONTAINER,)
    ),
    "deleted_files_removal_failed": EventSpec(
        "Files of deleted replicas cannot be removed and still use space; retried every hour.",
        (VOLUME,),
    ),
    "deleted_files_removed": EventSpec(
        "Files of deleted replicas or failed imports were removed after an earlier failure.",
        (VOLUME,),
    ),
    "drop_callback_failed": EventSpec("Bug: the callback for a dropped task raised an exception."),
    "http_page_failed": EventSpec("The HTTP listener could not render a page."),
    "identity_adopted_from_scm": EventSpec(
        "No volume is readable; the agent adopted the datanode id that the SCM has for it."
    ),
    "index_rebuild_progressed": EventSpec(
        "The lost index of a volume is being rebuilt: `count` of `total` replicas are loaded.",
        (VOLUME,),
    ),
    "index_rebuilt": EventSpec("The lost index of a volume is rebuilt.", (VOLUME,)),
    "metadata_fault_found": EventSpec(
        "A replica's descriptor, tree or directories are damaged.", (CONTAINER,)
    ),
    "orphan_block_group_found": EventSpec(
        "Too few shards have this block group to reconstruct it.", (CONTAINER,)
    ),
    "ozone_command_rejected": EventSpec(
        "Ozone's SCM sent a command that is invalid or that this agent does not support.",
        (COMMAND,),
    ),
    "ozone_command_stale": EventSpec(
        "The command came from an SCM that is no longer the leader; it was rejected.", (COMMAND,)
    ),
    "ozone_command_unknown": EventSpec("Ozone's SCM sent a command of an unknown type."),
    "ozone_container_fault_found": EventSpec(
        "A scrub found damage in an Ozone container, or could not verify all of it.",
        (CONTAINER, VOLUME),
    ),
    "ozone_container_unreadable": EventSpec(
        "An Ozone container cannot be read; gives the reason.", (CONTAINER, VOLUME)
    ),
    "ozone_certificate_renewal_failed": EventSpec(
        "The SCM's CA did not renew the certificate of this datanode; gives the reason. The agent "
        "tries again every ten minutes."
    ),
    "ozone_certificate_renewed": EventSpec(
        "The SCM's CA signed a certificate for this datanode; gives its lifetime."
    ),
    "ozone_import_refused": EventSpec(
        "A container that a datanode of Ozone pushed is not taken; gives the reason, once per "
        "container and code.",
        (CONTAINER,),
    ),
    "ozone_metrics_served": EventSpec("The Ozone scrub serves metrics and health at this address."),
    "ozone_pipeline_rejected": EventSpec(
        "Ozone's SCM chose this agent for a Ratis pipeline, which it does not support; see "
        "docs/OZONE.md.",
        (COMMAND,),
    ),
    "ozone_root_unavailable": EventSpec(
        "A replica is reported without its tree root; the next report tries again.", (CONTAINER,)
    ),
    "ozone_scrub_started": EventSpec("The scrub of an Ozone volume started.", (VOLUME,)),
    "ozone_volume_missing": EventSpec(
        "A directory contains no readable Ozone volume; gives the reason."
    ),
    "parity_verification_failed": EventSpec("Shards could not be read or compared.", (CONTAINER,)),
    "parity_verified": EventSpec(
        "Shards were recomputed from each other and compared.", (CONTAINER,)
    ),
    "proof_failed": EventSpec(
        "A peer's disk does not have the bytes that the peer serves or that its tree records.",
        (CONTAINER,),
    ),
    "quarantine_purged": EventSpec(
        "Quarantined bytes that reached their maximum age were deleted."
    ),
    "reconstruction_expired": EventSpec(
        "The coordinator of a reconstruction stopped; its unfinished shard was discarded.",
        (CONTAINER,),
    ),
    "reconstruction_replaced": EventSpec(
        "An unfinished shard was deleted because the shard is reconstructed again.", (CONTAINER,)
    ),
    "repair_verified": EventSpec(
        "The chunks that a reconcile changed were read and match; the rest was read recently.",
        (CONTAINER,),
    ),
    "replica_delete_unproven": EventSpec(
        "A replica is kept because no other datanode proved that it has the data.", (CONTAINER,)
    ),
    "replica_move_failed": EventSpec(
        "A replica could not be moved off a retiring or read-only volume, or merged with its "
        "duplicate on another volume; the move is retried.",
        (CONTAINER, VOLUME),
    ),
    "replica_moved": EventSpec(
        "A replica was moved off a retiring volume, or merged with its duplicate on another "
        "volume.",
        (CONTAINER, VOLUME),
    ),
    "replica_reconciled": EventSpec(
        "A reconcile finished; gives its result in chunks and bytes.", (CONTAINER,)
    ),
    "replica_scanned": EventSpec(
        "A replica was scanned completely; gives the result.", (CONTAINER, VOLUME)
    ),
    "report_exported": EventSpec("All replicas were exported to a report file for Spark."),
    "scan_interval_infeasible": EventSpec(
        "At its rate a volume cannot be scanned within the scan interval.", (VOLUME,)
    ),
    "scan_request_dropped": EventSpec(
        "A scan request was dropped because the queue is full.", (CONTAINER,)
    ),
    "scan_requested": EventSpec("A scan of a replica was requested.", (CONTAINER,)),
    "scan_retries_exhausted": EventSpec(
        "A requested scan failed too often and was abandoned.", (CONTAINER,)
    ),
    "scm_reachable": EventSpec("The SCM answers again; gives the number of failed calls."),
    "scm_unreachable": EventSpec("A call to the SCM failed; logged for the first failure only."),
    "scrub_container_skipped": EventSpec(
        "An operator cancelled the running scan of a container.", (CONTAINER,)
    ),
    "scrub_paused": EventSpec("An operator paused scans.", (VOLUME,)),
    "scrub_resumed": EventSpec("An operator resumed scans.", (VOLUME,)),
    "second_checksum_not_compiled": EventSpec(
        "The second checksum library lacks its C extension and is slow."
    ),
    "seen_start_write_failed": EventSpec(
        "No volume could store the SCM starts that this agent has seen."
    ),
    "shadow_hash_mismatched": EventSpec(
        "After an upgrade, a second implementation computes other checksums; the verdict "
        "is withheld.",
        (CONTAINER,),
    ),
    "shadow_hash_unavailable": EventSpec(
        "The shadow hashing process does not respond; scans continue without it."
    ),
    "supervisor_unreachable": EventSpec("The systemd notification socket does not respond."),
    "task_crashed": EventSpec("Bug: a task raised an unexpected exception; has the traceback."),
    "task_dropped": EventSpec(
        "A queued task was dropped because it was late or stale, or the agent is stopping."
    ),
    "task_failed": EventSpec("A command failed; gives the error code."),
    "task_finished": EventSpec("A command finished in `duration_ms`."),
    "task_rejected": EventSpec(
        "A command was rejected because it is a duplicate or late, or the queue is full."
    ),
    "tasks_still_running": EventSpec("The agent stopped although tasks were still running."),
    "verdicts_withheld": EventSpec(
        "This host is suspect; its scan reports no corruption.", (CONTAINER, VOLUME)
    ),
    "verification_file_changed": EventSpec(
        "The newest verification log file was removed or changed externally; a new one was "
        "started.",
        (VOLUME,),
    ),
    "verification_log_write_failed": EventSpec(
        "The verification log could not store an entry; the next entry counts the lost ones.",
        (VOLUME,),
    ),
    "volume_added": EventSpec("An operator added a volume; it is in service.", (VOLUME,)),
    "volume_check_failed": EventSpec("A volume could not be written, read or listed.", (VOLUME,)),
    "volume_check_postponed": EventSpec(
        "The host lacks descriptors, memory or threads; the volume check is retried.", (VOLUME,)
    ),
    "volume_check_requested": EventSpec("A read error triggered a volume check.", (VOLUME,)),
    "volume_fenced": EventSpec("Nothing is served from this volume any more.", (VOLUME,)),
    "volume_latency_recovered": EventSpec(
        "A slow volume has the latency of its siblings again.", (VOLUME,)
    ),
    "volume_not_served": EventSpec(
        "A volume cannot be served; the others are. `error` gives the reason and the remedy."
    ),
    "volume_path_freed": EventSpec(
        "A foreign file or directory occupied one of the agent's paths; it was renamed."
    ),
    "volume_recovered": EventSpec(
        "Work that the previous process left unfinished on a volume was completed.", (VOLUME,)
    ),
    "volume_retired": EventSpec(
        "A retiring volume is empty; its disk can be removed after a restart.", (VOLUME,)
    ),
    "volume_service_changed": EventSpec(
        "A volume's service state changed: in service, read-only or retiring.", (VOLUME,)
    ),
    "volume_slow": EventSpec(
        "A volume has been much slower than its siblings for minutes; no action is taken.",
        (VOLUME,),
    ),
    "volume_suspected": EventSpec(
        "A read error made a volume suspect; its replicas are scanned again.", (VOLUME,)
    ),
    "waiting_for_scm": EventSpec("Waiting for the SCM to assign a cluster id (first start only)."),
    "watchdog_starved": EventSpec(
        "Workers make no progress; systemd's watchdog will restart the process."
    ),
    "worker_step_failed": EventSpec("A worker's step failed; it is retried."),
}
SCM: Final[Mapping[str, EventSpec]] = {
    "balance_ended": EventSpec("A balancer run ended; gives the reason."),
    "balance_moves_ordered": EventSpec("An iteration of the balancer ordered moves."),
    "balance_started": EventSpec("An operator started a balancer run."),
    "command_answer_from_wrong_datanode": EventSpec(
        "A datanode answered a command that was sent to another one; the answer is ignored.",
        (COMMAND, DATANODE),
    ),
    "command_resent": EventSpec("A command got no answer and was sent again.", (COMMAND, DATANODE)),
    "container_adopted": EventSpec(
        "After a restore, a container was added that datanodes have and the backup lacks.",
        (CONTAINER,),
    ),
    "container_allocated": EventSpec(
        "A container was allocated; gives its datanodes.", (CONTAINER,)
    ),
    "container_closed_with_lost_commits": EventSpec(
        "A container was closed without its last commits.", (CONTAINER,)
    ),
    "container_closing": EventSpec(
        "A container is closing and accepts no more writes.", (CONTAINER,)
    ),
    "container_marked_lost": EventSpec(
        "An operator marked a missing container as lost.", (CONTAINER,)
    ),
    "container_lost_mark_removed": EventSpec(
        "A container is no longer marked as lost.", (CONTAINER,)
    ),
    "container_state_changed": EventSpec(
        "A container's state changed because of its replicas.", (CONTAINER,)
    ),
    "delete_ordered": EventSpec(
        "The SCM ordered the deletion of a replica.", (CONTAINER, COMMAND, DATANODE)
    ),
    "deletes_resent": EventSpec(
        "A shard has more blocks than the others; its deletes were sent again.", (CONTAINER,)
    ),
    "history_row_damaged": EventSpec(
        "A row of the history or of the anchors cannot be read; it is skipped."
    ),
    "hold_released": EventSpec(
        "A hold was released; the container or replica is managed again.", (CONTAINER, DATANODE)
    ),
    "incomplete_restore_removed": EventSpec(
        "A partial copy that an interrupted restore left was removed."
    ),
    "later_state_seen": EventSpec(
        "A datanode has seen a later SCM state; this SCM is in safe mode until it is recovered.",
        (DATANODE,),
    ),
    "maintenance_expired": EventSpec(
        "A maintenance period ended; the datanode is in service again.", (DATANODE,)
    ),
    "node_health_changed": EventSpec(
        "A datanode's health changed because of the age of its last heartbeat.", (DATANODE,)
    ),
    "node_op_state_adopted": EventSpec(
        "After a restore, a datanode's own operational state was adopted; the backup's is older.",
        (DATANODE,),
    ),
    "node_op_state_changed": EventSpec(
        "A datanode's operational state changed; see `suture scm nodes`.", (DATANODE,)
    ),
    "node_read_only": EventSpec(
        "A datanode has another layout version; it gets no commands.", (DATANODE,)
    ),
    "node_registered": EventSpec("A datanode registered.", (DATANODE,)),
    "node_removed": EventSpec("An operator removed a dead datanode.", (DATANODE,)),
    "node_safe_to_stop": EventSpec(
        "No container depends on this datanode any more; it is safe to stop.", (DATANODE,)
    ),
    "plan_applied": EventSpec("The plan of a Spark run was applied; counts by decision."),
    "reconstruct_ordered": EventSpec(
        "The SCM ordered the reconstruction of shards.", (CONTAINER, COMMAND)
    ),
    "registration_rejected": EventSpec(
        "A datanode of another cluster, or at another datanode's address, tried to register.",
        (DATANODE,),
    ),
    "replica_dropped_by_writer": EventSpec(
        "A writer continued without this replica.", (CONTAINER, DATANODE)
    ),
    "replica_excluded": EventSpec(
        "Commands for a replica failed too often; it gets none for an hour, or until an "
        "operator releases it.",
        (CONTAINER, DATANODE),
    ),
    "replicas_deregistered": EventSpec(
        "The replica records of a dead decommissioned datanode were removed."
    ),
    "replicate_ordered": EventSpec("The SCM ordered a copy of a replica.", (CONTAINER, COMMAND)),
    "report_page_out_of_order": EventSpec(
        "A page of a report arrived out of order; the report starts again.", (DATANODE,)
    ),
    "report_partially_rejected": EventSpec(
        "Part of a datanode's report is invalid and was ignored; the rest is used.", (DATANODE,)
    ),
    "restore_finished": EventSpec(
        "Datanodes reported what was stored since the backup; decisions start."
    ),
    "scm_started": EventSpec("The SCM accepts calls."),
    "scm_stopped": EventSpec("The SCM stopped; its state is closed."),
    "shard_delete_ordered": EventSpec(
        "The SCM ordered the deletion of a bad or duplicate shard.", (CONTAINER, DATANODE)
    ),
    "spark_verification_failed": EventSpec(
        "A Spark verification failed; the next one runs on schedule."
    ),
    "state_older_than_datanodes": EventSpec(
        "Two datanodes have data of a later SCM state; safe mode lasts until it is recovered.",
        (CONTAINER, DATANODE),
    ),
    "state_on_btrfs": EventSpec(
        "The SCM's state is on btrfs; while the disk is full, even overwriting fails."
    ),
    "state_set_aside": EventSpec("The remains of a lost state were kept; a new cluster starts."),
    "state_write_failed": EventSpec(
        "A state change could not be written; logged once, until `state_write_recovered`."
    ),
    "state_write_recovered": EventSpec("No write of the state has failed for a minute."),
    "tick_failed": EventSpec(
        "A periodic step of the SCM could not write its result; it is retried."
    ),
    "uncommitted_blocks_discarded": EventSpec(
        "A container closed before allocated blocks were committed; their data is deleted.",
        (CONTAINER,),
    ),
    "unhealthy_replica_delete_ordered": EventSpec(
        "The SCM ordered the deletion of an UNHEALTHY replica in favour of a good one.",
        (CONTAINER, DATANODE),
    ),
    "unknown_container_reported": EventSpec(
        "A datanode reported an unknown container; it is recorded and not changed.",
        (CONTAINER, DATANODE),
    ),
    "verification_log_changed": EventSpec(
        "A verification log is shorter than before, or was replaced.", (DATANODE, VOLUME)
    ),
}
BOTH: Final[Mapping[str, EventSpec]] = {
    "audit": EventSpec("A line of the audit log, if the audit log has no file of its own."),
    "audit_write_failed": EventSpec("The audit log's file could not store this line."),
    "certificate_reload_failed": EventSpec(
        "The new certificate files are invalid; the current ones are kept."
    ),
    "certificate_reloaded": EventSpec("New certificates are in use."),
    "connections_closed": EventSpec(
        "A peer exceeded its share of connections, or few were left; its idle ones were closed."
    ),
    "connections_max_lowered": EventSpec(
        "The limit of open files is too low for `connections_max`; raise the unit's LimitNOFILE."
    ),
    "library_message": EventSpec("A message logged by a library."),
    "listening_line_write_failed": EventSpec(
        "stdout is not writable; the process serves calls anyway."
    ),
    "log_lines_lost": EventSpec(
        "Log lines were lost because of a full disk or a closed pipe; gives their number."
    ),
    "rpc_failed": EventSpec("Bug: a call ended with an unexpected exception."),
    "rpc_thread_failed": EventSpec(
        "Bug: a call ended in gRPC's code without an answer; has the traceback."
    ),
    "rpc_thread_start_failed": EventSpec(
        "The host cannot start another thread; the call waits for a running one."
    ),
    "uncaught_exception": EventSpec(
        "Bug: an exception ended the process or a thread; has the traceback."
    ),
}
EVENTS: Final[Mapping[str, EventSpec]] = {**AGENT, **SCM, **BOTH}
