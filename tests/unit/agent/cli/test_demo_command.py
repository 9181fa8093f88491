"""The demo is part of a checkout, and of no installation."""

from pathlib import Path

import pytest

from agent.cli.setup.demo_command import CHECKOUT, find_demo_command
from suture.errors import UnavailableError


def test_installation_without_tools_says_where_the_demo_is(tmp_path: Path) -> None:
    """The wheel and the packages do not carry it."""
    with pytest.raises(UnavailableError, match="not a checkout") as caught:
        find_demo_command(tmp_path)(["a"])

    assert "make demo" in caught.value.hint


def test_checkout_runs_its_own_demo() -> None:
    """The command has the options of the harness."""
    assert "tools.demo.command" == find_demo_command(CHECKOUT).__module__
