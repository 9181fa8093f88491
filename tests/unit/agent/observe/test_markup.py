"""What pages are written in: everything from elsewhere is text."""

import pytest

from agent.observe.markup import Markup, age, bar, bullets, document, element, link, moment, table


def test_text_is_escaped_once_and_markup_never() -> None:
    """The caller need not escape values."""
    inner = element("b", "<i> & co")

    assert "<p><b>&lt;i&gt; &amp; co</b>&quot;</p>" == element("p", inner, '"')
    assert "<ul><li>&lt;b&gt;</li></ul>" == bullets(["<b>"])


def test_invisible_character_is_shown_as_its_code() -> None:
    """This holds also in a title, because reversed text reads as something else."""
    assert "\\u202egnp" in element("td", "\u202egnp")
    assert b"<title>\\u202egnp</title>" in document("\u202egnp")


def test_a_link_cannot_leave_its_attribute() -> None:
    """No address can end the attribute of a link."""
    assert '<a href="/?x=&quot;&gt;&lt;b&gt;">y</a>' == link('/?x="><b>', "y")


@pytest.mark.parametrize(
    ("part", "whole", "share"),
    [(0, 9, "0 %"), (1, 9, "11 %"), (9, 9, "100 %"), (8.9999, 9, "99 %"), (20, 9, "100 %")],
)
def test_a_share_is_rounded_down(part: float, whole: float, share: str) -> None:
    """A partial share is never shown as 100 %. A share above the whole is shown as the whole."""
    assert f"{share}</span>" in bar(part, whole)


def test_share_of_an_empty_total_is_a_dash() -> None:
    """The share is not shown as 0 %."""
    assert "-" == bar(0, 0) == bar(5, -1)


def test_a_table_names_each_value_for_narrow_screens() -> None:
    """Numbers are aligned right, empty cells are left out on narrow screens, and an empty table
    has a text.
    """
    text = table(("name", "#count"), [("a", 5), ("", 6)])

    assert '<td data-l="name">a</td><td class=n data-l="count">5</td>' in text
    assert '<td class=e data-l="name"></td>' in text
    assert '<p class="soft">Nothing.</p>' == table(("a",), [], "Nothing.")
    assert isinstance(text, Markup)


def test_times_are_said_as_people_say_them() -> None:
    """A clock that is behind makes nothing younger than now; no time is no time."""
    assert ("never", "0 s", "1 h") == (age(0, 5), age(9_000, 5_000), age(1_000, 3_601_000))
    assert "1970-01-02 00:00 UTC" == moment(86_400_000)
    assert "-" == moment(2**63)
