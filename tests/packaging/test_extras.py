"""Extras: the wheel declares them, and a program that lacks one names it in a sentence."""

import os
import re
import subprocess
import sys
import tomllib
from email.parser import Parser
from pathlib import Path

import pytest

from agent.host.report_export import NEEDED
from scm.state.options import ScmOptions
from spark_verify import start
from suture import errors
from suture.errors import RefusedError
from tests.support.control.scm_world import ScmWorld
from tests.support.packaging.wheel import built_wheel, metadata_of

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
STARTS = {
    "suture": "agent.cli.start",
    "suture-scm": "scm.start",
    "suture-verify": "spark_verify.start",
}
ADDRESS = "snapshot_address=file:///nowhere"
EXPORT = ("suture", "ozone", "export", "--scm", "127.0.0.1:1", "--to", "/nowhere")
NAME = re.compile(r"^[a-z0-9]+")
HIDDEN = "import sys; sys.modules[{package!r}] = None; sys.argv[0] = {program!r}; "
RUN = HIDDEN + "from {module} import main; main()"


def without(package: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run one of our commands where a package cannot be imported."""
    program = str(words[0])
    code = RUN.format(package=package, program=program, module=STARTS[program])
    return subprocess.run(
        [sys.executable, "-c", code, *words[1:]],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "200"},
    )


@pytest.mark.parametrize(
    ("package", "extra", "words"),
    [
        ("pyarrow", "scm", ("suture-scm", "--data", "/nowhere", "--set", ADDRESS)),
        ("pyarrow", "scm", ("suture", "scm", "apply-plan", "/nowhere")),
        ("pyarrow", "scm", EXPORT),
        ("pyarrow", "spark", ("suture-verify", "/nowhere", "--out", "/nowhere")),
        ("pyspark", "spark", ("suture-verify", "/nowhere", "--out", "/nowhere")),
        ("pyspark", "spark", ("suture-verify", "views", "/nowhere")),
        ("rocksdict", "ozone", ("suture", "ozone", "scrub", "/nowhere")),
        ("gssapi", "ozone-secure", (*EXPORT, "--scm-principal", "scm/_HOST@EXAMPLE.COM")),
    ],
)
def test_an_absent_extra_is_named(package: str, extra: str, words: tuple[str, ...]) -> None:
    """One sentence names the missing package and another the command to type. The exit code is
    that of an error.
    """
    ended = without(package, *words)

    assert 1 == ended.returncode, ended.stdout + ended.stderr
    assert f"needs the package {package}, which is not installed" in ended.stderr
    assert f"pip install 'suture[{extra}]'" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("asked", ["--help", "--version"])
def test_help_of_the_spark_job_needs_no_package_of_its_extra(asked: str) -> None:
    """A host without Spark can show what the command does and which version it has."""
    hidden = "".join(f"sys.modules[{name!r}] = None; " for name in sorted(start.OF_THE_EXTRA))
    code = f"import sys; {hidden}sys.argv[0] = 'suture-verify'; " + (
        "from spark_verify.start import main; main()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, asked], capture_output=True, text=True, timeout=60, cwd=ROOT
    )

    assert 0 == ended.returncode, ended.stderr
    assert "suture-verify" in ended.stdout


def test_a_snapshot_without_arrow_is_refused_and_the_control_plane_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The packages for storage hosts have no Arrow. Only the writer of Arrow files names the
    extra.
    """
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for module in ("suture.wire.mapping.snapshot_file", "scm.api.spark.snapshot_upload"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    with (
        ScmWorld(tmp_path, ScmOptions()).running() as world,
        pytest.raises(RefusedError) as refused,
    ):
        world.control.queries.export_snapshot()

    assert "a snapshot needs the package pyarrow" in str(refused.value)
    assert "install the package suture-verify" in refused.value.hint


def test_missing_package_of_no_extra_shows_a_traceback() -> None:
    """A package of the wheel itself that is missing is a defect."""
    ended = without("lmdb", "suture-scm", "--data", "/nowhere")

    assert "Traceback" in ended.stderr


def test_the_sentences_know_every_package_of_an_extra() -> None:
    """A package added to an extra must also be in the table of the error messages."""
    extras = {
        extra: {NAME.findall(requirement)[0] for requirement in requirements}
        for extra, requirements in PROJECT["optional-dependencies"].items()
    }

    assert {"fsspec", "ozone", "ozone-secure", "reports", "scm", "spark"} == extras.keys()
    assert extras["fsspec"] == {"fsspec"}, "fsspec itself imports our module"
    for extra in ("ozone", "ozone-secure", "scm"):
        assert extras[extra] == {name for name, its in errors.EXTRAS.items() if its == extra}
    assert extras["spark"] == start.OF_THE_EXTRA
    assert extras["reports"] == {NEEDED}


def test_the_wheel_declares_the_extras(tmp_path: Path) -> None:
    """The wheel's metadata has each extra with all its packages."""
    metadata = Parser().parsestr(metadata_of(built_wheel(tmp_path)))

    required = metadata.get_all("Requires-Dist") or []
    for extra, requirements in PROJECT["optional-dependencies"].items():
        assert extra in (metadata.get_all("Provides-Extra") or [])
        told = [line.partition(";")[0] for line in required if f"extra == '{extra}'" in line]
        assert {NAME.findall(r)[0] for r in requirements} == {NAME.findall(r)[0] for r in told}
