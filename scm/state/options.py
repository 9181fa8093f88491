"""The control plane's options: name, unit, default, bounds and meaning, declared once."""

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from merkle.replica import CONTAINER_BYTES_MAX
from suture.config.quantity import bytes_text, duration_text, parse_bytes, parse_duration_s
from suture.config.toml_file import read_each
from suture.errors import Code, RefusedError
from suture.wire.security.tls import TlsFiles

MIB: Final = 1024**2


def _option(default: int, meaning: str, *, low: int, high: int) -> int:
    assert low <= default <= high
    field: int = dataclasses.field(
        default=default, metadata={"meaning": meaning, "low": low, "high": high}
    )
    return field


def _path(meaning: str) -> str:
    field: str = dataclasses.field(default="", metadata={"meaning": meaning})
    return field


def _switch(meaning: str, *, default: bool = False) -> bool:
    field: bool = dataclasses.field(default=default, metadata={"meaning": meaning})
    return field


@dataclass(frozen=True, slots=True, kw_only=True)
class ScmOptions:
    """The control plane's options, from the TOML file and `--set NAME=VALUE`."""

    replication_factor: int = _option(3, "Replicas of every new container.", low=1, high=10)
    container_bytes_max: int = _option(
        CONTAINER_BYTES_MAX,
        "A container takes blocks until a replica, copy or shard, has this many bytes.",
        low=64 * 1024,
        high=CONTAINER_BYTES_MAX,
    )
    heartbeat_interval_ms: int = _option(
        1_000, "Interval of the datanodes' heartbeats.", low=50, high=60_000
    )
    stale_after_ms: int = _option(
        15_000,
        "A node this long unheard gets no new containers and is no peer.",
        low=200,
        high=3_600_000,
    )
    dead_after_ms: int = _option(
        60_000, "A node this long unheard counts as dead.", low=400, high=86_400_000
    )
    session_idle_ms: int = _option(
        600_000,
        "An open container nobody asked about for this long is closed; after 30 s at most, if it "
        "takes no more blocks but waits for commits.",
        low=200,
        high=86_400_000,
    )
    close_retry_ms: int = _option(
        1_000,
        "First pause before a close, or a failed copy or delete, is ordered again; doubles up to "
        "64 times this.",
        low=20,
        high=60_000,
    )
    reconcile_cooldown_ms: int = _option(
        30_000,
        "A plan may not order a container reconciled again so soon; an operator may.",
        low=0,
        high=86_400_000,
    )
    heal: bool = _switch(
        "Order replicas that differ or are damaged reconciled without waiting for a plan.",
        default=True,
    )
    heal_after_ms: int = _option(
        10_000,
        "So long after the report that shows it, so that what is under way settles first.",
        low=0,
        high=86_400_000,
    )
    command_deadline_ms: int = _option(
        720_000,
        "A command unanswered for this long is given up; the datanode itself gives it up after "
        "half of it, so that nothing runs unwatched.",
        low=2_000,
        high=86_400_000,
    )
    deadline_bytes_per_s: int = _option(
        10 * MIB,
        "A copy or rebuild has the time more that its bytes, read and written, take at this rate; "
        "0: none. A rebuild has 50 ms more for each block.",
        low=0,
        high=2**40,
    )
    maintenance_replica_min: int = _option(
        2,
        "Replicas of a container that stay online while others are in maintenance.",
        low=1,
        high=10,
    )
    decommission_replica_min: int = _option(
        0,
        "Good replicas in service elsewhere for which a datanode that leaves waits; 0: as many as "
        "were written.",
        low=0,
        high=10,
    )
    managed_racks: str = _path(
        "Racks, with commas between, whose datanodes are managed; elsewhere nothing is written, "
        "copied or deleted, and what is there counts; none: all."
    )
    replication_limit: int = _option(
        20,
        "Copies a datanode is given at once.",
        low=1,
        high=10_000,
    )
    inflight_factor_percent: int = _option(
        75,
        "Replicas on their way in all, of replication_limit per healthy node; 0: no limit.",
        low=0,
        high=100,
    )
    repair_grace_ms: int = _option(
        600_000,
        "An unhealthy replica is left so long to be healed in place before it is replaced.",
        low=0,
        high=86_400_000,
    )
    exclude_failure_count: int = _option(
        20,
        "After so many failures in a row of orders to one replica it is excluded for an hour, or "
        "until a person releases it; 0: never. Copies in a row to one datanode count as one.",
        low=0,
        high=10_000,
    )
    check_interval_ms: int = _option(
        300_000,
        "Every closed container is looked at in this time, besides when something changes.",
        low=1_000,
        high=86_400_000,
    )
    verify_interval_ms: int = _option(
        300_000,
        "How often --verify exports a snapshot and applies the plan that comes back.",
        low=1_000,
        high=86_400_000,
    )
    safemode_wait_ms: int = _option(
        300_000,
        "After a start, how long safe mode waits for datanodes that call and have not named all "
        "their replicas; silent ones are let go after stale_after_ms. After a cold start it waits "
        "four times as long, for all datanodes that are known.",
        low=0,
        high=86_400_000,
    )
    safemode_container_percent: int = _option(
        99,
        "If datanodes are let go, safe mode ends when this share of the closed containers that "
        "keys need has been reported.",
        low=0,
        high=100,
    )
    snapshot_keep_count: int = _option(
        10, "Newest snapshots kept on disk; older ones are deleted.", low=1, high=10_000
    )
    snapshot_address: str = _path(
        "Address where each snapshot is put as well, for Spark on other machines: "
        "s3://bucket/snapshots, hdfs://namenode:8020/..., file:///...; none: only on this disk."
    )
    tls_certificate: str = _path(
        "PEM file: the certificate of the control plane, with the role scm, and its issuers."
    )
    tls_key: str = _path("PEM file: its private key, which nobody else may read.")
    tls_ca: str = _path("PEM file: the authorities whose certificates are believed.")
    allow_plaintext: bool = _switch(
        "Without certificates, serve on other addresses than loopback all the same."
    )
    observe_listen: str = _path(
        "host:port of the plain HTTP listener: a page of the cluster, /metrics, /healthz; none: no "
        "listener."
    )
    verify_deadline_ms: int = _option(
        7_200_000,
        "A verification that takes longer is ended and counts as failed.",
        low=1_000,
        high=86_400_000,
    )
    audit_file: str = _path("File for the audit log, one JSON object a line; none: stderr.")
    connections_max: int = _option(
        10_000, "Connections at once; more are closed at once.", low=2, high=100_000
    )
    in_flight_bytes: int = _option(
        0,
        "Memory for requests and answers of calls together; 0 = half of what the machine, or the "
        "control group, has beside 128 MiB.",
        low=0,
        high=2**50,
    )
    calls_per_s_max: int = _option(
        5_000,
        "Calls of one caller per second; more are refused as BUSY; 0: no limit.",
        low=0,
        high=1_000_000,
    )
    rpc_threads: int = _option(
        16, "Calls that are worked on at once; others wait.", low=2, high=256
    )
    lmdb_map_bytes: int = _option(
        16 * 1024**3, "Address space of the state; the file grows to it.", low=MIB, high=2**40
    )

    def __post_init__(self) -> None:
        """Check the options against each other."""
        if self.dead_after_ms <= self.stale_after_ms:
            raise RefusedError(
                Code.INVALID_CONFIG,
                f"dead_after_ms {self.dead_after_ms} must exceed "
                f"stale_after_ms {self.stale_after_ms}",
            )
        if len({bool(path) for path in (self.tls_certificate, self.tls_key, self.tls_ca)}) > 1:
            raise RefusedError(
                Code.INVALID_CONFIG, "tls_certificate, tls_key and tls_ca: set all three, or none"
            )

    def tls_files(self) -> TlsFiles | None:
        """Return the certificate files, None for plaintext."""
        if not self.tls_certificate:
            return None
        return TlsFiles(Path(self.tls_certificate), Path(self.tls_key), Path(self.tls_ca))


