"""Every option of the agent, declared once: name, unit, bounds, meaning, default.

The file is TOML; an unknown key is an error. Nothing else may hold a default, and no environment
variable changes one.
"""

import tomllib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
)

from agent.errors import Code, Refused
from merkle.checksum import Algorithm
from merkle.replica import CHUNK_BYTES_MAX, CONTAINER_BYTES_MAX
from scanner.schedule import parse_window

HOUR_S = 3600
DAY_S = 24 * HOUR_S
MIB = 1024 * 1024

Address = Annotated[str, StringConstraints(pattern=r"^(\[[0-9a-fA-F:]+\]|[^:\s]+):\d{1,5}$")]


def _checked_window(text: str) -> str:
    parse_window(text)
    return text


Window = Annotated[str, AfterValidator(_checked_window)]


class Section(BaseModel):
    """One table of the file: frozen, and strict about names."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NodeConfig(Section):
    """Who this datanode is and where it is reached."""

    listen: Address = Field("127.0.0.1:9859", description="Address of the gRPC server, host:port.")
    advertise: Address | None = Field(
        None, description="Address that peers and clients dial; default: what `listen` binds."
    )
    scm: Address = Field("127.0.0.1:9860", description="Address of the SCM, host:port.")
    rack: str = Field("/default-rack", min_length=1, description="Network location.")


class StorageConfig(Section):
    """Where replicas are kept, and how much of a volume may be used."""

    volumes: tuple[Path, ...] = Field(
        min_length=1, max_length=64, description="One directory per disk."
    )
    tree_algorithm: Algorithm = Field(
        Algorithm.XXH3_64, description="How trees fold; crc32c gives Ozone's roots bit for bit."
    )
    reserve_bytes: int = Field(
        256 * MIB, ge=0, description="Free space of a volume that no write may touch."
    )
    container_bytes_max: int = Field(
        CONTAINER_BYTES_MAX, ge=MIB, le=CONTAINER_BYTES_MAX, description="Largest container."
    )
    chunk_bytes_max: int = Field(
        CHUNK_BYTES_MAX, ge=4096, le=CHUNK_BYTES_MAX, description="Largest chunk."
    )
    quarantine_keep_s: int = Field(
        14 * DAY_S, ge=0, description="How long bytes replaced by a repair are kept."
    )
    heal_unhealthy: bool = Field(
        True, description="Let an UNHEALTHY replica return to its former state after a clean read."
    )


class ScanConfig(Section):
    """How often every byte is read again."""

    enabled: bool = Field(True, description="Read replicas in the background.")
    data_interval_s: int = Field(
        7 * DAY_S, ge=60, le=90 * DAY_S, description="Every byte is read once in this time."
    )
    gap_min_s: int = Field(
        900, ge=0, le=DAY_S, description="Shortest time between two scans of one container."
    )
    promise: Literal["refuse", "warn"] = Field(
        "refuse", description="What to do at start when data_interval_s cannot be kept."
    )
    volume_bytes_per_s: int = Field(
        0,
        ge=0,
        le=16 * 1024 * MIB,
        description="Fixed read budget of one volume's scan; 0: what the promise needs, and more "
        "while nobody is disturbed.",
    )
    floor_bytes_per_s: int = Field(
        MIB, ge=64 * 1024, le=1024 * MIB, description="No disturbance slows a scan below it."
    )
    ceiling_bytes_per_s: int = Field(
        512 * MIB, ge=MIB, le=16 * 1024 * MIB, description="Above it no scan goes, however idle."
    )
    reads_per_s_max: int = Field(
        0, ge=0, le=1_000_000, description="Reads of one volume's scan per second; 0: no limit."
    )
    windows: tuple[Window, ...] = Field(
        (), max_length=24, description="Times of the day, UTC, to scan in; none: always."
    )
    start_jitter_s: float = Field(
        60.0, ge=0, le=DAY_S, description="Scans begin at a random moment of this time."
    )
    watch: bool = Field(
        True, description="Scan a closed container soon after its files changed behind our back."
    )


class TaskConfig(Section):
    """How many commands run at once."""

    threads: int = Field(10, ge=1, le=64, description="Threads for reconcile and its kin.")
    queue_depth_max: int = Field(1000, ge=1, le=100_000, description="Commands that may wait.")
    reconcile_share: float = Field(
        0.5, gt=0, le=1, description="Part of the threads that reconcile may take."
    )
    reconcile_deadline_s: int = Field(
        6 * HOUR_S, ge=1, description="A reconcile stops between two chunks after this time."
    )


class ServerConfig(Section):
    """Limits of the gRPC server."""

    threads: int = Field(20, ge=2, le=256, description="Threads that answer RPCs.")
    calls_max: int = Field(
        200, ge=2, le=10_000, description="RPCs under way and waiting; more are refused as BUSY."
    )
    lease_wait_s: float = Field(
        30.0, gt=0, le=600, description="How long a write waits while its container is busy."
    )


class AgentConfig(Section):
    """The whole file."""

    node: NodeConfig = Field(default_factory=NodeConfig)
    storage: StorageConfig
    scan: ScanConfig = Field(default_factory=ScanConfig)
    tasks: TaskConfig = Field(default_factory=TaskConfig)
    server: ServerConfig = Field(default_factory=ServerConfig)
    stop_deadline_s: float = Field(
        20.0, gt=0, le=600, description="How long a clean stop may take before it is forced."
    )


def load(path: Path) -> AgentConfig:
    """Read and check the file at `path`; refuse it whole, naming every wrong key."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Refused(
            Code.INVALID_CONFIG, f"cannot read config file {path}: {error.strerror}"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Refused(Code.INVALID_CONFIG, f"config file {path}: {error}") from error
    try:
        return AgentConfig.model_validate(raw)
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}"
            for item in error.errors()
        )
        raise Refused(Code.INVALID_CONFIG, f"config file {path}: {wrong}") from error
