"""Replaces time, threads, randomness and the network around product code during a simulation.

The replacements are active within `around`, and only for threads of the simulation. All other
threads use the functions of the libraries.
"""

import concurrent.futures
import os
import queue
import random
import secrets
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any

import grpc

import agent.commands.handlers
import agent.scan.interactive_scan
import agent.transfer.prefetch
import suture.client.fan_out
import suture.runtime.memory
import suture.wire.clients.channel
from tools.simulation.simulated_os import primitives
from tools.simulation.simulated_os.fibers import Scheduler
from tools.simulation.simulated_os.network import Network

EPOCH_S = 1_700_000_000.0


@contextmanager
def around(scheduler: Scheduler, network: Network, seed: int) -> Iterator[None]:
    """Replace time, threads, randomness and the network around product code."""
    dice = Random(f"{seed} chance")

    def ours(own: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
        def chosen(*args: Any, **kw: Any) -> Any:
            return own(*args, **kw) if scheduler.is_inside() else real(*args, **kw)

        return chosen

    def executor(max_workers: int = 4, thread_name_prefix: str = "pool", **_: Any) -> Any:
        return primitives.Executor(scheduler, max_workers, thread_name_prefix)

    replaced: list[tuple[Any, str, Callable[..., Any]]] = [
        (threading, "Lock", lambda: primitives.Lock(scheduler)),
        (threading, "RLock", lambda: primitives.RLock(scheduler)),
        (threading, "Condition", lambda lock=None: primitives.Condition(scheduler, lock)),
        (threading, "Event", lambda: primitives.Event(scheduler)),
        (threading, "Thread", lambda **kw: _thread(scheduler, **kw)),
        (threading, "current_thread", lambda: _Current(scheduler)),
        (time, "sleep", scheduler.sleep),
        (time, "monotonic", lambda: scheduler.now_s),
        (time, "perf_counter", lambda: scheduler.now_s),
        (time, "time", lambda: EPOCH_S + scheduler.now_s),
        (time, "thread_time", lambda: scheduler.now_s),  # the kernel's is not cheap everywhere
        (time, "time_ns", lambda: int((EPOCH_S + scheduler.now_s) * 1e9)),
        (os, "urandom", dice.randbytes),
        (uuid, "uuid4", lambda: uuid.UUID(bytes=dice.randbytes(16), version=4)),
        (secrets, "token_bytes", dice.randbytes),
        (secrets, "randbelow", dice.randrange),
        (suture.runtime.memory, "_mapped_at", lambda _: []),  # else megabytes at each scan
        (grpc, "insecure_channel", network.channel),
        (concurrent.futures, "ThreadPoolExecutor", executor),
        (agent.commands.handlers, "ThreadPoolExecutor", executor),
        (suture.wire.clients.channel, "SimpleQueue", lambda: SimpleQueue(scheduler)),
        (agent.scan.interactive_scan, "Thread", lambda **kw: _thread(scheduler, **kw)),
        (agent.scan.interactive_scan, "Event", lambda: primitives.Event(scheduler)),
        (agent.scan.interactive_scan, "SimpleQueue", lambda: SimpleQueue(scheduler)),
        (suture.client.fan_out, "Queue", lambda room: Queue(scheduler, room)),
        (agent.transfer.prefetch, "SimpleQueue", lambda: SimpleQueue(scheduler)),
    ]
    random.seed(f"{seed} jitter")
    with ExitStack() as undo:
        for owner, name, own in replaced:
            real = getattr(owner, name)
            if name in {"SimpleQueue"}:
                own = _subscriptable(own)
            setattr(owner, name, ours(own, real) if name != "SimpleQueue" else own)
            undo.callback(setattr, owner, name, real)
        yield


def _thread(scheduler: Scheduler, **named: Any) -> primitives.Thread:
    named.pop("daemon", None)
    return primitives.Thread(scheduler, **named)


class _Current:
    """Replacement for the result of `threading.current_thread()`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.ident = scheduler.current.number + 1
        self.name = scheduler.current.name


class SimpleQueue:
    """Replacement for `queue.SimpleQueue`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        """Add an item."""
        self._items.append(item)

    def get(self, block: bool = True, timeout: primitives.Seconds = None) -> Any:
        """Remove and return the oldest item. Raise `queue.Empty` if there is none in time."""
        if not self._scheduler.block(lambda: bool(self._items), timeout if block else 0.0):
            raise queue.Empty
        return self._items.popleft()


class Queue(SimpleQueue):
    """Replacement for `queue.Queue` with a maximum size."""

    def __init__(self, scheduler: Scheduler, room: int) -> None:
        super().__init__(scheduler)
        self._room = room

    def put(self, item: Any, timeout: primitives.Seconds = None) -> None:
        """Add an item when the queue is not full. Raise `queue.Full` if it is full until the
        timeout."""
        if not self._scheduler.block(lambda: len(self._items) < self._room, timeout):
            raise queue.Full
        super().put(item)

    def put_nowait(self, item: Any) -> None:
        """Add an item. Raise `queue.Full` if the queue is full."""
        self.put(item, 0.0)

    def get_nowait(self) -> Any:
        """Remove and return the oldest item. Raise `queue.Empty` if there is none."""
        return self.get(block=False)


def _subscriptable(make: Callable[..., Any]) -> Any:
    class Made:
        """Replacement for a class that can also be subscripted, as annotations do."""

        def __new__(cls) -> Any:
            return make()

        def __class_getitem__(cls, _item: Any) -> Any:
            return cls

    return Made
