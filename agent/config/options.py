"""Declaration of all options of the agent.

Each option has a name, a unit, bounds, a default and a description. The config file is TOML, and is
followed by drop-in files in conf.d (suture/config/toml_file.py). An unknown key is an error. All
defaults are declared in this module. No environment variable changes an option. A number has its
unit in the suffix of the key, and a text contains its unit: `data_interval_s = 604800` equals
`data_interval_s = "7d"`. SIGHUP applies changes of the options that are declared `live`. Changes of
the other options need a restart.
"""

import re
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

from merkle.checksum import Algorithm
from merkle.replica import CONTAINER_BYTES_MAX
from scanner.schedule import parse_window
from suture.config.section import (
    LIVE,
    Address,
    AddressOrNone,
    Bytes,
    BytesPerS,
    ConfigSection,
    Count,
    Seconds,
    Switch,
    WholeSeconds,
    checked_port,
)

CONFIG_PATH: Final = Path("/etc/suture/agent.toml")
HOUR_S = 3600
DAY_S = 24 * HOUR_S
MIB = 1024 * 1024
OZONE_SCHEME: Final = "ozone://"
ScmAddress = Annotated[
    str,
    StringConstraints(pattern=r"^(ozone://)?(\[[0-9a-fA-F:]+\]|[^:/\s]+):\d{1,5}$"),
    AfterValidator(checked_port),
]


OZONE_VERSIONS: Final = {7: "1.4", 8: "2.0", 9: "2.1", 10: "2.2"}
"""Releases of Ozone by their layout version, the on-disk format number (HDDSLayoutFeature)."""
DIRECTORY: Final = re.compile(r"|/.*|file:///.*|(s3|s3a|s3n|hdfs|viewfs)://[^/@?#\s]+[^@#\s]*")


def _checked_directory(text: str) -> str:
    if not DIRECTORY.fullmatch(text):  # the text may contain credentials, so it is not shown
        raise ValueError(
            "expected an absolute path, or an address without credentials like s3a://bucket/reports"
        )
    return text


def _checked_window(text: str) -> str:
    parse_window(text)
    return text


def _several(value: object) -> object:
    """Return a text as a tuple with one element. Return other values unchanged."""
    return (value,) if isinstance(value, str) else value


def _layout_of(value: object) -> object:
    """Return the layout version of a release of Ozone, for example 10 for "2.2".

    A value that is not a text or a decimal number is returned unchanged. Raise ValueError if the
    release is unknown.
    """
    if not isinstance(value, str | float):
        return value
    layouts = {version: layout for layout, version in OZONE_VERSIONS.items()}
    if str(value) not in layouts:
        raise ValueError(f"invalid version {value!r}: expected one of {', '.join(layouts)}")
    return layouts[str(value)]


Window = Annotated[str, AfterValidator(_checked_window)]
Directory = Annotated[str, AfterValidator(_checked_directory)]


class NodeConfig(ConfigSection):
    """Identity and addresses of this datanode."""

    listen: Address = Field("127.0.0.1:9859", description="Address of the gRPC server, host:port.")
    advertise: Address | None = Field(
        None,
        description="Address that peers and clients connect to; none: the address that `listen` "
        "binds.",
        examples=["datanode1.example.org:9859"],
    )
    scm: Annotated[tuple[ScmAddress, ...], BeforeValidator(_several)] = Field(
        ("127.0.0.1:9860",),
        min_length=1,
        max_length=9,
        description="Address of the SCM, host:port, or a list; the agent obeys the SCM with the "
        "highest term. An address of Apache Ozone's SCM begins with ozone:// and has "
        "the port for datanodes.",
    )
    rack: str = Field(
        "/default-rack",
        min_length=1,
        description="Rack of the datanode, as a path in the network topology.",
    )
    in_flight_bytes: Bytes = Field(
        0,
        ge=0,
        description="Limit of memory for data of calls, tasks and scans in progress; 0: (memory of "
        "the machine or control group - 128 MiB) / 2.",
    )


class StorageConfig(ConfigSection):
    """Location of replicas, and limits on the use of a volume."""

    volumes: tuple[Path, ...] = Field(
        min_length=1,
        max_length=64,
        description="One directory per disk.",
        examples=[("/var/lib/suture/volume1",)],
    )
    tree_algorithm: Algorithm = Field(
        Algorithm.XXH3_64,
        description="Checksum algorithm of the Merkle tree; crc32c gives the same roots as Ozone.",
    )
    reserve_bytes: Bytes = Field(
        256 * MIB, ge=0, description="Free space of a volume that writes do not use."
    )
    container_bytes_max: Bytes = Field(
        CONTAINER_BYTES_MAX,
        ge=MIB,
        le=CONTAINER_BYTES_MAX,
        description="Largest size of a container.",
    )
    quarantine_keep_s: WholeSeconds = Field(
        14 * DAY_S,
        ge=0,
        description="Time that data stays in quarantine, such as bytes that a repair replaced.",
        json_schema_extra=LIVE,
    )
    verification_keep_s: WholeSeconds = Field(
        0,
        ge=0,
        description="Time that files of the verification log are kept; 0: permanently.",
    )


