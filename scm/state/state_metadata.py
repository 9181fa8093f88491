"""The single values of a state: format version, cluster id, counters, and restore record.

The restore record exists from the restore of a backup until the recovery of the state. Meanwhile,
the control plane does not rely on facts that may have changed after the backup
(`scm.administration.restore_recovery`). Every start is then a cold start, and safe mode ends only
when the state is recovered.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from scm.state import records

DATABASE: Final = b"meta"
RESTORED: Final = b"restored"  # key of the restore record, until the state is recovered
RECOVERED: Final = b"recovered"  # key of the restore record after the recovery
COUNTERS: Final = (
    "next_container_id",
    "next_local_id",
    "next_command_id",
    "next_transaction_id",
    "term",
)

CONTAINER_GAP: Final = 10_000
"""Number of container ids that a restore skips. Its recovery skips as many again.

Containers that no reachable datanode has may use these ids. The number is small, because loops over
all containers visit all ids. It is sufficient, because nothing is allocated before the datanodes
have reported.
"""

_US: Final = 1_000  # in a millisecond


@dataclass(frozen=True, slots=True)
class SingleValues:
    """The single values that every state has."""

    format_version: int
    cluster_id: str
    counters: dict[str, int]


def read(get: Callable[[bytes], Any]) -> SingleValues:
    """Read the single values. `get` returns the row of a key.

    Raise DamagedRow if a value is missing or damaged, or if the format version is not supported.
    """

    def value(name: str) -> Any:
        row = get(name.encode())
        if row is None:
            raise records.DamagedRow(f"{name} is missing")
        return records.unpack(bytes(row), 1)[0]

    version = value("format_version")
    if version != records.FORMAT_VERSION:
        raise records.DamagedRow(
            f"format version {version}, this program reads {records.FORMAT_VERSION}"
        )
    counters = {name: int(value(name)) for name in COUNTERS}
    return SingleValues(version, str(value("cluster_id")), counters)


@dataclass(frozen=True, slots=True)
class RestoreRecord:
    """The backup from which the state was restored.

    `unfinished` are the containers that were open or not completely closed at the time of the
    backup.
    """

    taken_at_ms: int
    first_new_container_id: int  # the backup has no container with this id or a higher one
    unfinished: tuple[int, ...]
    end_container_id: int = 0  # first container id after the recovery; 0 = not recovered


RESTORE_RECORD: Final = records.row_format(RestoreRecord)


def counters_anew(counters: dict[str, int], now_ms: int) -> dict[str, int]:
    """Return the counters of a restored state. Each is above all numbers assigned after the backup.

    The new values are computed from the clock. Counters begin at 1, and no SCM assigns a million
    blocks, transactions or commands per second, or starts once per second. Therefore, each counter
    is lower than the time in its unit, however often the state was restored.
    """
    least = {
        "next_container_id": counters["next_container_id"] + CONTAINER_GAP,
        "next_local_id": now_ms * _US,
        "next_command_id": now_ms * _US,
        "next_transaction_id": now_ms * _US,
        "term": now_ms // 1_000,
    }
    return {name: max(number, least[name]) for name, number in counters.items()}
