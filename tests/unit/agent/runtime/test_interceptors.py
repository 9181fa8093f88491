"""The layers around the methods of a server: in their order, made once, asked for at each call."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from agent.runtime.interceptors import Layers

PATH = "/suture.v1.Test/Do"


class Named:
    """Puts its name around whatever is within."""

    def __init__(self, name: str, made: list[tuple[str, str]]) -> None:
        self.name = name
        self.made = made

    def wrap(self, method: str, handler: Any) -> Any:
        """Return the name, and what is within."""
        self.made.append((self.name, method))
        return (self.name, handler)


def asked(layers: Layers, handler: Any, path: str = PATH) -> Any:
    """Ask for the handler of a method, as gRPC does."""
    details: Any = SimpleNamespace(method=path)
    found: Callable[[Any], Any] = lambda _: handler  # noqa: E731
    return layers.intercept_service(found, details)


def test_the_first_layer_is_outermost_and_each_is_made_once_for_a_method() -> None:
    """
    Another method gets its own, and so does another handler under the same path.
    """
    made: list[tuple[str, str]] = []
    layers = Layers([Named("outer", made), Named("inner", made)])

    assert ("outer", ("inner", "handler")) == asked(layers, "handler")
    assert asked(layers, "handler") is asked(layers, "handler")
    assert [("inner", PATH), ("outer", PATH)] == made
    assert ("outer", ("inner", "handler")) == asked(layers, "handler", "/suture.v1.Test/Else")
    assert ("outer", ("inner", "other")) == asked(layers, "other")
    assert 6 == len(made)


def test_nothing_is_put_around_what_is_not_there_and_each_call_is_noted() -> None:
    """
    Also a call of a method that there is not, and one whose handler is known, ends others' waits.
    """
    made: list[tuple[str, str]] = []
    calls: list[None] = []
    layers = Layers([Named("one", made)], lambda: calls.append(None))

    assert asked(layers, None) is None
    assert not made
    asked(layers, "handler")
    asked(layers, "handler")
    assert 3 == len(calls)
