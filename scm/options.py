"""Every option of the control plane: name, unit, default, bounds and meaning, declared once."""

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.errors import Code, Refused
from merkle.replica import CONTAINER_BYTES_MAX

MIB: Final = 1024**2


def _option(default: int, meaning: str, *, low: int, high: int) -> int:
    assert low <= default <= high
    field: int = dataclasses.field(
        default=default, metadata={"meaning": meaning, "low": low, "high": high}
    )
    return field


@dataclass(frozen=True, slots=True, kw_only=True)
class ScmOptions:
    """What may be set in the TOML file or with `--set NAME=VALUE`."""

    replication_factor: int = _option(3, "Replicas of every new container.", low=1, high=10)
    container_bytes_max: int = _option(
        CONTAINER_BYTES_MAX,
        "A container takes blocks up to this many bytes.",
        low=64 * 1024,
        high=CONTAINER_BYTES_MAX,
    )
    heartbeat_interval_ms: int = _option(
        1_000, "How often datanodes are told to call.", low=50, high=60_000
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
        "An open container nobody asked about for this long is closed.",
        low=200,
        high=86_400_000,
    )
    sealed_idle_ms: int = _option(
        30_000,
        "The same for a container that takes no more blocks but waits for commits.",
        low=100,
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
    command_deadline_ms: int = _option(
        720_000, "A command unanswered for this long is given up.", low=2_000, high=86_400_000
    )
    datanode_deadline_margin_ms: int = _option(
        360_000,
        "The datanode's own deadline is this much earlier, so that nothing runs unwatched.",
        low=1_000,
        high=43_200_000,
    )
    maintenance_replica_min: int = _option(
        2,
        "Replicas of a container that stay online while others are in maintenance.",
        low=1,
        high=10,
    )
    inflight_factor_percent: int = _option(
        75,
        "Replicas on their way in the whole cluster, of 20 per healthy node; 0: no limit.",
        low=0,
        high=100,
    )
    repair_grace_ms: int = _option(
        600_000,
        "An unhealthy replica is left so long to be healed in place before it is replaced.",
        low=0,
        high=86_400_000,
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
        "After a start, so long all nodes that were online are waited for before a quorum will do.",
        low=0,
        high=86_400_000,
    )
    safemode_quorum_percent: int = _option(
        80, "Less than this share of them never opens safe mode by itself.", low=0, high=100
    )
    snapshot_keep_count: int = _option(
        10, "Newest snapshots kept on disk; older ones are deleted.", low=1, high=10_000
    )
    rpc_threads: int = _option(16, "Threads that answer calls.", low=2, high=256)
    seed: int = _option(0, "Breaks ties when nodes are chosen.", low=0, high=2**31)
    lmdb_map_bytes: int = _option(
        16 * 1024**3, "Address space of the state; the file grows to it.", low=MIB, high=2**40
    )

    def __post_init__(self) -> None:
        """Check the options against each other."""
        if self.dead_after_ms <= self.stale_after_ms:
            raise Refused(
                Code.INVALID_CONFIG,
                f"dead_after_ms {self.dead_after_ms} must exceed "
                f"stale_after_ms {self.stale_after_ms}",
            )
        if self.datanode_deadline_margin_ms >= self.command_deadline_ms:
            raise Refused(
                Code.INVALID_CONFIG,
                f"datanode_deadline_margin_ms {self.datanode_deadline_margin_ms} must be below "
                f"command_deadline_ms {self.command_deadline_ms}",
            )


def parse(values: Mapping[str, object]) -> ScmOptions:
    """Check `values` one by one and together. Raises Refused(INVALID_CONFIG) naming the option."""
    fields = {field.name: field for field in dataclasses.fields(ScmOptions)}
    checked: dict[str, int] = {}
    for name, value in values.items():
        if name not in fields:
            raise Refused(
                Code.INVALID_CONFIG,
                f"unknown option {name}",
                hint="known: " + ", ".join(sorted(fields)),
            )
        checked[name] = _number(name, value, fields[name].metadata)
    return ScmOptions(**checked)


def _number(name: str, value: object, limits: Mapping[str, int]) -> int:
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            raise Refused(Code.INVALID_CONFIG, f"{name}: {value!r} is not a number") from None
    if not isinstance(value, int) or isinstance(value, bool):
        raise Refused(Code.INVALID_CONFIG, f"{name}: {value!r} is not a whole number")
    if not limits["low"] <= value <= limits["high"]:
        raise Refused(
            Code.INVALID_CONFIG, f"{name}: {value} is outside {limits['low']}..{limits['high']}"
        )
    return value


def load(path: Path | None, settings: Mapping[str, str]) -> ScmOptions:
    """Read the TOML file at `path`, if any; `settings` of the command line win over it."""
    values: dict[str, object] = {}
    if path is not None:
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise Refused(Code.INVALID_CONFIG, f"cannot read {path}: {error}") from error
    return parse({**values, **settings})


def explain() -> str:
    """Return one line per option: name, default, bounds, meaning."""
    lines = []
    for field in dataclasses.fields(ScmOptions):
        low, high = field.metadata["low"], field.metadata["high"]
        lines.append(
            f"{field.name} = {field.default}  # {low}..{high}: {field.metadata['meaning']}"
        )
    return "\n".join(lines)
