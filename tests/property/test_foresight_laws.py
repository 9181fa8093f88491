"""Whatever the cluster: a yes is never false, and what a no names cannot be read.

The oracle is a set of replicas that are taken away one by one, in plain Python.
"""

from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from merkle.replica import ReplicaState
from scm.administration.impact_analysis import StopAnswer
from scm.administration.shutdown_impact import StopImpact, StopQuery
from scm.state.entities import CommandKind
from scm.state.options import ScmOptions
from tests.support.control.scm_world import ScmWorld, confirm, container, replica
from tests.support.storage.stores import private_directory

NODES = ("dn1", "dn2", "dn3", "dn4")
OPTIONS = ScmOptions(stale_after_ms=10_000, dead_after_ms=60_000)
SCHEMES = {"": (3, 1), "xor-2-1-64k": (3, 2), "rs-3-2-1024k": (5, 3)}  # replicas, needed


@dataclass(frozen=True)
class Held:
    """One replica: where, which shard, and whether anything speaks against it."""

    node: str
    index: int
    kind: str  # whole, damaged, unhealthy


@dataclass(frozen=True)
class World:
    """Containers, each with its scheme and replicas; which nodes are silent or dead."""

    containers: tuple[tuple[str, tuple[Held, ...]], ...]
    silent: frozenset[str]
    dead: frozenset[str]

    def serving(
        self,
        number: int,
        off: frozenset[str],
        *,
        certain: bool,
        deleted: frozenset[tuple[int, str]] = frozenset(),
    ) -> bool:
        """Whether a container can be read with these off: surely, or if all goes well."""
        scheme, replicas = self.containers[number - 1]
        gone = off | self.dead | (self.silent if certain else frozenset())
        indexes = {
            held.index
            for held in replicas
            if held.node not in gone
            and (not certain or (held.kind == "whole" and (number, held.node) not in deleted))
        }
        return len(indexes) >= SCHEMES[scheme][1]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Draw one."""
    containers = []
    for _ in range(draw(st.integers(1, 4))):
        scheme = draw(st.sampled_from(sorted(SCHEMES)))
        holders = draw(st.lists(st.sampled_from(NODES), unique=True, max_size=4))
        kinds = st.sampled_from(["whole", "whole", "whole", "damaged", "unhealthy"])
        indexes = st.integers(1, SCHEMES[scheme][0]) if scheme else st.just(0)
        containers.append(
            (scheme, tuple(Held(node, draw(indexes), draw(kinds)) for node in holders))
        )
    states = draw(st.tuples(*(st.sampled_from("hhhsd") for _ in NODES)))
    silent, dead = (
        frozenset(node for node, state in zip(NODES, states, strict=True) if state == letter)
        for letter in "sd"
    )
    return World(tuple(containers), silent, dead)


def asked(world: World, off: frozenset[str]) -> tuple[StopImpact, frozenset[tuple[int, str]]]:
    """Build the cluster, let the silent be silent and the dead dead, and ask; return also which
    replicas the control plane has ordered deleted meanwhile."""
    with private_directory() as path, ScmWorld(path, options=OPTIONS).running() as made:
        made.join(*NODES)
        with made.state.change() as change:
            for number, (scheme, _) in enumerate(world.containers, start=1):
                row = replace(
                    container(container_id=number),
                    scheme=scheme,
                    replication_factor=SCHEMES[scheme][0],
                )
                change.put(made.state.containers, row)
        for number, (_, replicas) in enumerate(world.containers, start=1):
            for held in replicas:
                state = ReplicaState.UNHEALTHY if held.kind == "unhealthy" else ReplicaState.CLOSED
                made.beat(
                    held.node,
                    replica(
                        held.node,
                        state,
                        container_id=number,
                        replica_index=held.index,
                        finding_count=int(held.kind == "damaged"),
                    ),
                )
        confirm(made, *NODES)
        made.control.tick()
        made.clock.advance_s(50)
        made.keep_alive(*sorted(world.silent))
        made.clock.advance_s(12)
        made.keep_alive(*sorted(set(NODES) - world.silent - world.dead))
        deleted = {
            (command.container_id, command.datanode_id)
            for command in made.state.commands.values()
            if command.kind is CommandKind.DELETE
        }
        return made.control.impacts.analyze(StopQuery(tuple(sorted(off)))), frozenset(deleted)


@settings(max_examples=150, deadline=None)
@given(worlds(), st.sets(st.sampled_from(NODES), min_size=1).map(frozenset))
def test_a_yes_is_never_false_and_a_no_is_exact(world: World, off: frozenset[str]) -> None:
    """
    Yes: what can be read now can surely be read afterwards. What is named as unreadable can be read
    now and by no luck afterwards; and all of that is named.
    """
    found, deleted = asked(world, off)
    numbers = range(1, len(world.containers) + 1)

    now = {n for n in numbers if world.serving(n, frozenset(), certain=False)}
    left = {n for n in numbers if world.serving(n, off, certain=False)}
    surely = {n for n in numbers if world.serving(n, off, certain=True, deleted=deleted)}
    touched = {
        n for n in numbers if any(h.node in off - world.dead for h in world.containers[n - 1][1])
    }

    assert sorted(now - left) == sorted(found.outlook.unreadable_ids)
    if found.answer is StopAnswer.YES:
        assert now & touched <= surely
    if not now - left:
        assert (found.answer is StopAnswer.YES) == (now & touched <= surely)
