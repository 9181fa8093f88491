"""The SCM's decision about this datanode, and the known SCM starts, stored on every volume.

If the SCM is replaced or loses its state, the datanode reports the stored decision when it
registers. The files of the volumes may differ if a write failed. The file with the highest version
is then used.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from agent.store.files.layout import VolumeLayout
from agent.store.volumes.sealed_file import read_sealed, sealed
from suture.errors import SutureError
from suture.runtime.durable import replace_file

NAME: Final = "NODE_STATE"
FILE_BYTES_MAX: Final = 4_096
IN_SERVICE: Final = "IN_SERVICE"
OP_STATES: Final = frozenset(
    {IN_SERVICE, "ENTERING_MAINTENANCE", "IN_MAINTENANCE", "DECOMMISSIONING", "DECOMMISSIONED"}
)


@dataclass(frozen=True, slots=True)
class SeenStart:
    """A start of an SCM process, and the highest state number that it has sent."""

    start_id: str
    term: int
    state_number: int


@dataclass(frozen=True, slots=True)
class NodeState:
    """Operational state of this datanode.

    `op_state` is "" if the SCM has sent none. `op_expiry_ms` is wall clock time in milliseconds, or
    0 if the state does not expire. `seen_starts` has the known starts of this cluster's SCM
    processes. Among the starts of one term, that of the leader is first.
    """

    op_state: str = ""
    op_expiry_ms: int = 0
    version: int = 0
    seen_starts: tuple[SeenStart, ...] = ()

    @property
    def is_out_of_service(self) -> bool:
        """Return whether this datanode is out of service, or is leaving the service.

        Other datanodes must then have copies of its replicas.
        """
        return self.op_state not in {"", IN_SERVICE}


def state_path(layout: VolumeLayout) -> Path:
    """Return the path of the file with the stored state on one volume."""
    return layout.cluster / NAME


def read_state(layout: VolumeLayout) -> NodeState | None:
    """Return the state stored on a volume, or None if it has no valid file.

    Raise the same errors as `read_sealed`.
    """
    found = read_sealed(state_path(layout), FILE_BYTES_MAX)
    if found is None or found["op_state"] not in OP_STATES | {""}:
        return None
    starts = tuple(SeenStart(**start) for start in found.get("seen_starts", ()))
    return NodeState(found["op_state"], found["op_expiry_ms"], found["version"], starts)


def newest_state(layouts: Sequence[VolumeLayout]) -> NodeState:
    """Return the stored state with the highest version.

    Return the default state if there is none.
    """
    known = [state for state in map(read_state, layouts) if state is not None]
    return max(known, key=lambda state: state.version, default=NodeState())


def write_state(
    layouts: Sequence[VolumeLayout], state: NodeState, *, is_everywhere: bool = True
) -> None:
    """Write the state durably to every volume.

    If `is_everywhere` is False, stop after the first volume that is written. Raise the last error
    if no volume could be written.
    """
    failure: SutureError | None = None
    written_count = 0
    for layout in layouts:
        try:
            replace_file(state_path(layout), sealed(asdict(state)))
            written_count += 1
            if not is_everywhere:
                return
        except SutureError as error:  # the volume check reports it; one copy is enough
            failure = error
    if failure is not None and not written_count:
        raise failure
