"""Options: checked one by one and together, unknown ones refused."""

from pathlib import Path

import pytest

from scm.state.options import ScmOptions, explain, load
from suture.errors import Code, RefusedError


class TestLoad:
    def test_the_command_line_wins_over_the_file_and_the_file_over_the_default(
        self, tmp_path: Path
    ) -> None:
        """Each value is read from one place."""
        path = tmp_path / "scm.toml"
        path.write_text("rpc_threads = 4\nreplication_factor = 2\n")

        options = load(path, {"rpc_threads": "5"})

        assert ScmOptions(rpc_threads=5, replication_factor=2) == options

    @pytest.mark.parametrize(
        ("name", "text", "message"),
        [
            ("rpc_thread", "1", "rpc_thread: no such option; rpc_threads?"),
            ("rpc_threads", "many", "rpc_threads: Input should be a valid integer, not 'many'"),
            ("audit_file", "/a\0", r"audit_file: '/a\x00' holds a NUL character"),
            ("rpc_threads", "1.5", "rpc_threads: Input should be a valid integer, not 1.5"),
            ("rpc_threads", "true", "rpc_threads: Input should be a valid integer, not True"),
            ("replication_factor", "0", "0 is out of bounds: should be greater than or equal to 1"),
            ("stale_after_ms", "1h", "dead_after_ms 60000 must exceed stale_after_ms 3600000"),
            ("tls_ca", "/ca.pem", "tls_ca (default): set all three, or none"),
        ],
    )
    def test_invalid_setting_is_named_in_the_error(
        self, name: str, text: str, message: str
    ) -> None:
        """The error has the option, with its bounds or the option that it contradicts."""
        with pytest.raises(RefusedError) as caught:
            load(None, {name: text})

        assert caught.value.code is Code.INVALID_CONFIG
        assert message in str(caught.value)

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("rpc_thread = 1", "rpc_thread: no such option; rpc_threads?"),
            ('dead_after_ms = "1 fortnight"', "dead_after_ms: invalid time '1 fortnight'"),
            ('lmdb_map_bytes = "5 m"', "lmdb_map_bytes: invalid size '5 m'"),
            ('rpc_threads = "1s"', "rpc_threads: Input should be a valid integer, not '1s'"),
            ("stale_after_ms = 60_000", "stale_after_ms: dead_after_ms 60000 must exceed"),
        ],
    )
    def test_invalid_option_in_a_file_is_named_with_its_line(
        self, tmp_path: Path, line: str, message: str
    ) -> None:
        """The option is unknown, lacks its unit, or contradicts another one."""
        path = tmp_path / "scm.toml"
        path.write_text(f"# what we want\nreplication_factor = 3\n{line}\n")

        with pytest.raises(RefusedError) as caught:
            load(path, {})

        assert f"{path}:3 {message}" in str(caught.value)

    def test_error_in_a_setting_does_not_name_a_line_of_the_file(self, tmp_path: Path) -> None:
        """The command line overrides the file, so the fault is not in the file."""
        path = tmp_path / "scm.toml"
        path.write_text("rpc_threads = 4\n")

        with pytest.raises(RefusedError) as caught:
            load(path, {"rpc_threads": "many"})

        assert f"{path}:1" not in str(caught.value)

    def test_people_s_units_are_the_same_numbers(self, tmp_path: Path) -> None:
        """In the file and on the command line."""
        path = tmp_path / "scm.toml"
        path.write_text('stale_after_ms = "20s"\nlmdb_map_bytes = "4GiB"\n')

        options = load(path, {"dead_after_ms": "1min30s"})

        assert (20_000, 90_000) == (options.stale_after_ms, options.dead_after_ms)
        assert 4 * 1024**3 == options.lmdb_map_bytes

    def test_a_file_that_every_user_may_write_is_refused(self, tmp_path: Path) -> None:
        """Otherwise any user could choose the key or the trusted authority."""
        path = tmp_path / "scm.toml"
        path.write_text("rpc_threads = 1\n")
        path.chmod(0o666)

        with pytest.raises(RefusedError, match="its mode 0666"):
            load(path, {})

    @pytest.mark.parametrize("content", [b"rpc_threads = ", b"\xff"])
    def test_an_unreadable_file_is_named(self, tmp_path: Path, content: bytes) -> None:
        """Broken TOML and broken text alike."""
        path = tmp_path / "scm.toml"
        path.write_bytes(content)

        with pytest.raises(RefusedError) as caught:
            load(path, {})

        assert str(path) in str(caught.value)

    @pytest.mark.parametrize(
        ("option", "expected"),
        [
            ("replication_factor", 3),
            ("heartbeat_interval_ms", 1_000),
            ("stale_after_ms", 15_000),
            ("dead_after_ms", 60_000),
            ("check_interval_ms", 5 * 60_000),
            ("verify_interval_ms", 5 * 60_000),
            ("command_deadline_ms", 12 * 60_000),
            ("repair_grace_ms", 10 * 60_000),
            ("reconcile_cooldown_ms", 30_000),
            ("safemode_wait_ms", 5 * 60_000),
            ("safemode_container_percent", 99),
            ("maintenance_replica_min", 2),
            ("inflight_factor_percent", 75),
            ("replication_limit", 20),
            ("exclude_failure_count", 20),
            ("decommission_replica_min", 0),
            ("managed_racks", ""),
            ("allow_plaintext", False),
        ],
    )
    def test_without_a_word_safety_has_these_numbers(
        self, option: str, expected: int | str
    ) -> None:
        """A change of a default changes all clusters that do not set it."""
        assert expected == getattr(ScmOptions(), option)

    def test_explain_names_every_option(self) -> None:
        """With default, bounds and meaning."""
        lines = explain().splitlines()

        assert sorted(ScmOptions.model_fields) == sorted(line.split(" = ")[0] for line in lines)
        assert all(line.endswith(".") and ("  # " in line) for line in lines)
        numbers = [line for line in lines if line.split(" = ")[1][0].isdigit()]
        assert numbers
        assert all("  # from " in line for line in numbers)
