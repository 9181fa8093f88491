"""Commands `volume add`, `retire` and `read-only`, which change the volumes of a datanode."""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from agent.cli.change.confirmation import DryRunFlag, YesFlag, is_confirmed
from agent.cli.inspect.datanode_tables import VOLUME_COLUMNS, volume_row
from agent.store.files.mounts import FSTAB
from agent.store.volumes.volume_registry import declare_new
from suture.client.cluster_client import ClusterClient
from suture.errors import Code, RefusedError, UnavailableError
from suture.runtime.exit_codes import ExitCode
from suture.runtime.file_system_type import is_on_btrfs
from suture.terminal.common_options import is_json
from suture.terminal.credentials import connect
from suture.terminal.datanode_queries import nodes_of, query_all
from suture.terminal.document import facts
from suture.terminal.output import (
    aside,
    bytes_progress,
    pluralize,
    print_json,
    print_line,
    print_rows,
    short,
    size,
)
from suture.terminal.selection import fetch_container, known_nodes, one_volume
from suture.terminal.transient_refusals import TRANSIENT, until_decided, until_free
from suture.terminal.typer_options import argument, flag, option
from suture.wire.v1 import datanode_pb2 as pb
from suture.wire.v1 import scm_pb2

POLL_S: Final = 1.0
SENT_AT_ONCE: Final = 20  # containers copied elsewhere at the same time
WHOLE: Final = frozenset({"CLOSED", "QUASI_CLOSED"})
NEXT: Final = (
    "it may be pulled: restart the agent, unmount the disk, mount the new one at the same place, "
    "then: suture volume add"
)

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

VolumeName = Annotated[str, argument("VOLUME", "Volume id or its prefix, path, or DATANODE:/path.")]
WaitFlag = Annotated[bool, flag("Show progress until the volume is empty.", "--wait")]


@dataclass(frozen=True, slots=True)
class VolumeRef:
    """The id of a volume, and the id and address of its datanode."""

    datanode_id: str
    address: str
    volume_id: str


@app.command("add")
def add(
    paths: Annotated[list[Path], argument("DIR", "Directories, one per disk.")],
    datanode: Annotated[
        str, option("ID|HOST:PORT", "Add the volume to this running datanode now.", "--datanode")
    ] = "",
    next_start: Annotated[
        bool, flag("Add empty volumes when this host's agent next starts.", "--next-start")
    ] = False,
) -> int:
    """Add a volume to a datanode, now and after restarts.

    An empty directory is formatted. The other volumes of the datanode record the new one. Also add
    it to storage.volumes in the config file. --next-start is needed only for a directory that held
    a volume before; the old volume is then forgotten.

    Example:
        suture volume add /data/3 --datanode dn1.example.org:9861
    """
    if next_start == bool(datanode) or (datanode and len(paths) > 1):
        raise typer.BadParameter(
            "expected --datanode and one DIR, or --next-start", param_hint="DIR"
        )
    if next_start:
        return declare(paths)
    with connect() as client:
        nodes = nodes_of(client, datanode)
        wish = pb.ControlVolumeRequest(add_path=str(paths[0]))
        [answered] = query_all(client, nodes, lambda peer: peer.control_volume(wish))
    if answered.value is None:
        assert answered.cause is not None
        raise answered.cause
    return print_volumes(answered.datanode, answered.value.volumes)


def declare(volumes: Sequence[Path]) -> int:
    """Mark empty directories as new volumes. The agent formats them at its next start.

    This is needed only for a path that had a volume before. The old volume is then removed from the
    list of known volumes.
    """
    for volume in volumes:
        declare_new(volume, fstab=FSTAB)
        with suppress(OSError):
            if is_on_btrfs(volume):
                aside.print(f"{volume} is on btrfs: ext4 and XFS are supported")
    if is_json():
        print_json({"volumes": [str(volume) for volume in volumes]})
    else:
        for volume in volumes:
            print_line(f"{volume}: a new disk; restart the agent to use it")
    return ExitCode.OK


