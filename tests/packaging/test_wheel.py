"""The wheel holds what a storage host needs, and nothing else."""

import ast
import configparser
import zipfile
from pathlib import Path

import pytest

from tests.support.packaging.tidy import PRODUCT_PACKAGES, read_repository
from tests.support.packaging.wheel import built_wheel

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.Path:
    """The wheel, built by the real builder from this tree."""
    return zipfile.Path(built_wheel(tmp_path_factory.mktemp("wheel")))


def test_wheel_has_the_product_packages_and_nothing_else(wheel: zipfile.Path) -> None:
    """No tests, benchmarks, tools, documents or .proto sources reach a storage host."""
    folders = {path.name for path in wheel.iterdir() if not path.name.endswith(".dist-info")}

    assert set(PRODUCT_PACKAGES) == folders


def test_wheel_has_every_module(wheel: zipfile.Path) -> None:
    """Generated code and data files are included."""
    expected = {path for path in read_repository(ROOT) if path.startswith(PRODUCT_PACKAGES)}

    assert expected <= set(wheel.root.namelist())


def test_every_command_has_its_function(wheel: zipfile.Path) -> None:
    """
    Each entry point names a module of the wheel and a function that the module declares.
    """
    commands = entry_points(wheel)

    for target in commands.values():
        module, _, function = target.partition(":")
        text = (wheel / (module.replace(".", "/") + ".py")).read_text()
        assert function in declared(text), target
    assert {"suture", "suture-agent", "suture-scm", "suture-verify"} == commands.keys()


def test_wheel_has_the_licence(wheel: zipfile.Path) -> None:
    """The licence text is shipped with the code."""
    names = wheel.root.namelist()

    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def entry_points(wheel: zipfile.Path) -> dict[str, str]:
    """Return the console commands of the wheel: name -> `module:function`."""
    (information,) = (path for path in wheel.iterdir() if path.name.endswith(".dist-info"))
    parser = configparser.ConfigParser()
    parser.read_string((information / "entry_points.txt").read_text())
    return dict(parser["console_scripts"])


def declared(source: str) -> set[str]:
    """Return the names of a module's top-level functions."""
    return {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
