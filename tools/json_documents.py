"""Table of all printed JSON documents, and docs/JSON.md, which is generated from it.

`json_documents.tsv` has one row per key: object, key, type, meaning. A key that ends in `?` may be
absent. The key `...` means all keys of another object. A type is `string`, `integer`, `number`,
`boolean`, `null`, `object` or the name of an object; `[T]` is a list, `{T}` a map by id or name,
and ` or ` separates alternatives. The rows of the object `commands` have the type of each command's
document. The rows of `*` have the meanings of keys for objects whose rows give no meaning.
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

TABLE: Final = Path(__file__).with_name("json_documents.tsv")
COMMANDS: Final = "commands"
EVERYWHERE: Final = "*"
ALL_KEYS_OF: Final = "..."
SIMPLE: Final[Mapping[str, type | tuple[type, ...]]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
    "object": dict,
}
NAME: Final = re.compile(r"[A-Za-z]+")
INTRODUCTION: Final = """# JSON documents

For programs that read the output of `--json`. Generated from `tools/json_documents.tsv` by
`tools/gen_docs.py`.

Each command prints one JSON object, whose first key is `"schema": 1`. The number is raised when a
key is removed, or changes its name, type, unit or meaning. New keys do not raise it, so a reader
must ignore unknown keys. A failed command prints an `error` instead, with the keys of
[ErrorFacts](#errorfacts). `ls` and `scm containers` print their lists page by page. If a page after
the first cannot be fetched, `error` follows the list.

- Keys that end in `_ms` are milliseconds. Those that end in `_at_ms`, and `since_ms`, are
  milliseconds since 1970 in UTC.
- `_bytes` are bytes, `_s` seconds, `_count` numbers of things, `_permille` thousandths.
- `[T]` is a list, `{T}` an object with an id or a name as key. A key with `?` may be absent.
- Integers are exact, also above 2^53. Checksums named `root` or `checksum` are hexadecimal strings
  where the type is `string`.

`suture-agent` and `suture-scm` print one line when they serve; see [Listening](#listening).
`suture-agent --check` prints all [options](CONFIGURATION.md). `suture-verify --json` prints the
`path` of the run and the keys of its [`summary.json`](SPARK.md). `suture demo` prints the story of
the demo, whose keys are not a promise. Files have formats of their own: bundles of
`suture diagnose`, statements of `suture attest`, manifests of backups and snapshots, reports and
results of Spark.

## Commands

| command | document |
|---|---|
"""


@dataclass(frozen=True, slots=True)
class DocumentKey:
    """A key of an object."""

    name: str
    is_optional: bool
    type: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Documents:
    """All documents: the type of each command, and the keys of each object."""

    commands: Mapping[str, str]
    objects: Mapping[str, tuple[DocumentKey, ...]]

    def keys_of(self, name: str) -> Iterator[DocumentKey]:
        """Yield the keys of an object, with those of the objects that it contains."""
        for key in self.objects[name]:
            if key.name == ALL_KEYS_OF:
                yield from self.keys_of(key.type)
            else:
                yield key

    def faults(self, value: Any, type_: str, at: str = "") -> list[str]:
        """Return the reasons why a value does not have the type `type_`, each with its path; an
        empty list if it has this type."""
        return min((self._faults(value, one, at) for one in alternatives(type_)), key=len)

    def _faults(self, value: Any, type_: str, at: str) -> list[str]:
        if type_ in SIMPLE:
            is_bool = isinstance(value, bool) and type_ != "boolean"
            is_right = isinstance(value, SIMPLE[type_]) and not is_bool
            return [] if is_right else [f"{at}: {value!r} is not {type_}"]
        if type_.startswith("["):
            if not isinstance(value, list):
                return [f"{at}: {value!r} is not {type_}"]
            return [fault for item in value for fault in self.faults(item, type_[1:-1], f"{at}[]")]
        if not isinstance(value, dict):
            return [f"{at}: {value!r} is not {type_}"]
        if type_.startswith("{"):
            items = value.items()
            return [
                fault for key, item in items for fault in self.faults(item, type_[1:-1], f"{at}.*")
            ]
        return self._faults_of_object(value, type_, at)

    def _faults_of_object(self, value: dict[str, Any], name: str, at: str) -> list[str]:
        keys = {key.name: key for key in self.keys_of(name)}
        found = [f"{at}.{key}: not documented for {name}" for key in value if key not in keys]
        for key in keys.values():
            if key.name in value:
                found += self.faults(value[key.name], key.type, f"{at}.{key.name}")
            elif not key.is_optional:
                found.append(f"{at}.{key.name}: documented for {name}, and absent")
        return found


def alternatives(type_: str) -> Iterator[str]:
    """Yield the alternatives of a type. An ` or ` within brackets does not separate
    alternatives."""
    first, depth = 0, 0
    for place, letter in enumerate(type_):
        depth += (letter in "[{") - (letter in "]}")
        if not depth and type_.startswith(" or ", place):
            yield type_[first:place]
            first = place + len(" or ")
    yield type_[first:]


@cache
def documents() -> Documents:
    """Return the table."""
    commands: dict[str, str] = {}
    objects: dict[str, list[DocumentKey]] = {}
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
    common = {key: meaning for name, key, _, meaning in rows if name == EVERYWHERE}
    for name, key, type_, meaning in rows:
        if name == COMMANDS:
            commands[key] = type_
        elif name != EVERYWHERE:
            bare = key.removesuffix("?")
            found = DocumentKey(bare, key != bare, type_, meaning or common.get(bare, ""))
            objects.setdefault(name, []).append(found)
    return Documents(commands, {name: tuple(keys) for name, keys in objects.items()})


def document() -> str:
    """Return the text of docs/JSON.md. Objects with only one key have no section; they are shown
    where they are used."""
    known = documents()
    lines = [
        f"| `{command}` | {_linked(type_, known)} |" for command, type_ in known.commands.items()
    ]
    for name, keys in known.objects.items():
        if not _is_short(keys):
            lines += ["", f"## {name}", "", "| key | type | meaning |", "|---|---|---|"]
            lines += [_row(key, known) for key in keys]
    return INTRODUCTION + "\n".join(lines) + "\n"


def _is_short(keys: Sequence[DocumentKey]) -> bool:
    return len(keys) == 1 and not keys[0].meaning and keys[0].name != ALL_KEYS_OF


def _row(key: DocumentKey, known: Documents) -> str:
    if key.name == ALL_KEYS_OF:
        return f"| | {_linked(key.type, known)} | all its keys |"
    name = f"`{key.name}`" + ("?" if key.is_optional else "")
    return f"| {name} | {_linked(key.type, known)} | {key.meaning} |"


def _linked(type_: str, known: Documents) -> str:
    """Return a type with links to the objects that it names."""

    def link(found: re.Match[str]) -> str:
        name = found[0]
        keys = known.objects.get(name)
        if keys is None:
            return name
        if _is_short(keys):
            return f"`{keys[0].name}`: {_linked(keys[0].type, known)}"
        return f"[{name}](#{name.lower()})"

    return NAME.sub(link, type_)