@app.command("retire")
def retire(
    volume: VolumeName,
    cancel: Annotated[
        bool, flag("Return the volume to service; move no replicas back.", "--cancel")
    ] = False,
    to: Annotated[
        str, option("VOLUME", "Volume to move all replicas to; default: any volume.", "--to")
    ] = "",
    wait: WaitFlag = False,
    dry_run: DryRunFlag = False,
    yes: YesFlag = False,
) -> int:
    """Empty a volume so that its disk can be removed.

    Replicas move to other volumes of the datanode. Each copy is read back and verified before the
    original is deleted. A restart does not interrupt the move. With --wait, a replica that does not
    fit on another volume is copied to another datanode by the SCM.

    Exit codes:
        2: replicas remain on the volume

    Example:
        suture volume retire dn1.example.org:9861:/data/3 --wait --yes
    """
    if cancel and to:
        raise typer.BadParameter("cannot combine --cancel with --to", param_hint="--to")
    with connect() as client:
        place = resolve_volume(client, volume)
        target_id = target_of(client, place, volume, to) if to else ""
        if not cancel:
            before = fetch_volume_status(client, place)
            moved = f"{pluralize(before.container_count, 'replica')}, {size(before.used_bytes)}"
            if dry_run:
                print_line(f"would move {moved}, off {before.path}")
                return ExitCode.OK
            if not is_confirmed(f"move {moved}, off {before.path}?", yes=yes):
                return ExitCode.FAILED
        volumes = control_volume(client, place, "IN_SERVICE" if cancel else "RETIRING", target_id)
        if wait and not cancel:
            return watch_evacuation(client, place)
    return print_volumes(place.datanode_id, volumes)


def target_of(client: ClusterClient, place: VolumeRef, volume: str, to: str) -> str:
    """Return the id of the volume `to`, to which the replicas of `volume` will be moved.

    Raise RefusedError if the two volumes are on different datanodes.
    """
    target = resolve_volume(client, to)
    if place.datanode_id != target.datanode_id:
        raise RefusedError(
            Code.WRONG_DATANODE,
            f"cannot move {volume} to {to}: it is on datanode {place.datanode_id}, the target "
            f"on {target.datanode_id}",
            hint="without --to, suture volume retire --wait copies the rest to other datanodes",
        )
    return target.volume_id


@app.command("read-only")
def read_only(
    volume: VolumeName, off: Annotated[bool, flag("Allow writes again.", "--off")] = False
) -> int:
    """Stop new writes to a volume.

    Writers use other volumes. Repairs and deletes continue.

    Example:
        suture volume read-only dn1.example.org:9861:/data/3
    """
    with connect() as client:
        place = resolve_volume(client, volume)
        volumes = control_volume(client, place, "IN_SERVICE" if off else "READ_ONLY")
    return print_volumes(place.datanode_id, volumes)


def resolve_volume(client: ClusterClient, given: str) -> VolumeRef:
    """Return the volume that `given` names: an id or its prefix, a path, or DATANODE:/path.

    Raise RefusedError if `given` matches no volume, or more than one.
    """
    node, volume_id = one_volume(known_nodes(client), given)
    return VolumeRef(node.datanode_id, node.address, volume_id)


def control_volume(
    client: ClusterClient, place: VolumeRef, service: str, target_id: str = ""
) -> Sequence[pb.VolumeStatus]:
    """Change the service mode of a volume: in service, read-only or retiring.

    Return the status of all volumes of its datanode.
    """
    wish = pb.ControlVolumeRequest(
        volume_id=place.volume_id, service=service, target_volume_id=target_id
    )
    peer = client.peer(place)
    return until_free(place.datanode_id, lambda: peer.control_volume(wish)).volumes


def print_volumes(datanode_id: str, volumes: Sequence[pb.VolumeStatus]) -> int:
    """Print the volumes of a datanode as a table or as JSON."""
    if is_json():
        known = [{"datanode_id": datanode_id, **facts(volume)} for volume in volumes]
        print_json({"volumes": known})
    else:
        rows = [volume_row(datanode_id, volume, pb.VolumeScrub(state="-")) for volume in volumes]
        print_rows(VOLUME_COLUMNS, rows)
    return ExitCode.OK


