"""Stores the head of each volume's verification log once per day, as an anchor.

The verification log of a volume lists scans, repairs and deletes. Its head is the number of entries
and the checksum of the last entry. Datanodes report the head in heartbeats. If a log is changed on
its datanode later, it no longer matches the stored anchors. A log only grows. If a reported head
goes back, the SCM logs an error at once.
"""

from collections.abc import Iterable
from typing import Final

import structlog

from scm.cluster.decision_context import ControlComponent, DecisionContext
from scm.state.database import StateChange
from scm.state.entities import ReportedVolume
from scm.state.history.anchors import VOLUMES_MAX, Anchor, VolumeAnchors
from scm.state.state_access import locked

INTERVAL_MS: Final = 24 * 3600 * 1000

_log = structlog.get_logger("suture.scm")


class AnchorKeeper(ControlComponent):
    """Stores the heads of verification logs as anchors.

    Callers of `record_heads` must hold the control plane's lock.
    """

    def __init__(self, basis: DecisionContext) -> None:
        super().__init__(basis)
        self._told: set[tuple[str, str, int, str]] = set()  # heads that went back: logged once

    def record_heads(
        self, change: StateChange, datanode_id: str, volumes: Iterable[ReportedVolume]
    ) -> None:
        """Store the log heads that a datanode reports, at most one per volume and day."""
        for volume in volumes:
            if volume.log_count and volume.volume_id:
                self._record_anchor(change, datanode_id, volume)

    @locked
    def anchors(self, datanode_id: str = "", volume_id: str = "") -> list[VolumeAnchors]:
        """Return the stored heads of verification logs, sorted by datanode and volume.

        Without a datanode id, return only the newest stored head of each log.
        """
        chosen = [
            one if datanode_id else VolumeAnchors(one.datanode_id, one.volume_id, one.anchors[-1:])
            for one in self._state.anchors.values()
            if datanode_id in {"", one.datanode_id} and volume_id in {"", one.volume_id}
        ]
        return sorted(chosen, key=lambda one: (one.datanode_id, one.volume_id))

    def _record_anchor(self, change: StateChange, datanode_id: str, volume: ReportedVolume) -> None:
        table, now_ms = self._state.anchors, self._clock.wall_ms()
        known = table.get((datanode_id, volume.volume_id))
        if known is None:
            if len(table) >= VOLUMES_MAX:
                return
            known = VolumeAnchors(datanode_id, volume.volume_id, ())
        if known.anchors:
            last = known.anchors[-1]
            if self._went_back(known, volume) or volume.log_count == last.count:
                return
            if 0 <= now_ms - last.at_ms < INTERVAL_MS:
                return
        anchor = Anchor(now_ms, volume.log_count, volume.log_checksum)
        change.put(table, known.followed_by(anchor))

    def _went_back(self, known: VolumeAnchors, volume: ReportedVolume) -> bool:
        """Return True if a log contradicts its last stored head. Log this once.

        That is the case if the log is now shorter, or if it has another entry at that position.
        """
        last = known.anchors[-1]
        if volume.log_count > last.count or (volume.log_count, volume.log_checksum) == (
            last.count,
            last.checksum,
        ):
            return False
        told = (known.datanode_id, known.volume_id, volume.log_count, volume.log_checksum)
        if told not in self._told and len(self._told) < VOLUMES_MAX:
            self._told.add(told)
            _log.error(
                "verification_log_changed",
                datanode_id=known.datanode_id,
                volume_id=known.volume_id,
                count=volume.log_count,
                anchored_count=last.count,
            )
        return True
