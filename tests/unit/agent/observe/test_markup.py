"""What pages are written in: everything from elsewhere is text."""

import pytest
from jinja2 import UndefinedError

from suture.pages.html import age, ago, moment, templates

TEMPLATES = templates()
PARTS = '{% from "parts.html.j2" import bar, marked, row, table, tiles %}'


def page(source: str, **facts: object) -> str:
    """Return what a template with the shared parts shows."""
    return TEMPLATES.from_string(PARTS + source).render(facts)


def test_text_is_escaped_once_and_markup_never() -> None:
    """A template need not escape values, also where one part is inside another."""
    text = page("{{ tiles([(name, marked(name, true))]) }}", name="<i> & co")

    assert "<dt>&lt;i&gt; &amp; co</dt>" in text
    assert '<dd><span class="wrong">&lt;i&gt; &amp; co</span></dd>' in text


def test_invisible_character_is_shown_as_its_code() -> None:
    """This holds also in a title, because reversed text reads as something else."""
    assert "<title>\\u202egnp</title>" == page("<title>{{ name }}</title>", name="\u202egnp")
    assert "\\u202egnp" in page("{{ marked(name, false) }}", name="\u202egnp")


def test_a_value_cannot_leave_its_attribute() -> None:
    """No address can end the attribute of a link."""
    text = page('<a href="{{ address }}">y</a>', address='/?x="><b>')

    assert '<a href="/?x=&#34;&gt;&lt;b&gt;">y</a>' == text


def test_a_fact_that_is_missing_is_an_error() -> None:
    """It is not shown as an empty text."""
    with pytest.raises(UndefinedError, match="finding_count"):
        page("{{ finding_count }}")


@pytest.mark.parametrize(
    ("part", "whole", "share"),
    [(0, 9, "0 %"), (1, 9, "11 %"), (9, 9, "100 %"), (8.9999, 9, "99 %"), (20, 9, "100 %")],
)
def test_a_share_is_rounded_down(part: float, whole: float, share: str) -> None:
    """A partial share is never shown as 100 %. A share above the whole is shown as the whole."""
    assert f">{share}</span>" in page("{{ bar(part, whole) }}", part=part, whole=whole)


def test_share_of_an_empty_total_is_a_dash() -> None:
    """The share is not shown as 0 %."""
    assert "-" == page("{{ bar(0, 0) }}") == page("{{ bar(5, -1) }}")


def test_a_table_names_each_value_for_narrow_screens() -> None:
    """Numbers are aligned right, empty cells are left out on narrow screens, and an empty table
    has a text.
    """
    source = "{% call(one) table(columns, items, 'Nothing.') %}{{ row(columns, one) }}{% endcall %}"
    columns = ("name", "#count")

    text = page(source, columns=columns, items=[("a", 5), ("", 6), ("x" * 25, 7)])

    assert '<td data-l="name">a</td><td class=n data-l="count">5</td>' in text
    assert '<td class=e data-l="name"></td>' in text
    assert f'<td class=w data-l="name">{"x" * 25}</td>' in text
    assert '<p class="soft">Nothing.</p>' == page(source, columns=columns, items=[]).strip()


def test_times_are_said_as_people_say_them() -> None:
    """A clock that is behind makes nothing younger than now; no time is no time."""
    assert ("never", "0 s", "1 h") == (age(0, 5), age(9_000, 5_000), age(1_000, 3_601_000))
    assert ("-", "never", "1 h ago") == (ago(-1, 5), ago(0, 5), ago(1_000, 3_601_000))
    assert "1970-01-02 00:00 UTC" == moment(86_400_000)
    assert "-" == moment(2**63)