def watch_evacuation(client: ClusterClient, place: VolumeRef) -> int:
    """Show the progress of a retirement until the volume is empty, or until no replica can be
    moved.

    Return the exit code.
    """
    sent: dict[int, list[int]] = {}
    with bytes_progress("moved", 0) as bar:
        while True:
            volume = fetch_volume_status(client, place)
            gone = max(0, volume.retiring_bytes - volume.used_bytes)
            bar.update(bar.task_ids[0], total=volume.retiring_bytes, completed=gone)
            if does_rest(volume) and not send_away(client, place, volume, sent):
                break
            time.sleep(POLL_S)
    if is_json():
        print_json({"volumes": [{"datanode_id": place.datanode_id, **facts(volume)}]})
    else:
        print_line(ending(place, volume))
    return ExitCode.OK if volume.service == "RETIRED" else ExitCode.TO_DO


def does_rest(volume: pb.VolumeStatus) -> bool:
    """Return whether no more replicas will be moved off a volume.

    This is the case if the volume is not retiring, or if the moves of all its replicas fail.
    """
    is_stuck = 0 < volume.stuck_count >= volume.container_count
    return volume.service != "RETIRING" or is_stuck


def fetch_volume_status(client: ClusterClient, place: VolumeRef) -> pb.VolumeStatus:
    """Return the current status of a volume."""
    status = until_free(place.datanode_id, client.peer(place).status, codes=TRANSIENT)
    for volume in status.volumes:
        if volume.volume_id == place.volume_id:
            return volume
    raise UnavailableError(
        Code.UNAVAILABLE,
        f"volume {place.volume_id} of datanode {place.datanode_id} is no longer in use",
        hint="suture volumes shows the reason",
    )


def ending(place: VolumeRef, volume: pb.VolumeStatus) -> str:
    """Return a text with the result of a retirement."""
    name = f"{volume.path} of {short(place.datanode_id)}"
    if volume.service == "RETIRED":
        return f"{name} is empty; {NEXT}"
    if volume.service != "RETIRING":
        return f"{name} is {volume.service} again"
    count = max(volume.container_count, volume.stuck_count)  # some replicas have no row
    left = pluralize(count, "replica")
    return f"{name} still has {left}: {volume.stuck_reason}; they are tried again by themselves"


def send_away(
    client: ClusterClient, place: VolumeRef, volume: pb.VolumeStatus, sent: dict[int, list[int]]
) -> bool:
    """Let the SCM remove replicas from a volume for which no other volume of the host has space.

    If too few other datanodes have a healthy replica, the SCM copies the replica to another
    datanode. Otherwise, the SCM deletes the replica on this volume, as by `suture scm delete`. The
    replica is also deleted by this command after its copy, because the SCM might delete the replica
    of another datanode instead. `sent` has the ids of the copy commands, by container. Return True
    if the caller must wait for a result.
    """
    waits = False
    to_copy, to_delete = list[int](), list[int]()
    for number in list(volume.unplaceable_container_ids)[:SENT_AT_ONCE]:
        info = fetch_container(client, number)
        if info.scheme:
            continue  # a shard is never copied, only rebuilt after its loss; an operator must act
        others = [r for r in info.replicas if r.datanode.datanode_id != place.datanode_id]
        if sum(map(is_whole, others)) < info.replication_factor:
            if number not in sent:
                to_copy.append(number)
                continue
            asked = scm_pb2.ListOutcomesRequest(command_ids=sent[number], count=len(sent[number]))
            if client.scm.list_outcomes(asked).pending_command_ids:
                waits = True
                continue
        to_delete.append(number)
    if to_copy:
        copy = scm_pb2.ReplicateContainersRequest(container_ids=to_copy)
        for decision in until_decided(client.scm.replicate_containers, copy).decisions:
            if decision.code == "OK":
                sent[decision.container_id] = list(decision.command_ids)
                waits = True
    if to_delete:
        here = place.datanode_id
        delete = scm_pb2.DeleteReplicasRequest(container_ids=to_delete, datanode_id=here)
        for decision in until_decided(client.scm.delete_replicas, delete).decisions:
            if decision.code != "OK":
                sent.pop(decision.container_id, None)
    return waits or bool(to_delete)


def is_whole(held: scm_pb2.ContainerInfoReplica) -> bool:
    """Return whether a replica is closed, has no findings, and is on a healthy datanode."""
    from agent.cli.inspect.scm_commands import state_name

    is_good = state_name(held.replica.state) in WHOLE and not held.replica.finding_count
    return is_good and held.node_health == "HEALTHY"
