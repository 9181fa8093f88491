"""The objects on which all components of the control plane depend."""

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
    """The objects that all components of the control plane use.

    They are the state and its lock, the datanodes, the pending commands, the facts about
    containers, the clock, and the options.
    """

    access: StateAccess
    state: StateDatabase
    nodes: NodeManager
    commands: PendingOps
    cases: ContainerContexts
    clock: ScmClock
    options: ScmOptions


@dataclass(eq=False)
class ControlComponent:
    """Base class of the components of the control plane.

    It stores the objects of the `DecisionContext` in attributes.
    """

    basis: InitVar[DecisionContext]

    def __post_init__(self, basis: DecisionContext) -> None:
        self.access = basis.access
        self._state = basis.state
        self._nodes = basis.nodes
        self._commands = basis.commands
        self._cases = basis.cases
        self._clock = basis.clock
        self._options = basis.options
