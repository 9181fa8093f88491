"""Results for containers that cannot be read, with the rules of `ozone.scrub.places`."""

import time
from collections.abc import Set
from dataclasses import dataclass

from merkle.damaged_data import DamagedData
from merkle.replica import ContainerId
from ozone.disk.database import ContainerDatabase
from ozone.disk.layout import OzoneVolume
from ozone.disk.rows import held_containers
from ozone.scrub.places import PathRole, PathRule, PathVerdict, inspect_path, rule_of
from ozone.scrub.reader import VIEW_AGE_S
from ozone.scrub.result import ContainerResult
from scanner.finding import NO_BLOCK, DamageFault, ScanFinding, Verdict
from suture.errors import UnavailableError


@dataclass(frozen=True, slots=True)
class RowsBeside:
    """Containers that have rows in the database of the volume, but no readable directory.

    If the database cannot be read, `unknown` has the error.
    """

    held: frozenset[ContainerId] = frozenset()
    unknown: UnavailableError | None = None


def rows_beside(
    volume: OzoneVolume, database: ContainerDatabase, here: Set[ContainerId]
) -> RowsBeside:
    """Return the containers that have rows in the database of a volume and are not in `here`."""
    if not database.path.is_dir():
        return RowsBeside()
    try:
        held = held_containers(database.view(time.monotonic() - VIEW_AGE_S)) - here
        # Ozone deletes a container by moving its directory away and removing its rows, in either
        # order.
        held = frozenset(one for one in held if not volume.deleted(one).exists())
        if held:
            held &= held_containers(database.view(time.monotonic()))
    except UnavailableError as error:
        return RowsBeside(unknown=error)
    return RowsBeside(held)


def unread(
    volume: OzoneVolume,
    container_id: ContainerId,
    rows: RowsBeside,
    why: Exception | None,
    now_ms: int,
) -> ContainerResult | None:
    """Return the result of a container without a usable descriptor.

    Return None if there is nothing to report. `why` is the error of the read of the descriptor. It
    is None if the container has no directory.
    """
    try:
        rule, said = _judged(volume, container_id, rows, why)
    except OSError as error:
        rule, said = PathRule(PathVerdict.NOT_READ), str(error)
    if rule.ruling is PathVerdict.SILENT:
        return None
    findings: tuple[ScanFinding, ...] = ()
    if rule.fault is not None:
        place = (NO_BLOCK, -1, -1)
        findings = (ScanFinding(container_id, Verdict.CORRUPT, rule.fault, *place, now_ms, said),)
    return ContainerResult(
        container_id=container_id,
        storage_id=volume.storage_id,
        findings=findings,
        finding_count=len(findings),
        why=said,
        is_open=rule.ruling is PathVerdict.SKIPPED,
        is_missing=rule.ruling is PathVerdict.MISSING,
    )


def _judged(
    volume: OzoneVolume, container_id: ContainerId, rows: RowsBeside, why: Exception | None
) -> tuple[PathRule, str]:
    paths, has_rows = volume.paths(container_id), container_id in rows.held
    place, path = PathRole.CONTAINER, paths.root
    found = inspect_path(place, path)
    if rule_of(place, found.kind, has_rows=has_rows).ruling is PathVerdict.READ:
        place, path = PathRole.DESCRIPTOR, paths.descriptor
        found = inspect_path(place, path)
        if why is None:  # the descriptor appeared after the listing
            return PathRule(PathVerdict.SILENT), ""
    rule, said = rule_of(place, found.kind, has_rows=has_rows), f"{found.words} is at {path}"
    if rows.unknown is not None and rule != rule_of(place, found.kind, has_rows=True):
        return PathRule(PathVerdict.NOT_READ), f"{said}; {rows.unknown}"
    if rule.ruling is PathVerdict.READ:
        if isinstance(why, DamagedData):
            return PathRule(PathVerdict.DAMAGED, DamageFault.DESCRIPTOR_DAMAGED), str(why)
        return PathRule(PathVerdict.NOT_READ), str(why)
    if rule.ruling is PathVerdict.MISSING:
        said += ", and the database has the rows of the container"
    return rule, said
