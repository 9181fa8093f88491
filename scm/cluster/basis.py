"""The shared dependencies of every decision about replicas, passed around as one object."""

from dataclasses import dataclass

from scm.cluster.cases import ContainerContexts
from scm.cluster.commands.pending_ops import PendingOps
from scm.cluster.nodes import NodeManager
from scm.state.clock import ScmClock
from scm.state.database import StateDatabase
from scm.state.options import ScmOptions


@dataclass(frozen=True, slots=True)
class DecisionContext:
    """The state, the views of it, and the means to send commands."""

    state: StateDatabase
    nodes: NodeManager
    commands: PendingOps
    cases: ContainerContexts
    clock: ScmClock
    options: ScmOptions
