"""Models by name: what is built in, what the user trained, and how to open them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from capsearch.engine.protocols import ImageEncoder, TextEncoder

DEFAULT_MODEL = "trio"


@dataclass(frozen=True, slots=True)
class Model:
    """Everything a search needs from the encoders, under one name and digest."""

    name: str
    digest: str
    image: ImageEncoder
    text: TextEncoder
    card: Mapping[str, object] = field(default_factory=dict)
