"""The control plane's options: name, unit, default, bounds and meaning, declared once."""

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
    """The control plane's options, from the TOML file and `--set NAME=VALUE`."""

    replication_factor: Count = Field(
        3, ge=1, le=10, description="Replicas of every new container."
    )
    container_bytes_max: Bytes = Field(
        CONTAINER_BYTES_MAX,
        ge=64 * 1024,
        le=CONTAINER_BYTES_MAX,
        description="A container takes blocks until a replica, copy or shard, has this many bytes.",
    )
    heartbeat_interval_ms: Milliseconds = Field(
        1_000, ge=50, le=60_000, description="Interval of the datanodes' heartbeats."
    )
    stale_after_ms: Milliseconds = Field(
        15_000,
        ge=200,
        le=3_600_000,
        description="A node this long unheard gets no new containers and is no peer.",
    )
    dead_after_ms: Milliseconds = Field(
        60_000, ge=400, description="A node this long unheard counts as dead."
    )
    session_idle_ms: Milliseconds = Field(
        600_000,
        ge=200,
        description="An open container nobody asked about for this long is closed; after 30 s at "
        "most, if it takes no more blocks but waits for commits.",
    )
    close_retry_ms: Milliseconds = Field(
        1_000,
        ge=20,
        le=60_000,
        description="First pause before a close, or a failed copy or delete, is ordered again; "
        "doubles up to 64 times this.",
    )
    reconcile_cooldown_ms: Milliseconds = Field(
        30_000,
        description="A plan may not order a container reconciled again so soon; an operator may.",
    )
    heal: Switch = Field(
        True,
        description="Order replicas that differ or are damaged reconciled without waiting for a "
        "plan.",
    )
    heal_after_ms: Milliseconds = Field(
        10_000,
        description="So long after the report that shows it, so that what is under way settles "
        "first.",
    )
    command_deadline_ms: Milliseconds = Field(
        720_000,
        ge=2_000,
        description="A command unanswered for this long is given up; the datanode itself gives it "
        "up after half of it, so that nothing runs unwatched.",
    )
    deadline_bytes_per_s: Bytes = Field(
        10 * MIB,
        ge=0,
        le=2**40,
        description="A copy or rebuild has the time more that its bytes, read and written, take "
        "at this rate; 0: none. A rebuild has 50 ms more for each block.",
    )
    maintenance_replica_min: Count = Field(
        2,
        ge=1,
        le=10,
        description="Replicas of a container that stay online while others are in maintenance.",
    )
    decommission_replica_min: Count = Field(
        0,
        ge=0,
        le=10,
        description="Good replicas in service elsewhere for which a datanode that leaves waits; "
        "0: as many as were written.",
    )
    managed_racks: str = Field(
        "",
        description="Racks, with commas between, whose datanodes are managed; elsewhere nothing "
        "is written, copied or deleted, and what is there counts; none: all.",
    )
    replication_limit: Count = Field(
        20, ge=1, le=10_000, description="Copies a datanode is given at once."
    )
    inflight_factor_percent: Count = Field(
        75,
        ge=0,
        le=100,
        description="Replicas on their way in all, of replication_limit per healthy node; 0: no "
        "limit.",
    )
    repair_grace_ms: Milliseconds = Field(
        600_000,
        description="An unhealthy replica is left so long to be healed in place before it is "
        "replaced.",
    )
    exclude_failure_count: Count = Field(
        20,
        ge=0,
        le=10_000,
        description="After so many failures in a row of orders to one replica it is excluded for "
        "an hour, or until a person releases it; 0: never. Copies in a row to one "
        "datanode count as one.",
    )
    check_interval_ms: Milliseconds = Field(
        300_000,
        ge=1_000,
        description="Every closed container is looked at in this time, besides when something "
        "changes.",
    )
    verify_interval_ms: Milliseconds = Field(
        300_000,
        ge=1_000,
        description="How often --verify exports a snapshot and applies the plan that comes back.",
    )
    safemode_wait_ms: Milliseconds = Field(
        300_000,
        description="Time that safe mode waits after a start for datanodes that send heartbeats "
        "and have not reported all replicas. Silent datanodes are not waited for after "
        "stale_after_ms. After a cold start, the time is four times as long.",
    )
    safemode_container_percent: Count = Field(
        99,
        ge=0,
        le=100,
        description="If datanodes are let go, safe mode ends when this share of the closed "
        "containers that keys need has been reported.",
    )
    snapshot_keep_count: Count = Field(
        10, ge=1, le=10_000, description="Newest snapshots kept on disk; older ones are deleted."
    )
    snapshot_address: str = Field(
        "",
        description="Address where each snapshot is put as well, for Spark on other machines: "
        "s3://bucket/snapshots, hdfs://namenode:8020/..., file:///...; none: only on this disk.",
    )
    tls_certificate: str = Field(
        "",
        description="PEM file: the certificate of the control plane, with the role scm, and its "
        "issuers.",
    )
    tls_key: str = Field("", description="PEM file: its private key, which nobody else may read.")
    tls_ca: str = Field(
        "", description="PEM file: the authorities whose certificates are believed."
    )
    allow_plaintext: Switch = Field(
        False,
        description="Without certificates, serve on other addresses than loopback all the same.",
    )
    observe_listen: str = Field(
        "",
        description="host:port of the plain HTTP listener: a page of the cluster, /metrics, "
        "/healthz; none: no listener.",
    )
    verify_deadline_ms: Milliseconds = Field(
        7_200_000,
        ge=1_000,
        description="A verification that takes longer is ended and counts as failed.",
    )
    audit_file: str = Field(
        "", description="File for the audit log, one JSON object a line; none: stderr."
    )
    connections_max: Count = Field(
        10_000, ge=2, le=100_000, description="Connections at once; more are closed at once."
    )
    in_flight_bytes: Bytes = Field(
        0,
        ge=0,
        le=2**50,
        description="Memory for requests and answers of calls together; 0 = half of what the "
        "machine, or the control group, has beside 128 MiB.",
    )
    calls_per_s_max: Count = Field(
        5_000,
        ge=0,
        le=1_000_000,
        description="Calls of one caller per second; more are refused as BUSY; 0: no limit.",
    )
    rpc_threads: Count = Field(
        16, ge=2, le=256, description="Calls that are worked on at once; others wait."
    )
    lmdb_map_bytes: Bytes = Field(
        16 * 1024**3,
        ge=MIB,
        le=2**40,
        description="Address space of the state; the file grows to it.",
    )

    def tls_files(self) -> TlsFiles | None:
        """Return the certificate files, None for plaintext."""
        if not self.tls_certificate:
            return None
        return TlsFiles(Path(self.tls_certificate), Path(self.tls_key), Path(self.tls_ca))


def contradictions(chosen: ScmOptions) -> Iterator[Contradiction]:
    """Yield (paths of the options, error text) for each contradiction between options."""
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
    """Read the TOML file at `path`, if any; command-line `settings` override it.

    Raise RefusedError(INVALID_CONFIG), with the file and line of an error in the file.
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
    """Return the value of a command-line setting: parsed as TOML, or the text itself if it is not
    TOML."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def rows_of(chosen: ScmOptions) -> list[dict[str, str]]:
    """Return each option with its effective and its default value, numbers in a readable unit."""
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
    """Return one line per option: name, default, bounds, meaning."""
    return "\n".join(
        f"{option.name} = {option.default}  # "
        + (f"{option.bounds}: " if option.bounds else "")
        + option.meaning
        for option in options(ScmOptions)
    )


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
    lines += [
        f"| `{option.name}` | `{option.default}` | {option.bounds or '-'} | {option.meaning} |"
        for option in options(ScmOptions)
    ]
    return "\n".join(lines) + "\n"
