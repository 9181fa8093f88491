"""What an operator chooses: where it comes from, and what is refused."""

import re
import shlex
from dataclasses import asdict
from pathlib import Path

import pytest

from health.rules import Rules
from spark_verify import job
from spark_verify.options import VerifyOptions
from spark_verify.pipeline import VerifyRequest, verify
from suture.errors import RefusedError
from tests.support.printed_json import document_in
from tests.support.verification.snapshots import NodeRow, container, gather

UNIT = Path(__file__).parents[3] / "systemd" / "suture-verify.service"

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


def options(directory: Path, text: str) -> Path:
    """Write a file of options."""
    path = directory / "verify.toml"
    path.write_text(text)
    return path


def test_a_flag_comes_before_the_file_and_the_file_before_the_snapshot(tmp_path: Path) -> None:
    """Each option has its origin, and the rest is the default."""
    file = options(tmp_path, "maintenance_min = 3\nec_redundancy = 4\n")
    flags = {"maintenance_min": 5, "max_age_s": None}
    chosen = VerifyOptions.of(flags, file)

    rules = {"maintenance_min": 7, "ec_redundancy": 8, "most_copies": 9}
    told = {
        name: (one["value"], one["from"]) for name, one in chosen.explained(flags, rules).items()
    }

    assert (5, "flag") == told["maintenance_min"]
    assert (4, "file") == told["ec_redundancy"]
    assert (9, "snapshot") == told["most_copies"]
    assert (0, "default") == told["max_age_s"]
    assert set(told) == set(VerifyOptions.model_fields)
    assert {"maintenance_min": 5, "ec_redundancy": 4} == chosen.own_rules


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("maintenance = 1", "1 maintenance: no such option; maintenance_min"),
        ("maintenance_min = -1", "1 maintenance_min: -1 is out of bounds"),
        ("maintenance_min = true", "1 maintenance_min: .* integer, not True"),
        ("reporting_min_percent = 101", "1 reporting_min_percent: 101 is out of bounds"),
        ("maintenance_min =", "verify.toml: Invalid value"),
    ],
)
def test_invalid_option_value_is_refused_by_its_name(tmp_path: Path, text: str, words: str) -> None:
    """The option is refused before any data is read."""
    with pytest.raises(RefusedError, match=words):
        VerifyOptions.of({}, options(tmp_path, text))


def test_every_rule_has_an_option_with_its_default() -> None:
    """The number of racks has no option, because it is counted."""
    rules = asdict(Rules())
    del rules["rack_count"]

    assert rules == VerifyOptions().model_dump(include=set(rules))


def test_chosen_rule_and_sample_limit_come_before_the_snapshots(tmp_path: Path) -> None:
    """One of three replicas is in maintenance. Enough are online by the snapshot's number, and
    too few by the operator's. Nine other containers lack a replica by both. The limit of named
    containers applies to the samples and to the text report.
    """
    lacking = [container(i, "R CLOSED 10", "C=7x2") for i in range(1, 10)]
    rows = gather([*lacking, container(10, "R CLOSED 10", "C=7x2 C=7/m")])
    snapshot = rows.write(tmp_path / "s", manifest={"rules": {"maintenance_min": 2}})

    plain = verify(
        VerifyRequest(str(snapshot), tmp_path / "out", "plain", options=VerifyOptions(sample_max=4))
    )
    strict = verify(
        VerifyRequest(
            str(snapshot), tmp_path / "out", "strict", options=VerifyOptions(maintenance_min=3)
        )
    )

    assert 9 == plain.summary["plan"]["replicate"]["rows"]
    assert 10 == strict.summary["plan"]["replicate"]["rows"]
    assert 3 == strict.summary["rules"]["maintenance_min"]
    assert [1, 2, 3, 4] == plain.summary["samples"]["flags"]["UNDER_REPLICATED"]
    assert "First 4 UNDER_REPLICATED containers:\n1, 2, 3, 4" in plain.summary["text_report"]


def test_show_options_prints_them_and_verifies_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    All options, as JSON for programs; no result is made.
    """
    snapshot = gather([container(1, "R CLOSED 10", "C=7x3")]).write(tmp_path / "s")
    words = [str(snapshot), "--out", str(tmp_path / "out"), "--sample-max", "7", "--show-options"]
    monkeypatch.setattr("sys.argv", ["suture-verify", *words, "--json"])

    with pytest.raises(SystemExit) as ended:
        job.main()

    told = document_in(capsys.readouterr().out)["options"]
    assert 0 == ended.value.code
    assert {"value": 7, "from": "flag"} == {
        name: told["sample_max"][name] for name in ("value", "from")
    }
    assert not (tmp_path / "out").exists()


def test_the_shipped_unit_refuses_what_is_old_or_half_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    With the very flags of the unit: an old snapshot is refused, and, were it fresh, one of which a
    fifth of the nodes has not reported.
    """
    (line,) = re.findall(r"^ExecStart=(.+)$", UNIT.read_text(), re.MULTILINE)
    script = shlex.split(line)[2]
    flags = shlex.split(script.partition('"$$snapshot"')[2])
    rows = gather([container(1, "R CLOSED 10", "C=7x3")])
    rows.nodes.append(NodeRow("silent", has_reported=False))
    snapshot = rows.write(tmp_path / "s")
    said = []
    for more in ((), ("--max-age", "0")):
        words = [str(snapshot), *flags, "--out", str(tmp_path / "out"), *more]
        monkeypatch.setattr("sys.argv", ["suture-verify", *words])
        with pytest.raises(SystemExit) as ended:
            job.main()
        assert 1 == ended.value.code
        said.append(capsys.readouterr().err)

    assert "at most 3600 s are allowed" in said[0]
    assert "90 % are required" in said[1]
    assert 'snapshot)" && exec' in script, "without a snapshot nothing is verified"
