"""The control plane's options, each with its unit, default, bounds and description."""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import Field
from pydantic.fields import FieldInfo

from merkle.replica import CONTAINER_BYTES_MAX
from suture.config.option_reference import options, quantity_text, unit_of, value_text
from suture.config.section import Bytes, ConfigSection, Count, Milliseconds, Switch
from suture.config.toml_file import read_each
from suture.config.validation import Contradiction, checked
from suture.wire.security.tls import TlsFiles

MIB: Final = 1024**2


class ScmOptions(ConfigSection):
    """The control plane's options. The TOML file and `--set NAME=VALUE` set them."""

    replication_factor: Count = Field(
        3, ge=1, le=10, description="Replicas of every new container."
    )
    container_bytes_max: Bytes = Field(
        CONTAINER_BYTES_MAX,
        ge=64 * 1024,
        le=CONTAINER_BYTES_MAX,
        description="A container is full when a replica (copy or shard) has this many bytes.",
    )
    heartbeat_interval_ms: Milliseconds = Field(
        1_000, ge=50, le=60_000, description="Time between two heartbeats of a datanode."
    )
    stale_after_ms: Milliseconds = Field(
        15_000,
        ge=200,
        le=3_600_000,
        description="A datanode without a heartbeat for this time is STALE: it gets no new "
        "containers, and is not a source of copies.",
    )
    dead_after_ms: Milliseconds = Field(
        60_000, ge=400, description="A datanode without a heartbeat for this time is DEAD."
    )
    session_idle_ms: Milliseconds = Field(
        600_000,
        ge=200,
        description="An open container that no client uses for this time is closed. If it takes no "
        "more blocks and only waits for commits, it is closed after at most 30 s.",
    )
    close_retry_ms: Milliseconds = Field(
        1_000,
        ge=20,
        le=60_000,
        description="First pause before a failed close, copy or delete is ordered again; it doubles"
        " up to 64 times this value.",
    )
    reconcile_cooldown_ms: Milliseconds = Field(
        30_000,
        description="Shortest time between two reconciles of a container by plans; an operator's "
        "reconcile does not wait.",
    )
    heal: Switch = Field(
        True,
        description="Reconcile replicas that differ or are damaged without waiting for a plan.",
    )
    heal_after_ms: Milliseconds = Field(
        10_000,
        description="Time between a report of a difference and its reconcile, so that writes in "
        "progress can end first.",
    )
    command_deadline_ms: Milliseconds = Field(
        720_000,
        ge=2_000,
        description="A command without a result for this time has failed. The datanode stops it "
        "after half of the time, so that it does not run after its failure.",
    )
    deadline_bytes_per_s: Bytes = Field(
        10 * MIB,
        ge=0,
        le=2**40,
        description="A copy or rebuild gets additional time for its bytes, read and written, at "
        "this rate; 0: none. A rebuild also gets 50 ms for each block.",
    )
    maintenance_replica_min: Count = Field(
        2,
        ge=1,
        le=10,
        description="Replicas of a container that must stay online while other replicas are in "
        "maintenance.",
    )
    decommission_replica_min: Count = Field(
        0,
        ge=0,
        le=10,
        description="Healthy replicas in service elsewhere that a decommission waits for; 0: the "
        "replication factor of the container.",
    )
    managed_racks: str = Field(
        "",
        description="Comma-separated racks whose datanodes are managed; none: all. On other racks "
        "nothing is written, copied or deleted, but their replicas count.",
    )
    replication_limit: Count = Field(
        20, ge=1, le=10_000, description="Copies that one datanode may have at the same time."
    )
    inflight_factor_percent: Count = Field(
        75,
        ge=0,
        le=100,
        description="Limit of all copies in progress, as a percentage of replication_limit times "
        "the healthy datanodes; 0: no limit.",
    )
    repair_grace_ms: Milliseconds = Field(
        600_000,
        description="Time that an unhealthy replica gets for a repair in place before it is "
        "replaced.",
    )
    exclude_failure_count: Count = Field(
        20,
        ge=0,
        le=10_000,
        description="After this many consecutive failures of commands for a replica, it is excluded"
        " for an hour, or until an operator releases it; 0: never. Consecutive failed "
        "copies to one datanode count as one.",
    )
    check_interval_ms: Milliseconds = Field(
        300_000,
        ge=1_000,
        description="Every closed container is checked in this interval, and when its replicas "
        "change.",
    )
    verify_interval_ms: Milliseconds = Field(
        300_000,
        ge=1_000,
        description="Interval in which --verify exports a snapshot and applies the resulting plan.",
    )
    safemode_wait_ms: Milliseconds = Field(
        300_000,
        description="Time that safe mode waits after a start for datanodes that send heartbeats and"
        " have not reported all replicas. It waits for silent datanodes until "
        "stale_after_ms. After a cold start, the time is four times as long.",
    )
    safemode_container_percent: Count = Field(
        99,
        ge=0,
        le=100,
        description="If safe mode no longer waits for some datanodes, it ends when this share of "
        "the closed containers that keys need has been reported.",
    )
    snapshot_keep_count: Count = Field(
        10,
        ge=1,
        le=10_000,
        description="Number of snapshots that are kept on disk; older snapshots are deleted.",
    )
    snapshot_address: str = Field(
        "",
        description="Second location of each snapshot, for Spark on other machines: "
        "s3://bucket/snapshots, hdfs://namenode:8020/..., file:///...; none: only on "
        "this disk.",
    )
    tls_certificate: str = Field(
        "",
        description="PEM file: the certificate of the control plane, with the role scm, and its "
        "issuers.",
    )
    tls_key: str = Field(
        "", description="PEM file: the private key of the certificate; only its owner may read it."
    )
    tls_ca: str = Field("", description="PEM file: the trusted certificate authorities.")
    allow_plaintext: Switch = Field(
        False,
        description="Without certificates, serve on addresses other than loopback.",
    )
    observe_listen: str = Field(
        "",
        description="Address of the plain HTTP listener (host:port) with a page of the cluster, "
        "/metrics and /healthz; none: no listener.",
    )
    verify_deadline_ms: Milliseconds = Field(
        7_200_000,
        ge=1_000,
        description="A verification that takes longer is stopped and has failed.",
    )
    audit_file: str = Field(
        "", description="File of the audit log, with one JSON object per line; none: stderr."
    )
    connections_max: Count = Field(
        10_000,
        ge=2,
        le=100_000,
        description="Largest number of connections; new connections above it are closed.",
    )
    in_flight_bytes: Bytes = Field(
        0,
        ge=0,
        le=2**50,
        description="Limit of memory for requests and answers of calls in progress; 0: (memory of "
        "the machine or control group - 128 MiB) / 2.",
    )
    calls_per_s_max: Count = Field(
        5_000,
        ge=0,
        le=1_000_000,
        description="Calls of one caller per second; more are refused with BUSY; 0: no limit.",
    )
    rpc_threads: Count = Field(
        16, ge=2, le=256, description="Calls that are processed at the same time; others wait."
    )
    lmdb_map_bytes: Bytes = Field(
        16 * 1024**3,
        ge=MIB,
        le=2**40,
        description="Address space of the state file, and its largest size.",
    )

    def tls_files(self) -> TlsFiles | None:
        """Return the paths of the certificate files. Return None if TLS is not configured."""
        if not self.tls_certificate:
            return None
        return TlsFiles(Path(self.tls_certificate), Path(self.tls_key), Path(self.tls_ca))


