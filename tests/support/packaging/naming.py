"""The quantities and names that a module declares, and forbidden words in names
(docs/VOCABULARY.md).
"""

import ast
import re
from collections.abc import Iterator

DECLARING = (ast.FunctionDef, ast.AsyncFunctionDef, ast.AnnAssign)
NAMING = (*DECLARING, ast.ClassDef)


def quantities(node: ast.AST) -> Iterator[tuple[str, str, int]]:
    """Yield the name, the annotation and the line of each argument or annotated field that a node
    declares."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = node.args
        for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
            annotation = ast.unparse(argument.annotation) if argument.annotation else ""
            yield argument.arg, annotation, argument.lineno
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name | ast.Attribute):
        target = node.target
        name = target.id if isinstance(target, ast.Name) else target.attr
        yield name, ast.unparse(node.annotation), node.lineno


def synonyms(vocabulary: str) -> dict[str, str]:
    """Return the words that no name may contain, each with the word to use instead.

    The words are in the last column of the vocabulary's tables. A word in italics is left out,
    because it also has an ordinary meaning.
    """
    found: dict[str, str] = {}
    for table in re.split(r"\n{2,}", vocabulary):
        header, *rows = table.strip().splitlines() or [""]
        for cells in ([cell.strip() for cell in row.split("|")[1:-1]] for row in rows[1:]):
            if header == "| Word | Meaning | Not |":
                found |= {
                    word: cells[0]
                    for word in re.split(r", *", cells[2])
                    if word.replace(" ", "").isalpha()
                }
    return found


def named(node: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the names that a node declares, with their lines."""
    yield from ((name, line) for name, _, line in quantities(node))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name, node.lineno


def wrong_words(name: str, words: dict[str, str]) -> list[str]:
    """Return the synonyms that a name contains, sorted. If a synonym has several words, the name
    must contain them next to each other."""
    spelled = f" {' '.join(words_of(name))} "
    return sorted(word for word in words if f" {word} " in spelled)


def words_of(name: str) -> list[str]:
    """Return the words of a name in lower case; an empty list for a name such as `__init__`."""
    if name.startswith("__"):
        return []
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_")
