"""Settings that operators change at run time: pauses, rates and windows of work. No I/O.

While a kind of work is paused, its queued commands are not sent, and commands that were already
sent continue. Outside its windows, a kind of work is also paused. A rate limits the bytes per
second of copies or reconciles; it is sent to the datanodes with each heartbeat answer.
"""

from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from typing import Final

from scm.state.entities import (
    CommandKind,
    CommandPriority,
    ControlKind,
    PendingCommand,
    WorkControl,
    WorkKind,
)
from suture.config.quantity import bytes_text
from suture.config.week_windows import is_open

_WORK: Final = {
    CommandKind.REPLICATE: WorkKind.COPIES,
    CommandKind.RECONSTRUCT: WorkKind.COPIES,
    CommandKind.DELETE: WorkKind.DELETES,
    CommandKind.DELETE_BLOCKS: WorkKind.DELETES,
    CommandKind.RECONCILE: WorkKind.RECONCILES,
}
_RATES: Final = frozenset({ControlKind.NODE_RATE, ControlKind.CLUSTER_RATE})


def works_of(command: PendingCommand) -> tuple[WorkKind, ...]:
    """Return the kinds of work to which a command belongs. The result may be empty."""
    work = _WORK.get(command.kind)
    if work is None:
        return ()
    is_move = work is WorkKind.COPIES and command.priority is CommandPriority.LOW
    return (work, WorkKind.BALANCING) if is_move else (work,)


def is_current(setting: WorkControl, now_ms: int) -> bool:
    """Return True if a run-time setting has not expired."""
    return not setting.until_ms or now_ms < setting.until_ms


def pause_of(
    settings: Iterable[WorkControl], command: PendingCommand, racks: Collection[str], now_ms: int
) -> WorkControl | None:
    """Return the setting that prevents sending a command, or None if there is none.

    `racks` are the racks of the datanodes that the command concerns.
    """
    works = works_of(command)
    for setting in settings:
        if setting.work not in works or not is_current(setting, now_ms):
            continue
        if setting.control is ControlKind.PAUSE and setting.rack in {"", *racks}:
            return setting
        if setting.control is ControlKind.WINDOWS and not is_open(setting.value, now_ms):
            return setting
    return None


def rate_of(settings: Iterable[WorkControl], work: WorkKind, node_count: int) -> int:
    """Return the limit of each datanode for a kind of work, in bytes per second. 0 means no limit.

    A limit for the cluster is divided by `node_count`, the number of healthy datanodes.
    """
    rates = [
        max(1, int(s.value) // (max(1, node_count) if s.control is ControlKind.CLUSTER_RATE else 1))
        for s in settings
        if s.control in _RATES and s.work is work
    ]
    return min(rates, default=0)


def text_of(setting: WorkControl) -> str:
    """Return a sentence for operators that describes a run-time setting."""
    work = setting.work.value
    match setting.control:
        case ControlKind.SAFE_MODE:
            return "safe mode was entered by an operator"
        case ControlKind.PAUSE:
            where = f" on {setting.rack}" if setting.rack else ""
            verb = "is" if setting.work is WorkKind.BALANCING else "are"
            return f"{work} {verb} paused{where}{_until(setting)}"
        case ControlKind.WINDOWS:
            return f"{work} run only in {setting.value} (UTC)"
        case ControlKind.NODE_RATE:
            return f"{work} are limited to {bytes_text(int(setting.value))}/s per datanode"
        case ControlKind.CLUSTER_RATE:
            return f"{work} are limited to {bytes_text(int(setting.value))}/s in the cluster"


def _until(setting: WorkControl) -> str:
    if not setting.until_ms:
        return " until resumed"
    end = datetime.fromtimestamp(setting.until_ms / 1000, UTC)
    return f" until {end:%Y-%m-%d %H:%M:%S} UTC"
