"""What every decision about replicas rests on, handed around as one."""

from dataclasses import dataclass

from scm.cases import Cases
from scm.clock import Clock
from scm.commands import Commands
from scm.nodes import Nodes
from scm.options import ScmOptions
from scm.state import State


@dataclass(frozen=True, slots=True)
class Basis:
    """The state and the ways to look at it and to order something."""

    state: State
    nodes: Nodes
    commands: Commands
    cases: Cases
    clock: Clock
    options: ScmOptions
