"""What every decision about replicas rests on, handed around as one."""

from dataclasses import dataclass

from scm.cluster.cases import Cases
from scm.cluster.commands.pending_ops import PendingOps
from scm.cluster.nodes import Nodes
from scm.state.clock import Clock
from scm.state.database import State
from scm.state.options import ScmOptions


@dataclass(frozen=True, slots=True)
class Basis:
    """The state and the ways to look at it and to order something."""

    state: State
    nodes: Nodes
    commands: PendingOps
    cases: Cases
    clock: Clock
    options: ScmOptions
