"""The mutations: small changes of a module, made one at a time to see whether a test fails.

    comparisons     a < b      ->  a <= b, a >= b (a flip of True and False where it is a test)
    logic           a and b    ->  a or b, a, b             not a  ->  a
    tests           if a:      ->  if False:, if True:      while a:  ->  while False:
    constants       5          ->  6 (and 4 in a comparison)   1.5  ->  3.0   True  ->  False
    arithmetic      a + b      ->  a - b     min(a, b)  ->  max(a, b)     any(a)  ->  all(a)
    arguments       f(a, b)    ->  f(b, a)
    statements      a call, a raise, a change of a field, break, continue: left out
    results         return a   ->  return None
    loops           for a in b ->  for a in ()
    handlers        except A:  the body becomes `raise`

Strings, annotations, decorators, assertions and docstrings are not changed. Golden tests cover
strings that leave the process, and an assertion has no behaviour of its own.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from typing import TypeVar

MODULE = "<module>"
"""The name of the place of a change that is not within a function."""

NEIGHBOURS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.Add,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
}
FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}
NOT_SWAPPED = frozenset({"isinstance", "range", "np.minimum", "np.maximum", "math.gcd"})
"""Functions whose arguments are not swapped, because the result would be the same or invalid."""

UNCHANGED_KEYWORDS = frozenset({"strict"})
"""Keywords whose values are not changed. `zip(..., strict=True)` states an invariant, as an
assertion does."""

Node = TypeVar("Node", bound=ast.AST)
FUNCTION_NODES = (ast.FunctionDef, ast.AsyncFunctionDef)
TEST_NODES = (ast.If, ast.IfExp, ast.While)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change of one module.

    `index` is the number of the change within the module. `key` does not change when lines move.
    """

    path: str
    index: int
    place: str
    line: int
    before: str
    after: str
    occurrence: int

    @property
    def key(self) -> str:
        """The place and the change as text. If the same change occurs several times in a place, its
        number is added."""
        number = f" #{self.occurrence}" if self.occurrence > 1 else ""
        return f"{self.place}: {self.before} -> {self.after}{number}"

    @property
    def is_in_function(self) -> bool:
        """True if the change is in code that runs when a function is called."""
        return not self.place.startswith(MODULE)


@dataclass(frozen=True, slots=True)
class Change:
    """A change, and the position in the tree at which it can be made."""

    place: str
    spot: "Slot"
    after: ast.AST

    def make(self) -> None:
        """Make the change in the tree."""
        self.spot.put(self.after)


def mutants_of(path: str, source: str) -> list[Mutant]:
    """Return every change of a module, in the order of its lines."""
    found: list[Mutant] = []
    seen: Counter[tuple[str, str, str]] = Counter()
    line = 1
    for index, change in enumerate(changes(ast.parse(source, path))):
        node = change.spot.node()
        name = (change.place, brief(node), brief(change.after))
        seen[name] += 1
        line = getattr(node, "lineno", line)
        found.append(Mutant(path, index, change.place, line, *name[1:], seen[name]))
    return found


def mutated(path: str, source: str, index: int) -> ast.Module:
    """Return the tree of a module with change number `index` applied."""
    tree = ast.parse(source, path)
    list(changes(tree))[index].make()
    return ast.fix_missing_locations(tree)


def changes(tree: ast.Module) -> list[Change]:
    """Return all possible changes of a tree. The tree itself is not changed until one of them is
    made."""
    return list(Walk().body_of(tree, MODULE))


