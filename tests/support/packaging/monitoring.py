"""The Prometheus queries of the shipped alerts and the dashboard."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parents[3] / "monitoring"
METRIC = re.compile(r"\bsuture_[a-z_]+\b")
SUFFIXES = ("_total", "_bucket", "_count", "_sum")


def rules() -> list[dict[str, Any]]:
    """Return the rules of all shipped alerts."""
    (group,) = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    return list(group["rules"])


def without_suffix(name: str) -> str:
    """Return the declared name of a metric, without a suffix that Prometheus adds."""
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def expressions() -> list[str]:
    """Return all queries of the alerts and the dashboard."""
    panels = json.loads((FOLDER / "dashboard.json").read_text())["panels"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    return asked + [rule["expr"] for rule in rules()]
