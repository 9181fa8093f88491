"""How the agent is put together: each part is whole when it is built."""

import ast
from pathlib import Path

import pytest

HOST = Path(__file__).resolve().parents[4] / "agent" / "host"


@pytest.mark.parametrize("module", ["wiring.py", "host.py"])
def test_host_sets_no_attribute_of_a_built_part(module: str) -> None:
    """A part gets its dependencies through its constructor."""
    targets = [
        target
        for node in ast.walk(ast.parse((HOST / module).read_text()))
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]

    foreign = [
        ast.unparse(target)
        for target in targets
        if isinstance(target, ast.Attribute) and ast.unparse(target.value) != "self"
    ]

    assert targets
    assert [] == foreign
