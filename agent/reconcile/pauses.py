"""Changes of a container in the pauses between copies; a copy needs an unchanged replica."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from agent.errors import UnavailableError
from agent.ports import Leases
from merkle.replica import ContainerId


@contextmanager
def exclusive_lease(
    leases: Leases, container_id: ContainerId, timeout_s: float, must_stop: Callable[[], bool]
) -> Iterator[None]:
    """Hold the lease; wait while the container is copied to another datanode, however long.

    `must_stop` is called every `timeout_s` of the wait. Raise UnavailableError(BUSY) if it returns
    True, or if a task other than a copy keeps the lease for `timeout_s`.
    """
    while True:
        with ExitStack() as held:
            try:
                held.enter_context(leases.hold(container_id, timeout_s))
            except UnavailableError:
                if not leases.is_shared(container_id) or must_stop():
                    raise
                continue
            yield
            return
