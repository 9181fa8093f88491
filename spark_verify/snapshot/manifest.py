"""Reads and validates the manifest of a snapshot, without Spark."""

import json
import re
from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields
from typing import Any, Final

from health.rules import Rules
from spark_verify.errors import SnapshotRefused
from spark_verify.input_columns import SCHEMA_VERSION, TABLES
from spark_verify.storage import Storage

INT64_MAX: Final = 2**63 - 1
RULE_MAX: Final = 2**31 - 1  # sums with it can still be compared

SURROGATE: Final = re.compile("[\ud800-\udfff]")
"""Surrogates, which JSON can express and UTF-8 cannot."""

SAME_RELEASE: Final = "use the suture-verify of the same release as the SCM"
SCAN_AGAIN: Final = "export the snapshot again from the SCM, or fix the program that wrote it"


@dataclass(frozen=True, slots=True)
class SnapshotManifest:
    """The manifest of a snapshot."""

    schema_version: int
    snapshot_id: str
    as_of_ms: int
    term: int
    cluster_id: str
    rows: dict[str, int]
    rules: dict[str, int] = field(default_factory=dict)
    """The control plane's values of `health.rules.Rules`, by name."""
    keys_at_risk: dict[str, Any] | None = None
    """Keys with blocks in containers that the control plane considered lost or at risk: their
    number, and the first by name. None if the writer knows no keys, as in an export from Ozone.
    """


def read_manifest(storage: Storage) -> SnapshotManifest:
    """Return the manifest of a snapshot. Raise SnapshotRefused if it is invalid."""
    path = f"{storage.address}/manifest.json"
    if not storage.is_directory():
        raise SnapshotRefused(f"{storage.address} is not a directory", hint=SCAN_AGAIN)
    try:
        fields = json.loads(storage.read_text("manifest.json"))
    except FileNotFoundError as error:
        raise SnapshotRefused(
            f"{storage.address} has no manifest.json",
            hint="check that the directory is a snapshot and its export is complete",
        ) from error
    except (ValueError, RecursionError) as error:  # also invalid UTF-8
        raise SnapshotRefused(f"{path} is not JSON: {error}", hint=SCAN_AGAIN) from error
    return _manifest(path, fields)


def _manifest(path: str, fields: Any) -> SnapshotManifest:
    if not isinstance(fields, dict):
        raise SnapshotRefused(f"{path} is not a JSON object", hint=SCAN_AGAIN)
    version = _field(path, fields, "schema_version", int)
    if version != SCHEMA_VERSION:
        raise SnapshotRefused(
            f"{path} has schema version {version}, this job reads {SCHEMA_VERSION}",
            hint=SAME_RELEASE,
        )
    rows = _field(path, fields, "rows", dict)
    return SnapshotManifest(
        schema_version=version,
        snapshot_id=_field(path, fields, "snapshot_id", str),
        as_of_ms=_field(path, fields, "as_of_ms", int),
        term=_field(path, fields, "term", int),
        cluster_id=_field(path, fields, "cluster_id", str),
        rows={name: _field(path, rows, name, int) for name in TABLES},
        rules=_rules(path, _field(path, {"rules": {}} | fields, "rules", dict)),
        keys_at_risk=_keys_at_risk(path, fields) if "keys_at_risk" in fields else None,
    )


def _keys_at_risk(path: str, fields: dict[str, Any]) -> dict[str, Any]:
    told = _field(path, fields, "keys_at_risk", dict)
    counts = {name: _field(path, told, name, int) for name in ("key_count", "container_count")}
    return counts | {"keys": [_key(path, one) for one in _field(path, told, "keys", list)]}


def _key(path: str, told: Any) -> dict[str, Any]:
    ids = _field(path, _field(path, {"keys": told}, "keys", dict), "container_ids", list)
    numbers = [_field(path, {"container_ids": one}, "container_ids", int) for one in ids]
    return {"key": _field(path, told, "key", str), "container_ids": numbers}


def _rules(path: str, fields: dict[str, Any]) -> dict[str, int]:
    strange = sorted(set(fields) - {one.name for one in dataclass_fields(Rules)})
    if strange:
        raise SnapshotRefused(f"{path}: unknown rules {', '.join(strange)}", hint=SAME_RELEASE)
    return {name: _field(path, fields, name, int, high=RULE_MAX) for name in fields}


def _field(
    path: str, fields: dict[str, Any], name: str, kind: type, *, high: int = INT64_MAX
) -> Any:
    value = fields.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise SnapshotRefused(
            f"{path}: field {name!r} must be {kind.__name__}, is {value!r}", hint=SCAN_AGAIN
        )
    if isinstance(value, int) and value < 0:
        raise SnapshotRefused(f"{path}: field {name!r} is negative: {value}", hint=SCAN_AGAIN)
    if isinstance(value, int) and value > high:
        raise SnapshotRefused(f"{path}: field {name!r} is above {high}: {value}", hint=SCAN_AGAIN)
    if isinstance(value, str) and SURROGATE.search(value):
        raise SnapshotRefused(f"{path}: field {name!r} is no text: {value!r}", hint=SCAN_AGAIN)
    return value
