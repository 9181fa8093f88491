"""The demo's first part: a flipped bit, which a scan finds and the control plane repairs without
Spark.

A bit is flipped, a scan finds it, the datanode reports it, and the control plane orders a reconcile
by itself. Then the replicas are equal again. After that, the control plane is restarted with `heal
= false`, so that the later parts use plans of Spark.
"""

import time
from collections.abc import Collection
from dataclasses import dataclass

from merkle.replica import ContainerId
from suture.wire.v1 import scm_pb2
from tools.demo.damage import flip_bit_under_warm_cache
from tools.demo.damage_choice import damageable_blocks, target_of
from tools.demo.stage import Stage, is_whole, wait_until


@dataclass(slots=True)
class Selfheal:
    """The outcome of the flipped bit."""

    container_id: int = 0
    datanode_id: str = ""
    seconds: float = 0.0  # seconds since the end of the scan that found it
    fetched_bytes: int = 0


def flip_and_watch(told: Selfheal, stage: Stage, info: scm_pb2.ContainerInfo) -> None:
    """Flip a bit of one replica, scan the replica, and wait until the container is repaired."""
    replica = info.replicas[0]
    told.container_id, told.datanode_id = info.container_id, replica.datanode.datanode_id
    blocks = damageable_blocks(stage.client, info)[:1]
    flip_bit_under_warm_cache(
        target_of(stage.cluster, stage.indexes, info.container_id, replica, blocks)
    )
    before = outcomes(stage)
    stage.peer(told.datanode_id).scanned(ContainerId(info.container_id))
    started_s = time.monotonic()
    wait_until(lambda: not is_sound(stage, told), "the SCM hears of the flipped bit")
    wait_until(lambda: is_sound(stage, told), "the control plane has it healed")
    told.seconds = round(time.monotonic() - started_s, 1)
    # The outcome of a command may arrive a heartbeat after the healed replica's report.
    wait_until(lambda: fetched_bytes(stage, before) > 0, "the datanode says what it fetched")
    told.fetched_bytes = fetched_bytes(stage, before)


def fetched_bytes(stage: Stage, before: Collection[int]) -> int:
    """Return the bytes fetched by commands that are not in `before`."""
    return sum(
        outcome.status.reconcile.bytes_fetched
        for command_id, outcome in outcomes(stage).items()
        if command_id not in before
    )


def is_sound(stage: Stage, told: Selfheal) -> bool:
    """Return True if the container's replicas are equal, and none reports damage."""
    [info] = stage.infos_of([told.container_id])
    return is_whole(info) and not any(item.replica.finding_count for item in info.replicas)


def outcomes(stage: Stage) -> dict[int, scm_pb2.Outcome]:
    """Return the outcomes of the latest commands, by id."""
    answer = stage.client.scm.list_outcomes(scm_pb2.ListOutcomesRequest(count=100))
    return {outcome.status.command_id: outcome for outcome in answer.outcomes}


def leave_the_rest_to_plans(stage: Stage) -> None:
    """Restart the control plane with `heal = false`; wait until safe mode has ended."""
    _start_again(stage, heal="false")


def heal_again(stage: Stage) -> None:
    """Restart the control plane with `heal = true`; wait until safe mode has ended.

    This is needed for the steps with an absent datanode. On a busy machine, a writer may stop
    writing to a slow replica. Only a reconcile completes this replica. The control plane expects
    the reconcile, so it does not order a new replica.
    """
    _start_again(stage, heal="true")


def _start_again(stage: Stage, *, heal: str) -> None:
    cluster = stage.cluster
    cluster.scm_settings = {**cluster.scm_settings, "heal": heal}
    cluster.scm.stop()
    cluster.scm.arguments = cluster.scm_arguments(cluster.scm.address)
    cluster.scm.start()
    wait_until(
        lambda: not stage.client.scm.safe_mode(scm_pb2.SafeModeRequest()).on,
        "the control plane has heard all datanodes",
    )
