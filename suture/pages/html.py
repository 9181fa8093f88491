"""Renders the pages of agents and of the control plane from their templates.

Jinja2 escapes every value that a template shows. The same code also replaces invisible characters
by their codes. So a name that a datanode chose cannot do harm on a page.
"""

from collections.abc import Mapping
from datetime import UTC, datetime

import jinja2
from markupsafe import Markup

from suture.config.quantity import format_duration
from suture.errors import size_text
from suture.observe.terminal_escape import printable
from suture.pages.status_headline import volume_word


def templates(*packages: str) -> jinja2.Environment:
    """Return the templates of `packages`, with those that all pages share."""
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
    environment.globals.update(volume_word=volume_word)
    return environment


def render(environment: jinja2.Environment, name: str, facts: Mapping[str, object]) -> bytes:
    """Return the page as HTML: the template `name`, filled with `facts`."""
    return environment.get_template(name).render(facts).encode(errors="replace")


def escaped(value: object) -> str:
    """Return a value as escaped text of a page; HTML markup is returned unchanged."""
    return value if isinstance(value, Markup) else printable(str(value))


def number(value: int) -> str:
    """Return a count with separators: 1,234,567."""
    return f"{value:,}"


def age(at_ms: int, now_ms: int) -> str:
    """Return the time since `at_ms` in words, such as "9 d 2 h"; "never" for 0."""
    return "never" if not at_ms else format_duration(max(0, now_ms - at_ms) / 1000)


def ago(at_ms: int, now_ms: int) -> str:
    """Return how long ago `at_ms` was, such as "5 min ago". Return "never" for 0, and "-" for a
    negative number, which means that the time does not apply."""
    if at_ms < 0:
        return "-"
    return f"{age(at_ms, now_ms)} ago" if at_ms else "never"


def moment(at_ms: int) -> str:
    """Return a time as "2026-11-30 20:15 UTC"; "-" if it is out of range."""
    try:
        return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M} UTC"
    except (ValueError, OverflowError, OSError):
        return "-"