class Walk:
    """Walks the code of a module and names the function of each change."""

    def body_of(self, node: ast.AST, place: str) -> Iterator[Change]:
        """Yield the changes below a node, in fields that contain code."""
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "keywords") and not isinstance(
                node, ast.Call
            ):
                continue
            if isinstance(value, ast.AST):
                yield from self.one(value, Slot(node, name), place)
            elif isinstance(value, list):
                for position, part in enumerate(value):
                    if isinstance(part, ast.AST):
                        yield from self.one(part, Slot(node, name, position), place)

    def one(self, node: ast.AST, slot: "Slot", place: str) -> Iterator[Change]:
        """Yield the changes of a node, then those below it."""
        if isinstance(node, ast.Assert | ast.arg | ast.alias | ast.JoinedStr):
            return
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.keyword) and node.arg in UNCHANGED_KEYWORDS:
            return
        for target, after in replacements(node, slot):
            yield Change(place, target or slot, after)
        inside = place
        if isinstance(node, (*FUNCTION_NODES, ast.ClassDef)):
            inside = qualified(node, place)
            if isinstance(node, FUNCTION_NODES):
                # Defaults are evaluated where the function is defined.
                yield from self.body_of(node.args, outside(inside))
                for position, part in enumerate(node.body):
                    yield from self.one(part, Slot(node, "body", position), inside)
                return
        yield from self.body_of(node, inside)


def qualified(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, place: str) -> str:
    """Return the qualified name of a function or class. If it is within a function, return the name
    of that function."""
    if not place.startswith(MODULE):
        return place  # an inner function changes with the outer one
    holder = place.removeprefix(MODULE).removeprefix(" ")
    name = f"{holder}.{node.name}" if holder else node.name
    return f"{MODULE} {name}" if isinstance(node, ast.ClassDef) else name


def outside(place: str) -> str:
    """Return the name of the place where the defaults of the function `place` are evaluated."""
    return f"{MODULE} {place}"


@dataclass(frozen=True, slots=True)
class Slot:
    """The position of a node in the tree."""

    parent: ast.AST
    field: str
    position: int | None = None

    def node(self) -> ast.AST:
        """Return the node in this position."""
        value = getattr(self.parent, self.field)
        found: ast.AST = value if self.position is None else value[self.position]
        return found

    def put(self, node: ast.AST) -> None:
        """Put another node into this position."""
        for name in ("lineno", "col_offset", "end_lineno", "end_col_offset"):
            if hasattr(self.node(), name):
                setattr(node, name, getattr(self.node(), name))
        if self.position is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.position] = node


Replacement = tuple[Slot | None, ast.AST]


def replacements(node: ast.AST, slot: Slot) -> Iterator[Replacement]:
    """Yield the replacements of a node, or of a part of it."""
    if isinstance(node, ast.stmt):
        yield from of_statement(node)
    elif isinstance(node, ast.Compare):
        yield from of_comparison(node, slot)
    elif isinstance(node, ast.Constant):
        yield from of_constant(node, slot)
    elif isinstance(node, ast.BoolOp):
        yield from of_logic(node)
    elif isinstance(node, ast.Call):
        yield from of_call(node)
    elif isinstance(node, ast.IfExp):
        yield Slot(node, "test"), ast.Constant(value=True)
        yield Slot(node, "test"), ast.Constant(value=False)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield None, node.operand
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        yield None, changed(node, op=ARITHMETIC[type(node.op)]())
    elif isinstance(node, ast.comprehension):
        for position in range(len(node.ifs)):
            yield Slot(node, "ifs", position), ast.Constant(value=True)
            yield Slot(node, "ifs", position), ast.Constant(value=False)
    elif isinstance(node, ast.ExceptHandler) and not is_raise(node.body[0]):
        yield None, changed(node, body=[ast.Raise()])


def of_statement(node: ast.stmt) -> Iterator[Replacement]:
    """Yield the replacements of a statement, or of its condition."""
    if isinstance(node, ast.If):
        yield Slot(node, "test"), ast.Constant(value=False)
        yield Slot(node, "test"), ast.Constant(value=True)
    elif isinstance(node, ast.While):
        yield Slot(node, "test"), ast.Constant(value=False)
    elif isinstance(node, ast.For):
        yield Slot(node, "iter"), ast.Tuple(elts=[], ctx=ast.Load())
    elif isinstance(node, ast.Return):
        # None instead of False makes no difference in a condition, but True does.
        if node.value is not None and ast.unparse(node.value) not in ("None", "False"):
            yield Slot(node, "value"), ast.Constant(value=None)
    elif isinstance(node, ast.AugAssign):
        if type(node.op) in ARITHMETIC:
            yield None, changed(node, op=ARITHMETIC[type(node.op)]())
        yield None, ast.Pass()
    elif is_left_out(node):
        yield None, ast.Pass()


