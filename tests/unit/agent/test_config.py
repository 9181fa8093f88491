"""The config file: strict, whole, and every wrong key named."""

from pathlib import Path

import pytest

from agent.config import load
from agent.errors import Code, Refused


def write(path: Path, text: str) -> Path:
    """Write a config file."""
    path.write_text(text)
    return path


class TestLoad:
    def test_volumes_are_all_that_must_be_said(self, tmp_path: Path) -> None:
        """
        A file with volumes only is a whole config: everything else has a default.
        """
        config = load(write(tmp_path / "c.toml", '[storage]\nvolumes = ["/a", "/b"]\n'))

        assert (Path("/a"), Path("/b")) == config.storage.volumes

    @pytest.mark.parametrize(
        ("text", "named"),
        [
            ('[storage]\nvolumes = ["/a"]\nvolume = 1\n', "storage.volume"),
            ('[storage]\nvolumes = ["/a"]\n[scanner]\n', "scanner"),
            ('[storage]\nvolumes = ["/a"]\n[scan]\ndata_interval_s = 1\n', "scan.data_interval_s"),
            ('[storage]\nvolumes = ["/a"]\n[node]\nlisten = "nowhere"\n', "node.listen"),
            ("[storage]\nvolumes = []\n", "storage.volumes"),
            ("", "storage"),
            ('[storage]\nvolumes = ["/a"]\ntree_algorithm = "md5"\n', "storage.tree_algorithm"),
            ("not toml", "c.toml"),
        ],
    )
    def test_what_is_wrong_is_named(self, tmp_path: Path, text: str, named: str) -> None:
        """
        An unknown key, a value out of bounds or a wrong format is refused by its full name.
        """
        with pytest.raises(Refused, match=named) as caught:
            load(write(tmp_path / "c.toml", text))

        assert Code.INVALID_CONFIG == caught.value.code

    def test_all_faults_are_named_at_once(self, tmp_path: Path) -> None:
        """
        A file with two faults is not corrected in two rounds.
        """
        text = '[storage]\nvolumes = ["/a"]\nwrong = 1\n[tasks]\nthreads = 0\n'

        with pytest.raises(Refused) as caught:
            load(write(tmp_path / "c.toml", text))

        assert "storage.wrong" in str(caught.value)
        assert "tasks.threads" in str(caught.value)

    def test_a_missing_file_is_refused(self, tmp_path: Path) -> None:
        """
        A path that does not exist is named.
        """
        with pytest.raises(Refused, match=r"nothing\.toml"):
            load(tmp_path / "nothing.toml")
