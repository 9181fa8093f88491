"""A file that is fetched: whole, under the name that was given, with the mode that was there."""

import stat
from pathlib import Path

from suture.client.download import write_whole


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    """The file behind the link is replaced, and keeps its mode."""
    target, link = tmp_path / "target", tmp_path / "folder" / "link"
    target.write_bytes(b"old")
    target.chmod(0o600)
    link.parent.mkdir()
    link.symlink_to(Path("..") / "target")

    write_whole(link, [b"ne", b"w"])

    assert link.is_symlink()
    assert b"new" == target.read_bytes()
    assert 0o600 == stat.S_IMODE(target.stat().st_mode)
    assert {target, link.parent} == set(tmp_path.iterdir())


def test_a_link_to_nothing_gets_its_file(tmp_path: Path) -> None:
    """The download creates the target of a dangling link, as a shell does."""
    link = tmp_path / "link"
    link.symlink_to("target")

    write_whole(link, [b"new"])

    assert link.is_symlink()
    assert b"new" == (tmp_path / "target").read_bytes()
