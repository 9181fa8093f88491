"""The layers around the methods of a server: in their order, made once, asked for at each call."""

from types import SimpleNamespace
from typing import Any

from suture.runtime.middleware import MiddlewareStack

SERVICE = "suture.v1.Test"
PATH = f"/{SERVICE}/Do"


class Named:
    """Puts its name around whatever is within."""

    def __init__(self, name: str, made: list[tuple[str, str]]) -> None:
        self.name = name
        self.made = made

    def wrap(self, method: str, handler: Any) -> Any:
        """Return the name, and what is within."""
        self.made.append((self.name, method))
        return (self.name, handler)


def asked(layers: MiddlewareStack, path: str = PATH) -> Any:
    """Ask for the handler of a method, as gRPC does."""
    details: Any = SimpleNamespace(method=path)
    return layers.service(details)


def test_the_first_layer_is_outermost_and_each_is_made_once_for_a_method() -> None:
    """
    Both methods of a service have the layers.
    """
    made: list[tuple[str, str]] = []
    layers = MiddlewareStack([Named("outer", made), Named("inner", made)])
    layers.add_service(SERVICE, {"Do": "handler", "Undo": "other"})

    assert ("outer", ("inner", "handler")) == asked(layers)
    assert asked(layers) is asked(layers)
    assert ("outer", ("inner", "other")) == asked(layers, f"/{SERVICE}/Undo")
    assert [("inner", PATH), ("outer", PATH)] == made[:2]
    assert 4 == len(made)


def test_every_call_is_counted_by_the_layers() -> None:
    """This includes a call of an unknown method and one whose handler is cached."""
    calls: list[None] = []
    layers = MiddlewareStack([], lambda: calls.append(None))
    layers.add_service(SERVICE, {"Do": "handler"})

    asked(layers)
    asked(layers)
    asked(layers, "/nobody/Knows")

    assert 3 == len(calls)
