"""Command `scm recover`: registers containers and keys that are newer than a restored backup.

The command reads them from the datanodes, after the SCM was restored from the backup.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from typing import Annotated, Any, Final

from agent.cli.change.confirmation import DryRunFlag
from agent.cli.inspect.scm_commands import app
from suture.client.cluster_client import ClusterClient
from suture.client.container_discovery import DiscoveredContainer, PartStore, fetch_contents
from suture.client.put_metadata import DiscoveredPut
from suture.errors import Code, RefusedError, UnavailableError
from suture.runtime.exit_codes import ExitCode
from suture.terminal.common_options import is_json
from suture.terminal.credentials import connect
from suture.terminal.output import (
    items_progress,
    pluralize,
    print_json,
    print_line,
    print_list,
    print_note,
)
from suture.terminal.selection import fetch_container
from suture.terminal.transient_refusals import THE_SCM, until_free
from suture.terminal.typer_options import flag
from suture.wire.clients.message_groups import in_groups
from suture.wire.v1 import container_pb2, scm_pb2

CONTAINERS_PER_CALL: Final = 1_000
DELETED_PER_CALL: Final = 1_000_000  # half of the accepted number; less than a 10 MiB message
BLOCKS_PER_CALL: Final = 10_000  # blocks of keys; this also bounds the number of their containers
UNKNOWN: Final = "UNKNOWN"  # the state of a container that the control plane never created


@dataclass
class RecoverySummary:
    """Result of a recovery: the containers and keys that were found, and the decisions of the SCM.

    `counts` has the number of keys for each decision. `codes` lists the keys only if `lists_keys`
    is True.
    """

    lists_keys: bool = False
    adopted: set[int] = field(default_factory=set)
    unknown: set[int] = field(default_factory=set)  # not known to the SCM; some were then adopted
    deleted: set[str] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)  # of keys by result
    codes: dict[str, list[str]] = field(default_factory=dict)  # keys by result
    aside: dict[str, str] = field(default_factory=dict)  # new name -> key of the older put
    unfinished: list[str] = field(default_factory=list)  # keys of puts with missing parts
    uncertain: list[str] = field(default_factory=list)  # restored keys whose end may be missing
    silent: dict[str, str] = field(default_factory=dict)  # datanode -> error
    nameless_count: int = 0
    torn_count: int = 0
    schemes: dict[int, str] = field(default_factory=dict)  # of erasure-coded containers
    last_local_id: int = 0

    def note_contents(self, found: DiscoveredContainer) -> None:
        """Add the errors, the counts and the erasure code that datanodes have reported for one
        container."""
        self.silent.update(found.silent)
        self.nameless_count += len(found.nameless)
        self.torn_count += len(found.torn)
        self.last_local_id = max(self.last_local_id, found.last_local_id)
        if found.scheme:
            self.schemes[found.container_id] = found.scheme

    def add(self, answer: scm_pb2.RecoverFromRestoreResponse) -> None:
        """Add the response of the SCM to one call of the recovery."""
        self.adopted.update(answer.adopted_container_ids)
        self.deleted.update(answer.deleted_keys)
        for one in answer.keys:
            self.counts[one.code] += 1
            if self.lists_keys:
                self.codes.setdefault(one.code, []).append(one.key)
            if one.kept_as:
                self.aside[one.kept_as] = one.key

    def left(self) -> list[int]:
        """Return the ids of the containers that the SCM did not know before and has not registered
        now."""
        return sorted(self.unknown - self.adopted)

    def document(self, *, is_finished: bool) -> dict[str, Any]:
        """Return the result of the recovery as a JSON document."""
        return {
            "finished": is_finished,
            "adopted_container_ids": sorted(self.adopted),
            "unknown_container_ids": self.left(),
            "keys": self.codes,
            "renamed_keys": self.aside,
            "deleted_keys": sorted(self.deleted),
            "incomplete_keys": self.unfinished,
            "uncertain_keys": self.uncertain,
            "errors": self.silent,
            "unnamed_block_count": self.nameless_count,
            "torn_block_count": self.torn_count,
        }


@app.command("recover")
def recover(
    force: Annotated[
        bool, flag("Finish although datanodes are missing or unreachable.", "--force")
    ] = False,
    dry_run: DryRunFlag = False,
) -> int:
    """Recover keys and containers newer than the backup.

    Run it after suture scm restore. Every datanode is asked for its blocks. Only blocks with a
    pending deletion are deleted. Safe mode ends when the recovery is complete. A second run
    recovers data that was missing in the first run.

    Exit codes:
        2: some data was not recovered; check the output
        3: datanodes have not reported yet

    Example:
        suture scm recover --dry-run
    """
    result = RecoverySummary(lists_keys=is_json())
    with connect() as client, PartStore() as parts:
        state = _backlog(client, is_awaited=not (force or dry_run))
        if not is_json():
            print_line(_what(state))
        if state.missing_datanode_ids and not force:
            print_note(f"not reported yet: {', '.join(state.missing_datanode_ids)}")
            if not dry_run:
                print_note("start them and wait, or go on without them: --force")
                if is_json():
                    print_json(result.document(is_finished=False))
                return ExitCode.UNAVAILABLE
        seen = _looked_into(client, state.container_ids, result)
        for request in chain(_containers(seen, result, parts), _keys(parts, result)):
            request.dry_run = dry_run
            result.add(client.scm.recover_from_restore(request))
        is_end = state.restored and not dry_run and (force or not result.silent)
        if is_end:
            end = scm_pb2.RecoverFromRestoreRequest(
                finish=True, force=force, last_local_id=result.last_local_id
            )
            until_free(THE_SCM, lambda: client.scm.recover_from_restore(end))
    if is_json():
        print_json(result.document(is_finished=is_end))
    else:
        _show(result, dry_run=dry_run)
        if is_end:
            print_line("finished: decisions begin as soon as the datanodes have reported")
            print_line(
                "suture scm report names the keys of containers that nobody has, if there are any"
            )
    if state.restored and not is_end and not dry_run:
        return ExitCode.UNAVAILABLE
    left = (result.aside, result.unfinished, result.uncertain, result.silent, result.left())
    return ExitCode.TO_DO if any(left) or result.torn_count else ExitCode.OK


def _backlog(client: ClusterClient, *, is_awaited: bool) -> scm_pb2.GetRestoreRecoveryResponse:
    """Return the containers to recover.

    If `is_awaited` is True, first wait until all datanodes have reported to the SCM.
    """
    found: list[scm_pb2.GetRestoreRecoveryResponse] = []

    def once() -> None:
        found.append(client.scm.get_restore_recovery(scm_pb2.GetRestoreRecoveryRequest()))
        missing = ", ".join(found[-1].missing_datanode_ids)
        if is_awaited and missing:
            raise UnavailableError(
                Code.SAFE_MODE, f"cannot finish the recovery: {missing} have not reported yet"
            )

    try:
        until_free(THE_SCM, once)
    except UnavailableError:
        if not found:
            raise
    return found[-1]


def _what(state: scm_pb2.GetRestoreRecoveryResponse) -> str:
    count = pluralize(len(state.container_ids), "container")
    if not state.restored:
        return f"not restored, or recovered already; {count} to look into"
    taken = datetime.fromtimestamp(state.taken_at_ms / 1000, UTC).isoformat(timespec="seconds")
    return f"restored from a backup of {taken}; {count} to look into"


def _looked_into(
    client: ClusterClient, ids: Sequence[int], result: RecoverySummary
) -> Iterator[DiscoveredContainer]:
    with items_progress("containers", len(ids)) as progress:
        for container_id in ids:
            progress.advance(progress.tasks[0].id)
            try:
                info = fetch_container(client, container_id)
            except RefusedError as error:
                if error.code is not Code.CONTAINER_NOT_FOUND:
                    raise
                continue  # the datanode lost it after it was listed
            if info.state == UNKNOWN:
                result.unknown.add(container_id)
            yield fetch_contents(info, client.peer)


def _containers(
    seen: Iterable[DiscoveredContainer], result: RecoverySummary, parts: PartStore
) -> Iterator[scm_pb2.RecoverFromRestoreRequest]:
    """Yield the requests about containers and their deleted blocks.

    The parts of keys that are found in the containers are added to `parts`, for `_keys`.
    """

    def contents() -> Iterator[scm_pb2.RecoveredContainer]:
        for one in seen:
            result.note_contents(one)
            parts.add(one.parts)
            yield from _parts(one)

    a_container = DELETED_PER_CALL // CONTAINERS_PER_CALL
    for some in in_groups(
        contents(), lambda part: a_container + len(part.deleted_local_ids), DELETED_PER_CALL
    ):
        yield scm_pb2.RecoverFromRestoreRequest(containers=some)


def _keys(parts: PartStore, result: RecoverySummary) -> Iterator[scm_pb2.RecoverFromRestoreRequest]:
    """Yield the requests about keys. Each request also names the containers that its keys need."""

    def found() -> Iterator[DiscoveredPut]:
        for one in parts.files():
            if not one.is_whole:
                result.unfinished.append(one.key)
                continue
            if not one.is_certain:
                result.uncertain.append(one.key)
            yield one

    for keys in in_groups(found(), lambda key: 1 + len(key.blocks), BLOCKS_PER_CALL):
        needed = sorted({block.container_id for key in keys for block in key.blocks})
        yield scm_pb2.RecoverFromRestoreRequest(
            containers=[
                scm_pb2.RecoveredContainer(
                    container_id=number, scheme=result.schemes.get(number, "")
                )
                for number in needed[:BLOCKS_PER_CALL]  # adopted before, except in a dry run
            ],
            keys=[_key(key) for key in keys],
        )


def _parts(one: DiscoveredContainer) -> Iterator[scm_pb2.RecoveredContainer]:
    """Yield a container with its deleted blocks, divided into parts that fit into one call."""
    for start in range(0, max(1, len(one.deleted)), DELETED_PER_CALL):
        yield scm_pb2.RecoveredContainer(
            container_id=one.container_id,
            scheme=one.scheme,
            deleted_local_ids=one.deleted[start : start + DELETED_PER_CALL],
        )


def _key(found: DiscoveredPut) -> scm_pb2.KeyInfo:
    return scm_pb2.KeyInfo(
        key=found.key,
        size=found.size_bytes,
        created_at_ms=found.at_ms,
        blocks=[
            scm_pb2.BlockLocation(
                block_id=container_pb2.BlockId(
                    container_id=block.container_id, local_id=block.local_id, bcsid=block.bcsid
                ),
                length=block.length_bytes,
            )
            for block in found.blocks
        ],
    )


def _show(result: RecoverySummary, *, dry_run: bool) -> None:
    would = "would be " if dry_run else ""
    if result.adopted:
        print_line(f"{pluralize(len(result.adopted), 'container')} {would}taken over")
    print_list(
        "not taken over: ids too high to be of this cluster, or shards whose code nothing names",
        [str(number) for number in result.left()],
    )
    for code, count in sorted(result.counts.items()):
        print_line(f"{pluralize(count, 'key')} {code}")
    kept = [f"{name} (of {key})" for name, key in result.aside.items()]
    print_list("of two puts the older is kept as", kept)
    print_list("deleted since the backup", sorted(result.deleted))
    print_list("never finished, or parts are nowhere", result.unfinished)
    print_list("written by a client from before, perhaps not whole", result.uncertain)
    print_list("did not answer", [f"{node}: {why}" for node, why in result.silent.items()])
    if result.nameless_count:
        print_line(
            f"{pluralize(result.nameless_count, 'block')} without a key's name: kept, of no key"
        )
    if result.torn_count:
        print_line(
            f"{pluralize(result.torn_count, 'block group')} with too few shards: kept, of no key"
        )
