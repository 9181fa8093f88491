"""Alerts and dashboard: they speak of metrics that exist, and fire on what they are for."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.packaging.monitoring import FOLDER, METRIC, expressions, rules, without_suffix

ROOT = Path(__file__).resolve().parents[2]
OPERATIONS = (ROOT / "docs" / "OPERATIONS.md").read_text()

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed"
)


def declared() -> set[str]:
    """Return every metric that agent, control plane and scrub declare."""
    return {
        without_suffix(name)
        for path in ("agent/observe/metrics.py", "ozone/scrub/meters.py", "scm/edge/metrics.py")
        for name in METRIC.findall((ROOT / path).read_text())
    }


def test_every_metric_that_is_asked_for_exists() -> None:
    """
    An alert on a metric that nobody sets never fires, and nobody notices.
    """
    asked = {without_suffix(name) for text in expressions() for name in METRIC.findall(text)}

    assert set() == asked - declared()
    assert len(asked) > 15


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_leads_to_its_first_three_commands(rule: dict[str, Any]) -> None:
    """
    The link of each alert is a heading of the operations manual with three commands below it.
    """
    anchor = rule["annotations"]["runbook_url"].partition("#")[2]
    (section,) = re.findall(rf"^### {anchor}\n(.*?)(?=^##|\Z)", OPERATIONS.replace("\r", ""),
                            re.MULTILINE | re.DOTALL | re.IGNORECASE)  # fmt: skip

    assert 3 == section.count("\n$ ")
    assert rule["labels"]["severity"] in {"critical", "warning"}


@needs_promtool
def test_every_alert_fires_and_keeps_silent() -> None:
    """
    On the fault that it is for each alert fires, and on the healthy twin it does not.
    """
    checked = subprocess.run(
        ["promtool", "test", "rules", "alerts_test.yaml"],  # noqa: S607 - Debian's
        cwd=FOLDER,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert 0 == checked.returncode, checked.stdout + checked.stderr


def test_every_alert_is_tested() -> None:
    """
    No alert is left out of the rules' own tests; each has a fault and a healthy twin.
    """
    tests = yaml.safe_load((FOLDER / "alerts_test.yaml").read_text())["tests"]
    tried = [
        (name, test["promql_expr_test"][0]["exp_samples"][0]["value"])
        for test in tests
        for name in re.findall(r'alertname="(\w+)"', test["promql_expr_test"][0]["expr"])
    ]

    assert sorted((rule["alert"], value) for rule in rules() for value in (0, 1)) == sorted(tried)
