"""The shared dependencies of every decision about replicas, passed around as one object."""

from dataclasses import dataclass

from scm.cluster.cases import Cases
from scm.cluster.commands.pending_ops import PendingOps
from scm.cluster.nodes import Nodes
from scm.state.clock import Clock
from scm.state.database import State
from scm.state.options import ScmOptions


@dataclass(frozen=True, slots=True)
class Basis:
    """The state, the views of it, and the means to send commands."""

    state: State
    nodes: Nodes
    commands: PendingOps
    cases: Cases
    clock: Clock
    options: ScmOptions