def parse(values: Mapping[str, object]) -> ScmOptions:
    """Check `values` one by one and together. Raise RefusedError(INVALID_CONFIG) naming the
    option.
    """
    fields = {field.name: field for field in dataclasses.fields(ScmOptions)}
    checked: dict[str, Any] = {}
    for name, value in values.items():
        if name not in fields:
            raise RefusedError(
                Code.INVALID_CONFIG,
                f"unknown option {name}",
                hint="known: " + ", ".join(sorted(fields)),
            )
        checked[name] = _checked(name, value, fields[name])
    return ScmOptions(**checked)


def _checked(name: str, value: object, field: "dataclasses.Field[Any]") -> object:
    if isinstance(field.default, str):
        if not isinstance(value, str):
            raise RefusedError(Code.INVALID_CONFIG, f"{name}: {value!r} is not a text")
        if "\0" in value:
            raise RefusedError(Code.INVALID_CONFIG, f"{name}: {value!r} holds a NUL character")
        return value
    if isinstance(field.default, bool):
        words = {"true": True, "false": False, True: True, False: False}
        if not isinstance(value, str | bool) or value not in words:
            raise RefusedError(Code.INVALID_CONFIG, f"{name}: {value!r} is not true or false")
        return words[value]
    return _number(name, value, field.metadata)


