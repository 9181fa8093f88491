"""HTML of the pages of agents and of the control plane, without scripts or assets.

Everything that is not `Markup` is escaped, and invisible characters are written as their codes, at
the one place where text enters a page. So a name that a datanode chose can be shown and cannot do
harm. On a narrow screen each table row is a card, with the column names before the values.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from agent.config.quantity import format_duration
from agent.observe.printable import printable

STYLE: Final = """
:root{--ink:#1c2230;--paper:#fff;--line:#dde1e8;--soft:#667085;--good:#2a8a4a;--bad:#c0392b;
--doubt:#b7791f;--fill:#4a7bd0;--box:#f5f7fa}
*{box-sizing:border-box}
body{font:15px/1.45 system-ui,sans-serif;margin:1.2rem auto;max-width:84rem;padding:0 1rem;
color:var(--ink);background:var(--paper);overflow-wrap:break-word}
h1{font-size:1.15rem}h2{font-size:1rem;margin:2rem 0 .5rem}a{color:var(--fill)}
code{font-size:.9em;background:var(--box);padding:.05rem .3rem;border-radius:.2rem}
.soft{color:var(--soft)}.wrong{color:var(--bad)}.doubt{color:var(--doubt)}
p.answer{font-size:1.15rem;padding:.8rem 1rem;border-left:.35rem solid var(--good);
background:color-mix(in srgb,var(--good) 9%,var(--paper))}
p.answer.wrong{color:var(--ink);border-color:var(--bad);
background:color-mix(in srgb,var(--bad) 9%,var(--paper))}
p.answer.doubt{color:var(--ink);border-color:var(--doubt);
background:color-mix(in srgb,var(--doubt) 11%,var(--paper))}
dl.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(9.5rem,1fr));gap:.6rem;margin:0}
dl.tiles div{background:var(--box);padding:.5rem .8rem;border-radius:.3rem}
dl.tiles dt{color:var(--soft);font-size:.85rem}dl.tiles dd{margin:0;font-size:1.1rem}
dl.tiles .bar{width:3.6rem}
table{border-collapse:collapse;width:100%}th{text-align:left;font-weight:600;color:var(--soft);
font-size:.87rem}th,td{padding:.28rem .9rem .28rem 0;border-bottom:1px solid var(--line);
vertical-align:top}td a,td.w{overflow-wrap:anywhere}
th.n,td.n{text-align:right;font-variant-numeric:tabular-nums}td.n,.share{white-space:nowrap}
.bar{display:inline-block;width:5rem;height:.6rem;background:var(--line);border-radius:.2rem;
overflow:hidden;margin-right:.4rem}.bar i{display:block;height:100%;background:var(--fill)}
.bar.wrong i{background:var(--bad)}.bar.doubt i{background:var(--doubt)}
svg{display:block;width:100%}svg.strip{height:1.6rem}svg.curve{height:4.5rem}
p.scale{display:flex;justify-content:space-between;margin:.2rem 0;font-size:.8rem}
.k{display:inline-block;width:.7rem;height:.7rem;margin:0 .3rem 0 .8rem;border-radius:.15rem}
@media(max-width:40rem){thead{position:absolute;left:-9999px}
tr{display:block;padding:.5rem 0;border-bottom:1px solid var(--line)}
td,td.n{display:flex;justify-content:space-between;gap:1rem;text-align:right;border:0;
padding:.1rem 0;overflow-wrap:anywhere;white-space:normal}
td::before{content:attr(data-l);color:var(--soft);text-align:left;flex:none}
td:first-child{font-weight:600}td.e{display:none}}
@media(prefers-color-scheme:dark){:root{--ink:#dfe3ea;--paper:#14171d;--line:#2b313c;
--soft:#98a2b3;--good:#3fae66;--bad:#e0675a;--doubt:#d9a441;--fill:#7aa5ee;--box:#1b2028}}
"""

WIDE_CHARS: Final = 24  # longer cells may be broken within a word


class Markup(str):
    """Text that is HTML already, made of escaped parts."""

    __slots__ = ()


def html(value: object) -> str:
    """Return a value as HTML, escaped if needed."""
    return value if isinstance(value, Markup) else escape(printable(str(value)))


def joined(*values: object, separator: str = "") -> Markup:
    """Return values joined by `separator`."""
    return Markup(separator.join(map(html, values)))


def element(name: str, *content: object, kind: str = "") -> Markup:
    """Return an element, such as a paragraph, of a kind that the style sheet knows."""
    of_kind = f' class="{escape(kind)}"' if kind else ""
    return Markup(f"<{name}{of_kind}>{joined(*content)}</{name}>")


def link(address: str, text: object) -> Markup:
    """Return a link within this listener."""
    return Markup(f'<a href="{escape(address)}">{html(text)}</a>')


def document(title: str, *content: object) -> bytes:
    """Return a whole page."""
    head = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
    )
    body = joined(*content)
    text = f"{head}<title>{html(title)}</title><style>{STYLE}</style></head><body>{body}"
    return (text + "</body></html>").encode(errors="replace")


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], nothing: str = "None."
) -> Markup:
    """Return a table; columns named `#` hold numbers. `nothing` is shown if there are no rows."""
    named = [
        (column.lstrip("#"), " class=n" if column.startswith("#") else "") for column in columns
    ]
    body = "".join(
        "<tr>"
        + "".join(_cell(name, kind, cell) for (name, kind), cell in zip(named, row, strict=True))
        + "</tr>"
        for row in rows
    )
    if not body:
        return element("p", nothing, kind="soft")
    head = "".join(f"<th scope=col{kind}>{escape(name)}</th>" for name, kind in named)
    return Markup(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")


def section(title: str, *content: object) -> Markup:
    """Return a heading and its content."""
    return joined(element("h2", title), *content)


def bullets(items: Iterable[object]) -> Markup:
    """Return a list; nothing if there are no items."""
    body = "".join(element("li", item) for item in items)
    return Markup(f"<ul>{body}</ul>" if body else "")


def tiles(facts: Iterable[tuple[str, object]]) -> Markup:
    """Return facts side by side, each below its name."""
    body = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{html(value)}</dd></div>" for name, value in facts
    )
    return Markup(f'<dl class="tiles">{body}</dl>')


def bar(part: float, whole: float, kind: str = "") -> Markup:
    """Return a share as a bar and in per cent, rounded down; "-" if `whole` is 0."""
    if whole <= 0:
        return Markup("-")
    share = max(0, min(100, int(part * 100 // whole)))
    of_kind = f" {escape(kind)}" if kind else ""
    filled = f'<span class="bar{of_kind}"><i style="width:{share}%"></i></span>'
    return Markup(f'<span class="share">{filled}{share} %</span>')


def age(at_ms: int, now_ms: int) -> str:
    """Return the time since `at_ms` in words."""
    return "never" if not at_ms else format_duration(max(0, now_ms - at_ms) / 1000)


def moment(at_ms: int) -> str:
    """Return a time in readable form."""
    try:
        return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M} UTC"
    except (ValueError, OverflowError, OSError):
        return "-"


def _cell(name: str, kind: str, value: object) -> str:
    text = html(value)
    of_kind = " class=e" if not text else kind or (" class=w" if len(text) > WIDE_CHARS else "")
    return f'<td{of_kind} data-l="{escape(name)}">{text}</td>'