def contradictions(chosen: ScmOptions) -> Iterator[Contradiction]:
    """Yield the contradictions between options.

    Each has the paths of the options and an error text.
    """
    if chosen.dead_after_ms <= chosen.stale_after_ms:
        yield (
            (("dead_after_ms",), ("stale_after_ms",)),
            f"dead_after_ms {chosen.dead_after_ms} must exceed "
            f"stale_after_ms {chosen.stale_after_ms}",
        )
    files = ("tls_certificate", "tls_key", "tls_ca")
    if len({bool(getattr(chosen, name)) for name in files}) > 1:
        yield tuple((name,) for name in files), "set all three, or none"


def load(path: Path | None, settings: Mapping[str, str]) -> ScmOptions:
    """Return the options from the TOML file at `path`, if it is given.

    `settings` override the file. Raise RefusedError(INVALID_CONFIG) if an option is invalid. For an
    error in the file, the message has the line.
    """
    written = read_each([] if path is None else [path])  # drop-ins beside it belong to the agent
    for name, text in settings.items():
        written.values[name] = _setting(text)
        written.places.pop((name,), None)
    return checked(
        ScmOptions,
        written,
        contradictions,
        source="options" if path is None else f"config file {path}",
        hint="suture-scm --show-options lists all options",
    )


def _setting(text: str) -> object:
    """Return the value of a command-line setting.

    The text is parsed as TOML. If it is not valid TOML, the text itself is the value.
    """
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def rows_of(chosen: ScmOptions) -> list[dict[str, str]]:
    """Return each option with its current value and its default, as texts with readable units."""
    return [
        {
            "name": name,
            "value": _value_text(getattr(chosen, name), field),
            "default_value": _value_text(field.default, field),
        }
        for name, field in ScmOptions.model_fields.items()
    ]


def _value_text(value: Any, field: FieldInfo) -> str:
    unit = unit_of(field)
    return value_text(value, None) if unit is None else quantity_text(value, unit)


def explain() -> str:
    """Return one line per option, with its name, default, bounds and description."""
    return "\n".join(
        f"{option.name} = {option.default}  # "
        + (f"{option.bounds}: " if option.bounds else "")
        + option.meaning
        for option in options(ScmOptions)
    )


def document() -> str:
    """Return the part of docs/CONFIGURATION.md about the control plane."""
    lines = [
        "",
        "## The control plane",
        "",
        "`suture-scm --config FILE` reads one TOML file without sections; `--set NAME=VALUE`",
        "overrides it. Changes need a restart. A number has the unit at the end of its name; a",
        "text has its own unit.",
        "",
        "| option | default | bounds | meaning |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| `{option.name}` | `{option.default}` | {option.bounds or '-'} | {option.meaning} |"
        for option in options(ScmOptions)
    ]
    return "\n".join(lines) + "\n"
