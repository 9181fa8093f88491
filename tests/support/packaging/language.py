"""Rules about the language of names, docstrings and documents (docs/VOCABULARY.md, issue 53).

They are rules of `tests.support.packaging.tidy`, whose types they use. They check only the form:
the beginning of a docstring or of a test's name, a class whose name is a lone participle, two
classes of one name, a long line of prose.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

INDIRECT: Final = re.compile(
    r"(What|Who|Whom|Whose|Whoever|Where|Whether|Which|How|When|Of|Nobody|Somebody|It|They|One) "
)
PARTICIPLE: Final = re.compile(r"_?[A-Z][a-z]+(ed|ing|en)")
CONNECTIVE: Final = re.compile(
    r"test_(what|who|whose|it|its|one|they|such|so|nor|nothing|nobody|none|where|which|that|this"
    r"|those|these|of|as|there|all|both|each|how|when|whether|and|or|but)_"
)
LINE_MAX: Final = 100
NO_PROSE: Final = ("|", "    ", "#", "<")
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def indirect_docstrings(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and beginning of each docstring that begins with a question or a pronoun."""
    for node in ast.walk(module):
        if isinstance(node, Documented):
            text = ast.get_docstring(node) or ""
            if INDIRECT.match(text):
                yield getattr(node, "lineno", 1), text.splitlines()[0]


def repeated_classes(modules: dict[str, ast.Module]) -> Iterator[tuple[str, int, str]]:
    """Yield path, line and name of each public class that has the same name as another class."""
    found: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for path, module in modules.items():
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append((path, node.lineno))
    for name, places in found.items():
        if len(places) > 1:
            yield from ((path, line, name) for path, line in places)


def is_lone_participle(name: str) -> bool:
    """Return True for a class name that is one word and a participle."""
    return bool(PARTICIPLE.fullmatch(name))


def long_prose(text: str) -> Iterator[int]:
    """Yield the numbers of the lines of a document that are longer than LINE_MAX and could be
    wrapped. Code, tables, headings and single long words are ignored."""
    is_code = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif len(line) > LINE_MAX and not is_code and not line.startswith(NO_PROSE):
            spans = re.sub(r"`[^`]*`|\[[^]]*\]\([^)]*\)", lambda span: "x" * len(span[0]), line)
            if " " in spans[LINE_MAX // 2 : LINE_MAX]:
                yield number