def is_left_out(node: ast.stmt) -> bool:
    """Return True if a mutant may remove the statement, because it has an effect and does not
    define a name that other statements need."""
    if isinstance(node, ast.Raise | ast.Break | ast.Continue | ast.Delete):
        return True
    if isinstance(node, ast.Assign):
        return not any(isinstance(target, ast.Name | ast.Tuple) for target in node.targets)
    return isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant)


def of_comparison(node: ast.Compare, slot: Slot) -> Iterator[Replacement]:
    """Yield comparisons with the boundary moved by one, or negated."""
    is_test = isinstance(slot.parent, TEST_NODES) or slot.field == "ifs"
    for position, operator in enumerate(node.ops):
        tables = [NEIGHBOURS] if is_test and len(node.ops) == 1 else [NEIGHBOURS, OPPOSITES]
        for table in tables:
            if type(operator) in table:
                operators = list(node.ops)
                operators[position] = table[type(operator)]()
                yield None, changed(node, ops=operators)


def of_constant(node: ast.Constant, slot: Slot) -> Iterator[Replacement]:
    """Yield the replacements of a constant: adjacent numbers, or the negated boolean."""
    value = node.value
    if isinstance(value, bool):
        yield None, ast.Constant(value=not value)
    elif isinstance(value, int):
        yield None, ast.Constant(value=value + 1)
        if isinstance(slot.parent, ast.Compare):
            yield None, ast.Constant(value=value - 1)
    elif isinstance(value, float):
        yield None, ast.Constant(value=value * 2 or 1.0)


def of_logic(node: ast.BoolOp) -> Iterator[Replacement]:
    """Yield the replacements of `and` and `or`: the other operator, and the expression without one
    of its operands."""
    other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    yield None, changed(node, op=other)
    for position in range(len(node.values)):
        rest = [part for number, part in enumerate(node.values) if number != position]
        yield None, rest[0] if len(rest) == 1 else changed(node, values=rest)


def of_call(node: ast.Call) -> Iterator[Replacement]:
    """Yield calls with the first two arguments swapped, and calls of the opposite function."""
    if isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS:
        yield None, changed(node, func=ast.Name(id=FUNCTIONS[node.func.id], ctx=ast.Load()))
        return
    if ast.unparse(node.func) in NOT_SWAPPED:
        return
    first, second = (*node.args, None, None)[:2]
    if first is None or second is None or isinstance(first, ast.Starred):
        return
    if not isinstance(second, ast.Starred) and ast.dump(first) != ast.dump(second):
        yield None, changed(node, args=[second, first, *node.args[2:]])


def changed(node: Node, **fields: object) -> Node:
    """Return a copy of a node with some fields replaced."""
    twin = copy(node)
    for name, value in fields.items():
        setattr(twin, name, value)
    return twin


def is_raise(node: ast.stmt) -> bool:
    """Return True if a statement re-raises an exception unchanged."""
    return isinstance(node, ast.Raise) and node.exc is None


def brief(node: ast.AST) -> str:
    """Return the code of a node on one line, without the body of a compound statement."""
    if isinstance(node, ast.Pass):
        return "nothing"
    if isinstance(node, ast.ExceptHandler):
        caught = f" {ast.unparse(node.type)}" if node.type else ""
        return f"except{caught}: {'raise' if is_raise(node.body[0]) else '...'}"
    text = re.sub(r"\s+", " ", ast.unparse(node)).strip()
    return text if len(text) <= BRIEF_MAX else f"{text[: BRIEF_MAX - 3]}..."


BRIEF_MAX = 90
"""Maximum number of characters of the code of a change, as shown and as part of its key."""
