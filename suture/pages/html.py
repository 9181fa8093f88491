"""Renders the web pages of agents and of the control plane from templates.

Jinja2 escapes every value in a template. In addition, invisible characters are replaced by their
codes. Therefore, a name that a datanode reports cannot add markup or hidden text to a page.
"""

from collections.abc import Mapping
from datetime import UTC, datetime

import jinja2
from markupsafe import Markup

from suture.config.quantity import format_duration
from suture.errors import size_text
from suture.observe.terminal_escape import printable
from suture.pages.status_headline import rebuild_remark, volume_word


def templates(*packages: str) -> jinja2.Environment:
    """Return the templates of the packages `packages`, and the templates that all pages share."""
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [jinja2.PackageLoader(package) for package in (*packages, "suture.pages")]
        ),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=escaped,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters.update(
        age=age, ago=ago, duration=format_duration, moment=moment, number=number, size=size_text
    )
    environment.globals.update(rebuild_remark=rebuild_remark, volume_word=volume_word)
    return environment


def render(environment: jinja2.Environment, name: str, facts: Mapping[str, object]) -> bytes:
    """Return an HTML page: the template `name` with the values `facts`."""
    return environment.get_template(name).render(facts).encode(errors="replace")


def escaped(value: object) -> str:
    """Return a value as text, with invisible characters replaced. HTML markup is returned
    unchanged."""
    return value if isinstance(value, Markup) else printable(str(value))


def number(value: int) -> str:
    """Return a count as text with separators, such as "1,234,567"."""
    return f"{value:,}"


def age(at_ms: int, now_ms: int) -> str:
    """Return the time since `at_ms` as text, such as "9 d 2 h". Return "never" if `at_ms` is 0."""
    return "never" if not at_ms else format_duration(max(0, now_ms - at_ms) / 1000)


def ago(at_ms: int, now_ms: int) -> str:
    """Return the time since `at_ms` as text, such as "5 min ago". Return "never" if `at_ms` is 0,
    and "-" if it is negative, which means that the time does not apply."""
    if at_ms < 0:
        return "-"
    return f"{age(at_ms, now_ms)} ago" if at_ms else "never"


def moment(at_ms: int) -> str:
    """Return a time as text, such as "2026-11-30 20:15 UTC". Return "-" if the time is out of
    range."""
    try:
        return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M} UTC"
    except (ValueError, OverflowError, OSError):
        return "-"
