"""`suture scm recover` against a control plane that was restored: it comes to its end."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cli.change.recover import RecoverySummary, _containers, _keys, _looked_into
from scm.api.recovering import found_from
from suture.client.cluster_client import ClusterClient
from suture.client.container_discovery import DiscoveredContainer, PartStore
from suture.client.put_metadata import PartBlock, PutMetadata
from suture.runtime.exit_codes import ExitCode
from tests.support.command_line import CommandLine
from tests.support.control.restored import report, restored_world
from tests.support.control.scm_world import ScmWorld

FAR_OFF = 10**12


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """A restored control plane."""
    with restored_world(tmp_path / "data") as made:
        yield made


@pytest.fixture
def suture(world: ScmWorld, capsys: pytest.CaptureFixture[str]) -> Iterator[CommandLine]:
    """The command, and the control plane behind a server; its datanodes only report."""
    with world.served() as address:
        yield CommandLine(address, capsys)


def test_a_container_that_is_not_taken_over_is_named(world: ScmWorld, suture: CommandLine) -> None:
    """Safe mode ends, and the output lists the containers that were not adopted."""
    report(world, 1, 2, 9, FAR_OFF)

    found = suture.json("scm", "recover", "--force", code=ExitCode.TO_DO)

    assert ([9], [FAR_OFF]) == (found["adopted_container_ids"], found["unknown_container_ids"])
    assert found["finished"]
    assert world.state.restored is None
    shown = suture("scm", "recover", "--dry-run", code=ExitCode.TO_DO)
    assert "not taken over: ids too high" in shown
    assert f"\n  {FAR_OFF}\n" in shown


def test_recover_skips_a_container_lost_between_its_two_queries(
    world: ScmWorld, suture: CommandLine
) -> None:
    """A disk fails after the list of containers and before the query for their replicas.
    Recovery does not stay in safe mode for that.
    """
    report(world, 1, 2)

    with ClusterClient(suture.scm) as client:
        seen = list(_looked_into(client, [2, 9], RecoverySummary()))

    assert [2] == [one.container_id for one in seen]


class TestManyAtOnce:
    """What is told in one call is bounded; a cluster of small files that come and go is not."""

    @pytest.mark.parametrize(("container_count", "deleted_count"), [(1_001, 2_001), (1, 2_000_001)])
    def test_deleted_blocks_of_all_containers_are_sent_in_bounded_calls(
        self, container_count: int, deleted_count: int
    ) -> None:
        """Deleted blocks are split into calls that the control plane accepts, whether they
        belong to many containers or to one.
        """
        ids = range(1, container_count + 1)
        seen = [
            DiscoveredContainer(number, deleted=list(range(1, deleted_count + 1))) for number in ids
        ]

        told: Counter[int] = Counter()
        with PartStore() as parts:
            for request in _containers(seen, RecoverySummary(), parts):
                for one in found_from(request).looked:
                    told[one.container_id] += len(one.deleted)

        assert dict.fromkeys(ids, deleted_count) == told

    def test_keys_with_parts_in_several_containers_are_all_sent(self) -> None:
        """Deleted blocks of those containers are sent once, also if an earlier call had sent
        them.
        """
        part_count = 3
        note = PutMetadata("one", part_count, part_count * 10, 1)
        seen = [
            DiscoveredContainer(
                number, parts=[PartBlock(number, 1, 1, 10, f"{key}", part, note)], deleted=[2]
            )
            for key in range(5_000)
            for part, number in enumerate(range(key * part_count + 1, (key + 1) * part_count + 1))
        ]

        result = RecoverySummary()
        with PartStore() as parts:
            requests = [*_containers(seen, result, parts), *_keys(parts, result)]
        calls = [found_from(request) for request in requests]

        keys = {key.name: len(key.blocks) for call in calls for key in call.keys}
        assert {str(key): part_count for key in range(5_000)} == keys
        told = sum(len(one.deleted) for call in calls for one in call.looked)
        assert len(seen) == told