class ScanConfig(ConfigSection):
    """Interval and speed of the scans."""

    enabled: Switch = Field(
        True, description="Scan replicas in the background, and ask peers to prove chunks."
    )
    data_interval_s: WholeSeconds = Field(
        7 * DAY_S,
        ge=60,
        le=90 * DAY_S,
        description="Scan interval: every byte is read at least once in this time.",
    )
    gap_min_s: WholeSeconds = Field(
        900,
        ge=0,
        le=DAY_S,
        description="Shortest time between two scans of one container.",
        json_schema_extra=LIVE,
    )
    promise: Literal["refuse", "warn"] = Field(
        "refuse", description="Action at start if the disks are too slow for data_interval_s."
    )
    volume_bytes_per_s: BytesPerS = Field(
        0,
        ge=0,
        le=16 * 1024 * MIB,
        description="Fixed read rate of the scan of a volume; 0: the rate that data_interval_s "
        "needs, and more while clients do not use the disk.",
        json_schema_extra=LIVE,
    )
    floor_bytes_per_s: BytesPerS = Field(
        MIB,
        ge=64 * 1024,
        le=1024 * MIB,
        description="Lowest read rate of a scan, however busy the disk is.",
        json_schema_extra=LIVE,
    )
    ceiling_bytes_per_s: BytesPerS = Field(
        0,
        ge=0,
        le=16 * 1024 * MIB,
        description="Highest read rate of a scan, even if the disk is idle; 0: no limit.",
        json_schema_extra=LIVE,
    )
    parity_interval_s: WholeSeconds = Field(
        30 * DAY_S,
        ge=0,
        le=365 * DAY_S,
        description="Interval in which the shards of each erasure-coded container are compared with"
        " each other; 0: never.",
    )
    challenge_interval_s: WholeSeconds = Field(
        60,
        ge=0,
        le=DAY_S,
        description="Time between two requests to a peer to prove that it has a chunk; 0: never.",
    )
    windows: tuple[Window, ...] = Field(
        (),
        max_length=24,
        description="Times of day (UTC) in which scans run; none: always.",
        json_schema_extra=LIVE,
    )
    start_jitter_s: Seconds = Field(
        60.0,
        ge=0,
        le=DAY_S,
        description="After a start, scans begin after a random time up to this one.",
    )
    watch: Switch = Field(
        True, description="Scan a closed container soon after another program changes its files."
    )


class TaskConfig(ConfigSection):
    """Limits on concurrent commands."""

    threads: Count = Field(
        0,
        ge=0,
        le=64,
        description="Copies, reconstructions and reconciles at once; 0: 2 per volume, at least 10.",
    )
    copy_floor_bytes_per_s: BytesPerS = Field(
        32 * MIB,
        ge=MIB,
        le=16 * 1024 * MIB,
        description="Lowest total rate of the copies that this datanode sends, however busy the "
        "disks are.",
    )
    reconcile_proof_age_s: WholeSeconds = Field(
        DAY_S,
        ge=0,
        le=90 * DAY_S,
        description="If the complete replica was read within this time, only the data that a "
        "reconcile changed is read after it; older: the complete replica; 0: always the"
        " complete replica.",
    )
    prove_deletes: Switch = Field(
        True,
        description="Delete a surplus replica only after another replica has proven that its disk "
        "has the data; false: delete it when the control plane orders it.",
    )
    delete_proof_age_s: WholeSeconds = Field(
        HOUR_S,
        ge=0,
        le=90 * DAY_S,
        description="A replica that was read completely within this time is not read again to prove"
        " a delete; 0: it is always read.",
    )
    reconstruct_bytes_per_s: int = Field(
        0,
        ge=0,
        le=16 * 1024 * MIB,
        description="Read rate limit of a reconstruction, in bytes per second; 0: no limit.",
    )


class ServerConfig(ConfigSection):
    """Limits of the gRPC server."""

    threads: Count = Field(
        20, ge=2, le=256, description="RPCs that are processed at the same time; others wait."
    )
    connections_max: Count = Field(
        1_000,
        ge=2,
        le=100_000,
        description="Largest number of connections; new connections above it are closed.",
    )
    calls_per_s_max: Count = Field(
        5_000,
        ge=0,
        le=1_000_000,
        description="RPCs of one caller per second; more are refused with BUSY; 0: no limit.",
    )


