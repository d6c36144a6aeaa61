"""A limit on the pixels that all threads of a process decode at once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

DEFAULT_PIXELS = 200_000_000  # Pillow takes 4 bytes a pixel, and flattening up to three copies


class PixelBudget:
    """A semaphore weighted by pixels, first come, first served.

    An image with more pixels than the whole budget is decoded alone.
    """

    def __init__(self, pixels: int = DEFAULT_PIXELS) -> None:
        self._limit, self._used = pixels, 0
        self._waiting: deque[object] = deque()  # in order, so that large images are not starved
        self._changed = threading.Condition()

    def resize(self, pixels: int) -> None:
        """Sets the limit; images that are being decoded keep what they have."""
        if pixels < 1:
            raise ValueError(f"a budget has at least one pixel, not {pixels}")
        with self._changed:
            self._limit = pixels
            self._changed.notify_all()

    @contextmanager
    def reserve(self, pixels: int) -> Iterator[None]:
        """Waits until `pixels` fit beside those of other threads, and holds them for the block."""
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
            try:
                self._changed.wait_for(lambda: self._is_next(ticket, pixels))
                self._used += pixels
            finally:  # also when interrupted
                self._waiting.remove(ticket)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._used -= pixels
                self._changed.notify_all()

    def _is_next(self, ticket: object, pixels: int) -> bool:
        fits = self._used == 0 or self._used + pixels <= self._limit
        return fits and self._waiting[0] is ticket


DECODING = PixelBudget()  # one for the process: memory is shared by all threads
