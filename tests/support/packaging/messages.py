"""Texts of errors and hints: how they must begin and end, and the words that they must avoid."""

import ast
import re
from collections.abc import Iterator
from typing import Final

ERRORS: Final = re.compile(r"(Refused|Unavailable|Failed|BadParameter)(Error)?$")
SENTENCE: Final = re.compile(r"(?!Ozone|Spark|ReadBlock|Kerberos)[A-Z][a-z]")
PRIVATE: Final = re.compile(
    r"\b(anew|lately|thereof|whence|whoever|whom|somebody|nobody|anybody|likewise|in vain|believe"
    r"|believed|tells?|told|hears?|heard|owes?|owed|mends?|mended|our|ours|us)\b"
)


def violations(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the fault of each text that reaches a user."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not ERRORS.search(_name(node.func)):
            continue
        texts = [*node.args, *(one.value for one in node.keywords if one.arg == "hint")]
        for each in texts:
            text = _text(each)
            if SENTENCE.match(text):
                yield each.lineno, f"begins with a capital letter: {text}"
            if re.search(r"(?<!\.)\.$", text):
                yield each.lineno, f"ends with a full stop: {text}"
            for word in PRIVATE.findall(text):
                yield each.lineno, f"says {word!r}: {text}"


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _text(node: ast.expr) -> str:
    """Return the text of a literal, with ... for its expressions; "" for anything else."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) and " " in node.value else ""
    if isinstance(node, ast.JoinedStr):
        parts = [each.value if isinstance(each, ast.Constant) else "..." for each in node.values]
        return "".join(map(str, parts))
    return ""
