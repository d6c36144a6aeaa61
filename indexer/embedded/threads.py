"""Threads for parts of a search, which outlive neither a fork nor the end of the program."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar
from weakref import WeakSet

P = ParamSpec("P")
Result = TypeVar("Result")


class Threads:
    """At most `count` threads, started when needed; each runs `initializer` first."""

    def __init__(self, count: int, initializer: Callable[[], object] | None = None) -> None:
        self._count, self._initializer = count, initializer
        self._pool: ThreadPoolExecutor | None = None
        _all.add(self)

    def submit(
        self, work: Callable[P, Result], *args: P.args, **kwargs: P.kwargs
    ) -> Future[Result]:
        """Starts some work; it is done at once where no thread can be started any more."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._count, initializer=self._initializer)
        try:
            return self._pool.submit(work, *args, **kwargs)
        except RuntimeError:  # the main thread has ended
            done: Future[Result] = Future()
            done.set_result(work(*args, **kwargs))
            return done

    def forget(self) -> None:
        """A forked process has none of its parent's threads."""
        self._pool = None


_all: WeakSet[Threads] = WeakSet()


def _forget_all() -> None:
    for one in _all:
        one.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
