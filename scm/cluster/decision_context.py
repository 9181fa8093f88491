"""The shared dependencies of every decision about replicas, as one object."""

from dataclasses import InitVar, dataclass

from scm.cluster.commands.pending_ops import PendingOps
from scm.cluster.container_contexts import ContainerContexts
from scm.cluster.nodes import NodeManager
from scm.state.clock import ScmClock
from scm.state.database import StateDatabase
from scm.state.options import ScmOptions
from scm.state.state_access import StateAccess


@dataclass(frozen=True, slots=True)
class DecisionContext:
    """The objects that every decision uses: the state of the cluster, the lock of the state, views
    of the state, and the pending commands."""

    access: StateAccess
    state: StateDatabase
    nodes: NodeManager
    commands: PendingOps
    cases: ContainerContexts
    clock: ScmClock
    options: ScmOptions


@dataclass(eq=False)
class ControlComponent:
    """Base class of the control plane's components; copies the shared dependencies to
    attributes."""

    basis: InitVar[DecisionContext]

    def __post_init__(self, basis: DecisionContext) -> None:
        self.access = basis.access
        self._state = basis.state
        self._nodes = basis.nodes
        self._commands = basis.commands
        self._cases = basis.cases
        self._clock = basis.clock
        self._options = basis.options
