"""What happens in one place reaches those who listen."""

from agent.host.event_dispatcher import EventDispatcher


def test_relay_listeners_are_called_in_their_order() -> None:
    """The first listener is called first."""
    heard: list[tuple[str, int]] = []
    relay = EventDispatcher[[int]]()
    relay.subscribe(lambda number: heard.append(("first", number)))
    relay.subscribe(lambda number: heard.append(("second", number)))

    relay.emit(7)

    assert [("first", 7), ("second", 7)] == heard


def test_before_anybody_listens_nothing_is_lost_but_the_news() -> None:
    """A call without listeners is no error. A later listener receives later events only."""
    heard: list[int] = []
    relay = EventDispatcher[[int]]()

    relay.emit(1)
    relay.subscribe(heard.append)
    relay.emit(2)

    assert [2] == heard
