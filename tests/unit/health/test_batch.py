"""What every rule asks of a replica, found out once; and batches that cannot be."""

from dataclasses import replace

import numpy as np

from health.batch import BatchView, view, violations
from health.words import UNKNOWN
from spark_verify.tasks.judge_batches import BatchSlice
from tests.support.verification.judged import cut
from tests.support.verification.snapshots import NodeRow, OpRow, SnapshotRows, container, gather


def seen(*parts: SnapshotRows) -> BatchView:
    """View containers in one batch; their rows must ascend as the batch has them."""
    return view(cut(gather(parts)).batch)


class TestReplicas:
    def test_a_replica_is_what_its_state_and_its_node_make_it(self) -> None:
        """Each line has one replica. The flags are gone, present, sick, tree, reachable,
        countable.
        """
        table = (
            ("C", "-P-TRC"),
            ("Q", "-P-TRC"),
            ("U", "-PSTRC"),
            ("O", "-P--R-"),
            ("G", "-P--R-"),
            ("I", "----R-"),
            ("D", "----R-"),
            ("R", "----R-"),
            ("C?s", "-P-T--"),
            ("C?r", "-P-TRC"),
            ("C?d", "G--T--"),
            ("U?d", "G--T--"),
            ("C?d/d", "G--T--"),
            ("C?d/e", "G--T--"),  # only who is in maintenance already will be back
            ("C?d/m", "-P-T--"),
        )

        found = seen(*(container(i, "R CLOSED", line[0]) for i, line in enumerate(table)))

        names = ("is_gone", "is_present", "is_sick", "is_tree", "is_reachable", "is_countable")
        columns = [getattr(found, name).tolist() for name in names]
        told = [
            (line[0], "".join(c if on else "-" for c, on in zip("GPSTRC", flags, strict=True)))
            for line, flags in zip(table, zip(*columns, strict=True), strict=True)
        ]
        assert told == list(table)
        assert found.present.tolist() == [int("P" in line[1]) for line in table]

    def test_a_replica_that_cannot_be_loaded_is_sick(self) -> None:
        """The replica is unhealthy, whatever state its datanode reports."""
        rows = container(1, "R CLOSED", "C C")
        rows.replicas[1] = replace(rows.replicas[1], load_error="no descriptor")

        found = seen(rows)

        assert found.is_sick.tolist() == [False, True]
        assert found.batch.replicas.is_loaded.tolist() == [True, False]


def _cluster(*ops: tuple[int, str, int]) -> SnapshotRows:
    """Two containers, each on nodes 0, 1 and 2 of a cluster of three; 2 is UNHEALTHY."""
    rows = SnapshotRows(nodes=[NodeRow(f"dn{i}") for i in range(3)])
    for number in (1, 2):
        part = container(number, "R CLOSED", "C C U")
        rows.containers += part.containers
        rows.replicas += [
            replace(replica, datanode_id=f"dn{i}") for i, replica in enumerate(part.replicas)
        ]
    rows.pending_ops = [
        OpRow(number, op, f"dn{node}", command_id=i) for i, (number, op, node) in enumerate(ops)
    ]
    return rows