class TlsConfig(ConfigSection):
    """Certificates; changed files are read again."""

    certificate: Path | None = Field(
        None,
        description="PEM file: the certificate of this datanode (role peer) and its issuers.",
        examples=["/etc/suture/tls/datanode.pem"],
    )
    key: Path | None = Field(
        None,
        description="PEM file: the private key; only its owner may read it.",
        examples=["/etc/suture/tls/datanode.key"],
    )
    ca: Path | None = Field(
        None,
        description="PEM file: the trusted certificate authorities.",
        examples=["/etc/suture/tls/ca.pem"],
    )
    allow_plaintext: Switch = Field(
        False, description="Without certificates, serve and call addresses other than loopback."
    )


class ObserveConfig(ConfigSection):
    """The HTTP listener and the audit log."""

    listen: AddressOrNone = Field(
        "127.0.0.1:9861",
        description='Address of the plain HTTP listener with metrics, health and a page; "": none.',
    )
    names: tuple[str, ...] = Field(
        (),
        description="More host names that requests to the HTTP listener may contain, beside its "
        "addresses, localhost, the host name and the name in node.advertise.",
        examples=[["dn1.example.net"]],
    )
    audit_file: Path | None = Field(
        None,
        description="File of the audit log, with one JSON object per line; none: written to the "
        "other logs.",
        examples=["/var/log/suture/audit.jsonl"],
    )


class ReportConfig(ConfigSection):
    """Reports of all replicas as Parquet files, for `suture-verify --reports`."""

    export: Directory = Field(
        "",
        description="Directory for the reports of all datanodes: a path, or an address of s3a://, "
        'hdfs:// or file://; "": none. It needs the extra `reports`.',
        examples=["s3a://cluster/reports"],
    )
    interval_s: WholeSeconds = Field(
        HOUR_S,
        ge=1,
        le=7 * DAY_S,
        description="Time between two reports; the first is written after the start.",
    )
    keep_count: Count = Field(
        3, ge=2, le=1_000, description="Number of reports of this datanode that are kept."
    )


class OzoneConfig(ConfigSection):
    """Options of an agent that is a datanode of an Apache Ozone cluster.

    Such an agent serves Ozone's datanodes and clients. Its control plane may be Ozone's storage
    container manager (node.scm = "ozone://host:9861").
    """

    listen: AddressOrNone = Field(
        "",
        description="Address for Ozone's datanodes and clients, host:port (Ozone's default port is "
        '9859); "": none. It is plaintext unless `conf` is set.',
    )
    conf: str = Field(
        "",
        description="Directory with the ozone-site.xml of a secure cluster, such as /etc/ozone, "
        'for Kerberos, TLS and tokens; "": not secure.',
    )
    replication_listen: AddressOrNone = Field(
        "",
        description="Address for copies between datanodes of a secure cluster, host:port (Ozone's "
        'default port is 9886); "": none.',
    )
    certificate_dir: str = Field(
        "", description="Directory for this datanode's key and certificate in a secure cluster."
    )
    heartbeat_interval_s: Seconds = Field(
        30.0,
        ge=0.1,
        le=300,
        description="Longest time between two heartbeats to Ozone's SCM; hdds.heartbeat.interval of"
        " Ozone's datanodes.",
    )
    layout_version: Annotated[Count, BeforeValidator(_layout_of)] = Field(
        10,
        ge=1,
        le=1_000,
        description='Version of Ozone\'s SCM ("1.4", "2.0", "2.1" or "2.2") or its layout version '
        "(7, 8, 9 or 10); the SCM rejects datanodes of another one.",
    )
    compress_copies: Switch = Field(
        False,
        description="Compress containers with zstd that are sent or fetched by order of Ozone's "
        "SCM, for slow links.",
    )


class AgentConfig(ConfigSection):
    """All options of the agent."""

    node: NodeConfig = Field(default_factory=NodeConfig)
    storage: StorageConfig
    scan: ScanConfig = Field(default_factory=ScanConfig)
    tasks: TaskConfig = Field(default_factory=TaskConfig)
    server: ServerConfig = Field(default_factory=ServerConfig)
    tls: TlsConfig = Field(default_factory=TlsConfig)
    observe: ObserveConfig = Field(default_factory=ObserveConfig)
    report: ReportConfig = Field(default_factory=ReportConfig)
    ozone: OzoneConfig = Field(default_factory=OzoneConfig)
    stop_deadline_s: Seconds = Field(
        20.0,
        gt=0,
        le=600,
        description="Longest time of a clean stop; keep it below TimeoutStopSec of the unit.",
    )
