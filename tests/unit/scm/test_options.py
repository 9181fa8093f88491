"""Options: checked one by one and together, unknown ones refused."""

from pathlib import Path

import pytest

from agent.errors import Code, Refused
from scm.options import ScmOptions, explain, load, parse


class TestLoad:
    def test_the_command_line_wins_over_the_file_and_the_file_over_the_default(
        self, tmp_path: Path
    ) -> None:
        """One place each."""
        path = tmp_path / "scm.toml"
        path.write_text("seed = 1\nreplication_factor = 2\n")

        options = load(path, {"seed": "5"})

        assert ScmOptions(seed=5, replication_factor=2) == options

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ({"sede": 1}, "unknown option sede"),
            ({"seed": "many"}, "seed: 'many' is not a number"),
            ({"seed": 1.5}, "seed: 1.5 is not a whole number"),
            ({"seed": True}, "seed: True is not a whole number"),
            ({"replication_factor": 0}, "replication_factor: 0 is outside 1..10"),
            ({"stale_after_ms": 60_000}, "dead_after_ms 60000 must exceed stale_after_ms 60000"),
            ({"band_min_count": 4}, "band_min_count 4 must not exceed replication_factor 3"),
            ({"band_max_count": 2}, "band_max_count 2 must not be below replication_factor 3"),
            ({"command_deadline_ms": 2_000}, "must be below command_deadline_ms 2000"),
        ],
    )
    def test_a_wrong_value_is_named(self, values: dict[str, object], message: str) -> None:
        """With its bounds or its rival."""
        with pytest.raises(Refused) as caught:
            parse(values)

        assert caught.value.code is Code.INVALID_CONFIG
        assert message in str(caught.value)

    @pytest.mark.parametrize("content", [b"seed = ", b"\xff"])
    def test_an_unreadable_file_is_named(self, tmp_path: Path, content: bytes) -> None:
        """Broken TOML and broken text alike."""
        path = tmp_path / "scm.toml"
        path.write_bytes(content)

        with pytest.raises(Refused) as caught:
            load(path, {})

        assert str(path) in str(caught.value)

    def test_explain_names_every_option(self) -> None:
        """With default, bounds and meaning."""
        lines = explain().splitlines()

        assert sorted(ScmOptions.__slots__) == sorted(line.split(" = ")[0] for line in lines)
        assert all(line.endswith(".") and ("  # " in line) for line in lines)
        numbers = [line for line in lines if line.split(" = ")[1][0].isdigit()]
        assert numbers
        assert all(".." in line for line in numbers)