class TestOps:
    def test_a_delete_meets_the_replica_of_its_container_on_its_node(self) -> None:
        """
        Each single delete marks one of the six replicas, whichever it is.
        """
        for place in range(6):
            found = seen(_cluster((1 + place // 3, "DELETE", place % 3)))

            assert np.flatnonzero(found.is_leaving).tolist() == [place]
            assert found.is_stray_delete.tolist() == [False]
            assert found.deletes.tolist() == [int(place < 3), int(place >= 3)]

    def test_ops_are_counted_by_kind(self) -> None:
        """Only deletes remove replicas. Deletes of unreported replicas are counted apart."""
        ops = ((1, "ADD", 0), (1, "DELETE", 1), (1, "DELETE", 2), (2, "CLOSE", 0), (2, "ADD", 1))

        rows = _cluster(*ops, (2, "ADD", 2), (2, "RECONCILE", 2), (2, "DELETE", 3))
        rows.nodes.append(NodeRow("dn3"))

        found = seen(rows)

        assert found.adds.tolist() == [1, 2]
        assert found.deletes.tolist() == [2, 1]
        assert found.stray_deletes.tolist() == [0, 1]
        assert np.flatnonzero(found.is_leaving).tolist() == [1, 2]

    def test_the_delete_of_what_died_with_its_node_is_nothing_pending(self) -> None:
        """
        Ozone forgets it with the replica; one in maintenance is expected back, and its delete too.
        """
        for health, op_state, pending in (
            ("HEALTHY", "IN_SERVICE", 1),
            ("STALE", "IN_SERVICE", 1),
            ("DEAD", "IN_SERVICE", 0),
            ("DEAD", "DECOMMISSIONED", 0),
            ("DEAD", "IN_MAINTENANCE", 1),
        ):
            rows = _cluster((1, "DELETE", 1))
            rows.nodes[1] = replace(rows.nodes[1], health=health, op_state=op_state)

            found = seen(rows)

            assert found.deletes.tolist() == [pending, 0]
            assert found.stray_deletes.tolist() == [0, 0]

    def test_nodes_that_nobody_lists_are_not_taken_for_each_other(self) -> None:
        """
        A delete on one unknown node does not remove the replica on another.
        """
        rows = container(1, "R CLOSED", "C U C", "-")
        rows.nodes = [node for node in rows.nodes if node.datanode_id == "dn-1-2"]

        found = seen(rows)

        assert found.batch.ops.node.tolist() == [UNKNOWN]
        assert not found.is_leaving.any()
        assert found.is_stray_delete.tolist() == [True]
        assert not found.is_reachable[found.batch.replicas.node == UNKNOWN].any()

    def test_a_known_node_is_not_taken_for_an_unknown_one(self) -> None:
        """
        A delete on one of two nodes that are listed, beside a replica on one that is not.
        """
        for node in (0, 1):
            rows = container(1, "R CLOSED", "C C C", f"-n{node}")
            del rows.nodes[2]

            assert np.flatnonzero(seen(rows).is_leaving).tolist() == [1 + node]


def _told(rows: BatchSlice) -> list[tuple[int, str]]:
    names = rows.table["datanode_id"].to_pylist()
    return violations(rows.batch, lambda row: names[rows.order[row]])


class TestViolations:
    def test_rows_that_contradict_each_other_are_told(self) -> None:
        """
        The first thing that is wrong with each container, ascending; the others are not named.
        """
        twice = container(4, "R CLOSED", "C C")
        twice.replicas[1] = replace(twice.replicas[1], datanode_id="dn-4-0")
        stray = container(3, "R CLOSED", "C C")
        del stray.nodes[1]
        both = container(5, "R CLOSED", "C C#1")
        both.replicas[1] = replace(both.replicas[1], datanode_id="dn-5-0")
        parts = [
            twice,
            both,
            stray,
            container(1, "R CLOSED", "C C C"),
            container(2, "EC CLOSED", "C#1 C#2 C#3 C#4 C#5"),
            container(6, "EC CLOSED", "C#1 C"),
            container(7, "EC CLOSED", "C#6 C#5"),
            container(8, "R CLOSED", "C C#1"),
        ]

        assert _told(cut(gather(parts))) == [
            (3, "a replica on datanode dn-3-1 that table nodes/ does not list"),
            (4, "two replicas on datanode dn-4-0"),
            (5, "two replicas on datanode dn-5-0"),
            (6, "replica index 0 out of range on datanode dn-6-1"),
            (7, "replica index 6 out of range on datanode dn-7-0"),
            (8, "replica index 1 out of range on datanode dn-8-1"),
        ]

    def test_the_same_node_may_hold_two_containers(self) -> None:
        """An index has no effect on a container that only replicas name."""
        orphan = container(3, "EC CLOSED", "C#9")
        orphan.containers.clear()

        assert _told(cut(gather([_cluster(), orphan]))) == []
