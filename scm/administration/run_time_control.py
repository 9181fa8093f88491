"""Settings that operators change while the control plane runs: pauses, rates and windows of work.

The settings are stored in the state. `scm.cluster.run_time_settings` describes their effect.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from scm.cluster.decision_context import ControlComponent, DecisionContext
from scm.cluster.run_time_settings import is_current, rate_of
from scm.state.database import StateChange
from scm.state.entities import ControlKind, NodeHealthState, WorkControl, WorkKind
from scm.state.state_access import locked, state_change
from suture.errors import Code, RefusedError

RATES_KEPT_S: Final = 1.0  # every heartbeat asks for the rates, and they depend on all datanodes


@dataclass(frozen=True, slots=True)
class SettingRequest:
    """A request to set or remove a run-time setting for some kinds of work."""

    control: ControlKind
    works: tuple[WorkKind, ...]
    rack: str = ""
    value: str = ""
    duration_ms: int = 0  # 0 = until removed
    is_removal: bool = False


class RunTimeControl(ControlComponent):
    """Sets, removes and returns the run-time settings: pauses, rates and windows of work."""

    def __init__(self, basis: DecisionContext) -> None:
        super().__init__(basis)
        self._rates: tuple[float, int, int] | None = None  # time, copies, reconciles

    @locked
    def settings(self) -> list[WorkControl]:
        """Return the settings that apply now, sorted by kind of setting, kind of work, and rack."""
        return self.current()

    def current(self) -> list[WorkControl]:
        """Return the settings that apply now. Callers must hold the control plane's lock."""
        now_ms = self._clock.wall_ms()
        current = [s for s in self._state.settings.values() if is_current(s, now_ms)]
        return sorted(current, key=lambda s: (s.control.value, s.work.value, s.rack))

    @state_change
    def change(self, change: StateChange, request: SettingRequest) -> list[WorkControl]:
        """Apply a request, and return all settings that apply afterwards.

        Raise RefusedError(INELIGIBLE) if no datanode is on the rack.
        """
        racks = {node.rack for node in self._state.nodes.values()}
        if request.rack and request.rack not in racks and not request.is_removal:
            raise RefusedError(
                Code.INELIGIBLE,
                f"cannot change settings: no datanode is on rack {request.rack}",
                hint="suture scm nodes lists the racks",
            )
        self._rates = None
        table, now_ms = self._state.settings, self._clock.wall_ms()
        for setting in table.values():
            if not is_current(setting, now_ms) or self._is_replaced(setting, request):
                change.remove(table, table.key_of(setting))
        until_ms = now_ms + request.duration_ms if request.duration_ms else 0
        for work in () if request.is_removal else request.works:
            change.put(
                table,
                WorkControl(request.control, work, request.rack, request.value, now_ms, until_ms),
            )
        return self.current()

    def _is_replaced(self, setting: WorkControl, request: SettingRequest) -> bool:
        """Return True if a request removes or replaces a setting.

        A removal without a rack removes the settings of all racks.
        """
        is_same_rack = setting.rack == request.rack or (request.is_removal and not request.rack)
        return setting.control is request.control and setting.work in request.works and is_same_rack

    def rates(self) -> tuple[int, int]:
        """Return the limits of one datanode for copies and for reconciles, in bytes per second.

        A limit of 0 means that there is none. Callers must hold the control plane's lock.
        """
        now_s = self._clock.monotonic_s()
        if self._rates is None or now_s - self._rates[0] >= RATES_KEPT_S:
            self._rates = (now_s, *self._computed_rates())
        return self._rates[1:]

    def _computed_rates(self) -> tuple[int, int]:
        settings: Sequence[WorkControl] = self._state.settings.values()
        if not settings:
            return 0, 0
        healthy = sum(
            self._nodes.health(node.datanode_id) is NodeHealthState.HEALTHY
            for node in self._state.nodes.values()
        )
        return (
            rate_of(settings, WorkKind.COPIES, healthy),
            rate_of(settings, WorkKind.RECONCILES, healthy),
        )
