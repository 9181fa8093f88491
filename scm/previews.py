"""What closing or reconciling containers would do, and whether the world is still the one shown."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from agent.errors import Code
from scm import lifecycle
from scm.admin import INELIGIBLE_STATE, world_of
from scm.cases import Cases
from scm.clock import Clock
from scm.commands import Commands
from scm.eligibility import Eligibility
from scm.facts import Container, ContainerState, Kind
from scm.intake import Decision, Order
from scm.reconciles import Reconciles
from scm.replication import good_replicas
from scm.state import State


class Previews:
    """Decides nothing and changes nothing. Callers hold the control plane's lock."""

    def __init__(
        self, state: State, cases: Cases, commands: Commands, reconciles: Reconciles, clock: Clock
    ) -> None:
        self._state = state
        self._cases = cases
        self._commands = commands
        self._reconciles = reconciles
        self._clock = clock

    def each(
        self, container_ids: Sequence[int], worlds: Sequence[int], do: Callable[[int], Decision]
    ) -> list[Decision]:
        """Return what `do` decides on each container that is as `worlds` says; none: as it is."""
        decisions = []
        for i, container_id in enumerate(container_ids):
            container = self._state.containers.get(container_id)
            if worlds and container is not None and worlds[i] != self._world(container):
                message = "its replicas are not as they were when this was shown"
                decisions.append(Decision(container_id, Code.STALE_PLAN, message))
            else:
                decisions.append(do(container_id))
        return decisions

    def close(self, container_id: int) -> Decision:
        """Say what an order to close a container would lead to."""
        container = self._state.containers.get(container_id)
        refusal = close_refusal(container_id, container)
        if refusal is not None or container is None:
            return refusal or Decision(container_id, Code.CONTAINER_NOT_FOUND)
        replicas = self._state.replicas.of(container_id)
        ended = lifecycle.end_writes(container, "", now_ms=self._clock.wall_ms())
        due = lifecycle.close_orders(ended, replicas)
        message = f"container is {container.state}" + ("" if due else ": nothing is to be closed")
        orders = tuple(Order(Kind.CLOSE, order.datanode_id) for order in due)
        return self._shown(container, message, orders, len(due))

    def reconcile(self, container_id: int) -> Decision:
        """Say what an order to reconcile a container would lead to. How many bytes of chunks it
        moves is known only when the trees are compared: the bytes given are those that are read
        again afterwards, if anything had to be repaired."""
        participants = self._reconciles.participants(container_id)
        container = self._state.containers.get(container_id)
        if participants.eligibility is not Eligibility.OK or container is None:
            return Decision(container_id, participants.eligibility, participants.message)
        replicas = {r.datanode_id: r for r in self._state.replicas.of(container_id)}
        orders = tuple(
            Order(
                Kind.RECONCILE,
                node,
                size_bytes=replicas[node].bytes_used,
                duration_ms=self._commands.estimate_ms(replicas[node].bytes_used),
            )
            for node in participants.targets
        )
        return self._shown(container, "fetches what differs, no more", orders, len(orders))

    def _shown(
        self, container: Container, message: str, orders: tuple[Order, ...], at_best_count: int
    ) -> Decision:
        copies = len(good_replicas(self._cases.case(container)))
        shown = Decision(container.container_id, "OK", message, (), orders, copies)
        after = max(copies, at_best_count)
        return replace(shown, copies_after=after, world=self._world(container))

    def _world(self, container: Container) -> int:
        return world_of(self._cases.case(container))


def close_refusal(container_id: int, container: Container | None) -> Decision | None:
    """Say why a container cannot be closed; None if it can, or is closed already."""
    if container is None:
        return Decision(container_id, Code.CONTAINER_NOT_FOUND, "no such container")
    if container.state in {ContainerState.DELETING, ContainerState.DELETED}:
        return Decision(container_id, INELIGIBLE_STATE, f"container is {container.state}")
    return None
