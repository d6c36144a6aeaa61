"""Collections as context managers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import TypeVar

Closed = TypeVar("Closed", bound="Closing")


class Closing(ABC):
    """Closed at the end of a `with` block."""

    @abstractmethod
    def close(self) -> None:
        """Releases what it holds."""

    def __enter__(self: Closed) -> Closed:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
