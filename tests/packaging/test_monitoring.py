"""Alerts and dashboard: they speak of metrics that exist, and fire on what they are for."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.support.manual.reading import MANUAL
from tests.support.packaging.monitoring import FOLDER, METRIC, expressions, rules, without_suffix
from tools.packages import stage

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = f"file:///{stage.SITE}/"
LISTED = re.compile(r"^\| \[(\w+)\]\((\S+)\) \|", re.MULTILINE)

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed"
)

needs_amtool = pytest.mark.skipif(shutil.which("amtool") is None, reason="amtool is not installed")
ALERTMANAGER = FOLDER / "alertmanager.yaml"


def declared() -> set[str]:
    """Return every metric that agent, control plane and scrub declare."""
    return {
        without_suffix(name)
        for path in ("agent/observe/metrics.py", "ozone/scrub/meters.py", "scm/api/metrics.py")
        for name in METRIC.findall((ROOT / path).read_text())
    }


def test_every_metric_that_is_asked_for_exists() -> None:
    """An alert on a metric that is never exported never fires."""
    asked = {without_suffix(name) for text in expressions() for name in METRIC.findall(text)}

    assert set() == asked - declared()
    assert len(asked) > 15


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_leads_to_its_first_three_commands(rule: dict[str, Any]) -> None:
    """
    The link of each alert is a heading of an installed page with three commands below it.
    """
    name, _, anchor = rule["annotations"]["runbook_url"].removeprefix(INSTALLED).partition("#")
    name = name.replace(".html", ".md")
    text = (ROOT / "docs" / name).read_text()
    (section,) = re.findall(rf"^## {anchor}\n(.*?)(?=^##|\Z)", text,
                            re.MULTILINE | re.DOTALL | re.IGNORECASE)  # fmt: skip

    assert 3 == section.count("\n$ ")
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}


def test_list_of_alerts_is_complete() -> None:
    """The page docs/operations/alerts.md links to the section of each alert."""
    listed = LISTED.findall((MANUAL / "alerts.md").read_text())

    urls = {rule["alert"]: rule["annotations"]["runbook_url"] for rule in rules()}
    assert urls == {
        alert: f"{INSTALLED}operations/{link.replace('.md', '.html')}" for alert, link in listed
    }
    assert len(urls) == len(listed)


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
        timeout=300,
    )

    assert 0 == checked.returncode, checked.stdout + checked.stderr


def test_alertmanager_hides_alerts_that_exist() -> None:
    """Each pattern of the example's inhibit rules matches an alert."""
    names = {rule["alert"] for rule in rules()}

    for rule in yaml.safe_load(ALERTMANAGER.read_text())["inhibit_rules"]:
        for matcher in (*rule["source_matchers"], *rule["target_matchers"]):
            (pattern,) = re.findall(r'^alertname=~?"(.+)"$', matcher)
            parts = pattern.split("|")
            matching = [{name for name in names if re.fullmatch(one, name)} for one in parts]
            assert all(matching), matcher


@needs_amtool
def test_alertmanager_reads_the_example() -> None:
    """Critical alerts, messages and other alerts reach their receivers."""
    checked = run_amtool("check-config", str(ALERTMANAGER))
    routed = {
        severity: run_amtool("config", "routes", "test", f"--config.file={ALERTMANAGER}",
                             f"severity={severity}").strip()
        for severity in ("critical", "warning", "info")
    }  # fmt: skip

    assert "SUCCESS" in checked
    assert {"critical": "operators", "warning": "operators", "info": "events"} == routed


def run_amtool(*words: str) -> str:
    """Return the output of amtool."""
    done = subprocess.run(["amtool", *words], capture_output=True, text=True, timeout=60)  # noqa: S607 - Debian's
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout


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


def test_grafana_knows_every_field_of_the_dashboard() -> None:
    """
    Read into Grafana's own models and written again, nothing of it is lost; panels do not overlap.
    """
    plugins.register_default_plugins()
    given = json.loads((FOLDER / "dashboard.json").read_text())

    known = json.loads(JSONEncoder().encode(Dashboard.from_json(given)))
    given["panels"][0]["nobodys"] = 1
    strange = json.loads(JSONEncoder().encode(Dashboard.from_json(given)))

    assert ["/panels/0/nobodys"] == lost(given, strange), "what the models do not know is seen"
    del given["panels"][0]["nobodys"]
    assert [] == lost(given, known)
    cells = [
        (x, y)
        for at in (panel["gridPos"] for panel in given["panels"])
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in given["panels"]}) == len(given["panels"])


def lost(given: Any, known: Any, path: str = "") -> list[str]:
    """Return the fields that are not, or are otherwise, in what somebody made of it."""
    if isinstance(given, dict) and isinstance(known, dict):
        inner = [(name, value, known.get(name, ...)) for name, value in given.items()]
    elif isinstance(given, list) and isinstance(known, list) and len(given) == len(known):
        inner = [(str(i), *pair) for i, pair in enumerate(zip(given, known, strict=True))]
    else:
        return [] if given == known else [path]
    return [field for name, own, their in inner for field in lost(own, their, f"{path}/{name}")]


@needs_promtool
def test_prometheus_reads_every_expression(tmp_path: Path) -> None:
    """Prometheus also parses the dashboard's expressions with their variables filled in."""
    texts = [text.replace("$instance", "one").replace("$__range", "1h") for text in expressions()]
    texts = [text.replace("$__rate_interval", "5m") for text in texts]
    named = [{"record": f"asked:{i}", "expr": text} for i, text in enumerate(texts)]
    file = tmp_path / "asked.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "asked", "rules": named}]}))

    checked = subprocess.run(
        ["promtool", "check", "rules", file],  # noqa: S607 - Debian's
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert 0 == checked.returncode, checked.stdout + checked.stderr
    assert f"{len(texts)} rules found" in checked.stdout
