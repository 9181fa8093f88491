"""Health by the age of the last heartbeat, and who may join."""

from pathlib import Path

import pytest

from agent.errors import Code, Refused
from scm.facts import Health
from scm.nodes import Registration, health_of
from scm.options import ScmOptions
from tests.support.scm_world import ScmWorld, volume

OPTIONS = ScmOptions(stale_after_ms=10_000, dead_after_ms=60_000)


class TestHealth:
    @pytest.mark.parametrize(
        ("age_s", "has_called", "expected"),
        [
            (0.0, True, Health.HEALTHY),
            (10.0, True, Health.HEALTHY),
            (10.1, True, Health.STALE),
            (60.0, True, Health.STALE),
            (60.1, True, Health.DEAD),
            (0.0, False, Health.STALE),
            (60.0, False, Health.STALE),
            (60.1, False, Health.DEAD),
        ],
    )
    def test_age_decides(self, age_s: float, has_called: bool, expected: Health) -> None:
        """The limits are exclusive, and one that never called is never HEALTHY."""
        assert expected is health_of(age_s, has_called=has_called, options=OPTIONS)

    def test_a_silent_node_becomes_stale_then_dead_and_comes_back(self, tmp_path: Path) -> None:
        """One call makes a dead node healthy again."""
        with ScmWorld(tmp_path, OPTIONS).running() as world:
            world.join("dn1")
            seen = []
            for seconds in (0, 11, 50):
                world.clock.advance_s(seconds)
                seen.append(world.control.nodes()[0].health)
            world.keep_alive("dn1")
            seen.append(world.control.nodes()[0].health)

        assert [Health.HEALTHY, Health.STALE, Health.DEAD, Health.HEALTHY] == seen

    def test_after_a_restart_nobody_is_healthy_or_dead_before_its_time(
        self, tmp_path: Path
    ) -> None:
        """A restarted SCM neither trusts nor buries a node it has not heard."""
        with ScmWorld(tmp_path, OPTIONS).running() as world:
            world.join("dn1")
            world.clock.advance_s(1_000)
            world.restart()
            first = world.control.nodes()[0].health
            world.clock.advance_s(61)
            later = world.control.nodes()[0].health

        assert (Health.STALE, Health.DEAD) == (first, later)


class TestRegister:
    def test_another_clusters_datanode_is_refused(self, tmp_path: Path) -> None:
        """Its containers have the same ids as ours and are not ours."""
        with ScmWorld(tmp_path).running() as world:
            with pytest.raises(Refused) as caught:
                world.control.register(
                    Registration("dn1", "dn1:1", "/r", "0.1", "CID-other", 1, (volume(),))
                )

            assert caught.value.code is Code.WRONG_CLUSTER
            assert [] == world.control.nodes()

    def test_an_unknown_or_older_process_must_register(self, tmp_path: Path) -> None:
        """What a process that did not register last says is not believed."""
        with ScmWorld(tmp_path).running() as world:
            unknown = world.beat("dn1")
            world.join("dn1", boot_id=2)
            older = world.beat("dn1", boot_id=1)
            current = world.beat("dn1", boot_id=2)

        assert [False, False, True] == [unknown.is_known, older.is_known, current.is_known]

    def test_with_a_restarted_scm_everybody_registers_again(self, tmp_path: Path) -> None:
        """It knows the process, but not what that has: a registration brings the full report."""
        with ScmWorld(tmp_path).running() as world:
            world.join("dn1", boot_id=2)
            world.restart()
            before = world.beat("dn1", boot_id=2)
            world.join("dn1", boot_id=2)
            after = world.beat("dn1", boot_id=2)

        assert [False, True] == [before.is_known, after.is_known]
