"""Reads and validates the manifest of a snapshot, without Spark."""

from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter, ValidationError

from health.rules import Rules
from health.tables.snapshot_columns import SCHEMA_VERSION
from spark_verify.errors import SnapshotRefused
from spark_verify.input_columns import TABLES
from spark_verify.storage import Storage

Version = Annotated[int, Field(ge=SCHEMA_VERSION, le=SCHEMA_VERSION)]
Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
RuleValue = Annotated[int, Field(ge=0, le=2**31 - 1)]  # bounded, so that sums do not overflow

SAME_RELEASE: Final = "use the suture-verify of the same release as the SCM"
SCAN_AGAIN: Final = "export the snapshot again from the SCM, or fix the program that wrote it"


@dataclass(frozen=True, slots=True)
class KeyAtRisk:
    """A key with blocks in containers that the SCM considered lost or at risk, and the ids of these
    containers."""

    key: str
    container_ids: list[Count]


@dataclass(frozen=True, slots=True)
class KeysAtRisk:
    """All keys with blocks in containers that are lost or at risk.

    `key_count` is the number of these keys. `keys` has only the first of them, by name.
    """

    key_count: Count
    container_count: Count
    keys: list[KeyAtRisk]


@dataclass(frozen=True, slots=True)
class SnapshotManifest:
    """The manifest of a snapshot. `FROM_JSON` checks the types and the bounds of its fields."""

    schema_version: Version
    snapshot_id: str
    as_of_ms: Count
    term: Count
    cluster_id: str
    rows: dict[str, Count]
    rules: dict[str, RuleValue] = field(default_factory=dict)
    """The SCM's values for `health.rules.Rules`, by name."""
    keys_at_risk: KeysAtRisk | None = None
    """The keys at risk. None if the writer of the snapshot knows no keys, as in an export from
    Ozone."""


FROM_JSON: Final = TypeAdapter(SnapshotManifest)


def read_manifest(storage: Storage) -> SnapshotManifest:
    """Read the manifest of a snapshot. Raise SnapshotRefused if the manifest is missing or
    invalid."""
    path = f"{storage.address}/manifest.json"
    try:
        manifest = FROM_JSON.validate_json(storage.read_text("manifest.json"), strict=True)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SnapshotRefused(
            f"{storage.address} has no manifest.json",
            hint="check that the directory is a snapshot and its export is complete",
        ) from error
    except ValidationError as error:
        raise _refused(path, error.errors()[0]) from error
    except ValueError as error:  # invalid UTF-8
        raise SnapshotRefused(f"{path} is not JSON: {error}", hint=SCAN_AGAIN) from error
    if missing := sorted(TABLES.keys() - manifest.rows):
        raise SnapshotRefused(f"{path}: no rows of {', '.join(missing)}", hint=SCAN_AGAIN)
    strange = sorted(manifest.rules.keys() - {one.name for one in dataclass_fields(Rules)})
    if strange:
        raise SnapshotRefused(f"{path}: unknown rules {', '.join(strange)}", hint=SAME_RELEASE)
    return manifest


def _refused(path: str, fault: Any) -> SnapshotRefused:
    """Return the error for an invalid manifest. `fault` is the first fault in the manifest."""
    if fault["type"] == "json_invalid":
        reason = fault["msg"].removeprefix("Invalid JSON: ")
        return SnapshotRefused(f"{path} is not JSON: {reason}", hint=SCAN_AGAIN)
    if fault["loc"] == ("schema_version",) and type(fault["input"]) is int:
        return SnapshotRefused(
            f"{path} has schema version {fault['input']}, this job reads {SCHEMA_VERSION}",
            hint=SAME_RELEASE,
        )
    where = ".".join(map(str, fault["loc"])) or "the document"
    return SnapshotRefused(
        f"{path}: {where}: {fault['msg']}, is {fault['input']!r}", hint=SCAN_AGAIN
    )
