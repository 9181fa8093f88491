"""Updates the state of containers from the reported states of their replicas."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Final

import structlog

from scm.cluster import lifecycle
from scm.cluster.decision_context import ControlComponent
from scm.cluster.last_copies import LastReplicaTracker
from scm.containers.block_deletion import BlockDeletion
from scm.containers.close_commands import CloseCommands
from scm.state.database import StateChange
from scm.state.entities import Container, ContainerState

_COMMIT_OVER: Final = frozenset(
    {ContainerState.QUASI_CLOSED, ContainerState.CLOSED, ContainerState.DELETED}
)

_log = structlog.get_logger("suture.scm")


@dataclass(eq=False)
class ContainerStateUpdater(ControlComponent):
    """Changes the states of containers according to their replicas.

    Callers must hold the control plane's lock.
    """

    _deletions: BlockDeletion
    _closes: CloseCommands
    _last_copies: LastReplicaTracker

    def update_many(self, change: StateChange, container_ids: Collection[int]) -> None:
        """Update many containers with `update_containers`. Skip those that need no update.

        Most containers are closed and need no update.
        """
        state = self._state
        resting = set(state.containers.at_rest(container_ids)).difference(
            state.replicas.unsettled,
            state.commands.by_container,
            state.transactions.by_container,
            self._closes.under_way,
        )
        self.update_containers(
            change, [number for number in container_ids if number not in resting]
        )

    def update_containers(self, change: StateChange, container_ids: Iterable[int]) -> None:
        """Update containers to the state that their replicas imply.

        Also queue the close commands that are due.
        """
        now_ms = self._clock.wall_ms()
        for container_id in container_ids:
            container = self._state.containers.get(container_id)
            if container is None:
                continue  # unknown container: recorded, never acted on
            self._commands.complete_visible(change, container_id)
            self._deletions.finish(change, container_id)
            self.move(change, container, self._seen(container, now_ms))

    def observe_struck(self, change: StateChange, container_ids: Collection[int]) -> None:
        """Update containers after some of their replica records were removed."""
        self._last_copies.recount(change, container_ids)
        self.update_containers(change, container_ids)

    def _seen(self, container: Container, now_ms: int) -> Container:
        """Return a container in the state that its replicas on live datanodes imply.

        If the container is not OPEN, dead datanodes are removed from its pipeline. If all its
        replicas are on dead datanodes, the container is returned unchanged, because the datanodes
        may return.
        """
        container_id = container.container_id
        living = self._cases.live_replicas(container_id)
        if self._state.replicas.of(container_id) and not living:
            return container
        if container.state is not ContainerState.OPEN and container.pipeline:
            awaited = tuple(n for n in container.pipeline if not self._nodes.is_gone(n))
            container = replace(container, pipeline=awaited)
        return lifecycle.with_observed_state(container, living, now_ms=now_ms)

    def move(self, change: StateChange, before: Container, after: Container) -> None:
        """Record a changed container, and queue its due close commands."""
        container_id = after.container_id
        if after != before:
            change.put(self._state.containers, after)
        if after.state is not before.state:
            change.on_commit(
                lambda: _log.info(
                    "container_state_changed", container_id=container_id, state=after.state
                )
            )
            if after.state in _COMMIT_OVER:
                self._deletions.give_up(change, after)
        self._closes.close(change, after)
