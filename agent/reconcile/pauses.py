"""Changing a container when nobody copies it: a copy is of the replica as it is."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from agent.errors import Unavailable
from agent.ports import Leases
from merkle.replica import ContainerId


@contextmanager
def held_between_copies(
    leases: Leases, container_id: ContainerId, timeout_s: float, must_stop: Callable[[], bool]
) -> Iterator[None]:
    """Hold the lease; pause while the container is copied to another datanode, however long.

    `must_stop` is asked every `timeout_s` of the pause. Raises Unavailable(BUSY) when it says so,
    or when somebody who does not copy keeps the lease for `timeout_s`.
    """
    while True:
        with ExitStack() as held:
            try:
                held.enter_context(leases.hold(container_id, timeout_s))
            except Unavailable:
                if not leases.is_shared(container_id) or must_stop():
                    raise
                continue
            yield
            return