def _number(name: str, value: object, limits: Mapping[str, int]) -> int:
    if isinstance(value, str):
        value = _spoken(name, value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise RefusedError(Code.INVALID_CONFIG, f"{name}: {value!r} is not a whole number")
    if not limits["low"] <= value <= limits["high"]:
        raise RefusedError(
            Code.INVALID_CONFIG, f"{name}: {value} is outside {limits['low']}..{limits['high']}"
        )
    return value


def _spoken(name: str, text: str) -> int:
    """Return the value of a text with its unit, such as `15s` or `16GiB`, in the option's unit."""
    try:
        if text.strip().lstrip("-").isdigit():
            return int(text)
        if name.endswith("_ms"):
            return round(parse_duration_s(text) * 1000)
        if "_bytes" in name:
            return parse_bytes(text)
    except ValueError as error:
        raise RefusedError(Code.INVALID_CONFIG, f"{name}: {error}") from None
    raise RefusedError(Code.INVALID_CONFIG, f"{name}: {text!r} is not a number")


def load(path: Path | None, settings: Mapping[str, str]) -> ScmOptions:
    """Read the TOML file at `path`, if any; command-line `settings` override it.

    Raise RefusedError(INVALID_CONFIG), with the file and line of an error in the file.
    """
    written = read_each([] if path is None else [path])  # drop-ins beside it belong to the agent
    try:
        return parse({**written.values, **settings})
    except RefusedError as error:
        places = {name: place for (name, *_), place in written.places.items()}
        named = [w for w in re.findall(r"\w+", str(error)) if w in places and w not in settings]
        if not named:
            raise
        raise RefusedError(error.code, f"{places[named[0]]}: {error}", hint=error.hint) from error


def rows_of(options: ScmOptions) -> list[dict[str, str]]:
    """Return each option with its effective and its default value, as they are written in the
    file."""
    return [
        {
            "name": field.name,
            "value": _written(field.name, getattr(options, field.name)),
            "default_value": _written(field.name, field.default),
        }
        for field in dataclasses.fields(ScmOptions)
    ]


def explain() -> str:
    """Return one line per option: name, default, bounds, meaning."""
    lines = []
    for field in dataclasses.fields(ScmOptions):
        limits = field.metadata
        bounds = f"{limits['low']}..{limits['high']}: " if "low" in limits else ""
        lines.append(f"{field.name} = {json.dumps(field.default)}  # {bounds}{limits['meaning']}")
    return "\n".join(lines)


def document() -> str:
    """Return the control plane's part of docs/CONFIGURATION.md."""
    lines = [
        "",
        "## The control plane",
        "",
        "`suture-scm --config FILE` reads one TOML file without sections; `--set NAME=VALUE` wins",
        "over it. Changes wait for a restart. A number is in the unit that its name ends in; text",
        "brings its own.",
        "",
        "| option | default | bounds | meaning |",
        "|---|---|---|---|",
    ]
    for field in dataclasses.fields(ScmOptions):
        limits = field.metadata
        bounds = "-"
        if "low" in limits:
            bounds = (
                f"{_written(field.name, limits['low'])} to {_written(field.name, limits['high'])}"
            )
        default = _written(field.name, field.default)
        lines.append(f"| `{field.name}` | `{default}` | {bounds} | {limits['meaning']} |")
    return "\n".join(lines) + "\n"


def _written(name: str, value: Any) -> str:
    """Return a value as it is written in the file."""
    if isinstance(value, bool | str):
        return json.dumps(value)
    if name.endswith("_ms"):
        return duration_text(value / 1000)
    return bytes_text(value) if "_bytes" in name else str(value)
