"""Containers counted as columns are what they are one by one, whatever their replicas."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from merkle.checksum import Algorithm
from merkle.replica import TREE_STATES, ReplicaState
from merkle.tree_summary import TreeSummary
from scm.api.health_totals import NOT_SAID, Flag, Needs, flags_of, flags_of_all
from scm.state.entities import Container, ContainerState, Key, KeyBlock, Replica
from scm.state.replicas.replica_table import ReplicaTable
from scm.state.tables.container_table import ContainerTable
from scm.state.tables.key_table import KeyTable
from tests.support.control.scm_world import container, replica

NODES = ("dn-a", "dn-b", "dn-c", "dn-d")
FEW = st.integers(1, 2)
TREES = st.none() | st.builds(
    TreeSummary, st.sampled_from(Algorithm), FEW, FEW, FEW, st.integers(0, 1), st.integers(0, 2)
)
KEYS = st.lists(st.integers(1, 5), max_size=3)  # by the commit that each needs
CONTAINERS = st.none() | st.builds(
    lambda state, factor, scheme, promised: replace(
        container(state, replication_factor=factor), scheme=scheme, allocated_bcsid=promised
    ),
    st.sampled_from([ContainerState.CLOSED, *ContainerState]),
    st.integers(0, 4),
    st.sampled_from(["", "", "", "rs-2-1-1024k"]),
    st.integers(0, 5),
)


@st.composite
def held(draw: st.DrawFn) -> list[Replica]:
    """Return the replicas of one container, on some nodes."""
    return [
        replace(
            replica(
                node,
                draw(st.sampled_from([ReplicaState.CLOSED, *ReplicaState])),
                load_error=draw(st.sampled_from(["", "", "its index is damaged"])),
                finding_count=draw(st.sampled_from([0, 0, 3])),
                replica_index=draw(st.integers(0, 3)),
            ),
            tree=draw(TREES),
            block_count=draw(st.integers(0, 3)),
            bcsid=draw(st.integers(3, 5)),
            is_contradictory=draw(st.booleans()),
        )
        for node in draw(st.lists(st.sampled_from(NODES), unique=True))
    ]


@given(st.lists(st.tuples(CONTAINERS, held(), KEYS), min_size=1, max_size=8), st.integers(1, 8))
def test_side_by_side_as_one_by_one(
    world: list[tuple[Container | None, list[Replica], list[int]]], first_known: int
) -> None:
    """The columns agree with `flags_of`, and leave out containers that are not plain or
    comparable.
    """
    table = ReplicaTable()
    for number, (_made, replicas, _keys) in enumerate(world, 1):
        for one in replicas:
            own = replace(one, container_id=number)
            table.apply((number, own.datanode_id), own)
    containers = ContainerTable()
    for number, (made, _, _) in enumerate(world, 1):
        if made is not None:
            containers.apply(number, made)
    keys = KeyTable()
    for number, (_, _, bcsids) in enumerate(world, 1):
        for place, bcsid in enumerate(bcsids):
            name = f"{number}/{place}"
            keys.apply(name, Key(name, 1, 1, (KeyBlock(number, place, bcsid, 1),)))
    needs = Needs(keys, containers, lambda number: number >= first_known)
    ids = np.arange(1, len(world) + 1)

    found = flags_of_all(table, ids, containers.wanted.of(ids), needs=needs)

    for number, flags in zip(ids.tolist(), found.tolist(), strict=True):
        made = world[number - 1][0]
        trees = [r.tree.algorithm for r in table.of(number) if r.tree is not None]
        exact = flags_of(made, table.of(number), needs.of(number))
        if flags != NOT_SAID:
            assert exact == flags
        else:
            is_plain = made is not None and not made.scheme and made.state.name.endswith("CLOSED")
            is_open = any(
                (r.tree is None or r.state not in TREE_STATES) and not r.load_error
                for r in table.of(number)
            )
            assert not is_plain or len(set(trees)) > 1 or is_open or exact & Flag.LACKING
