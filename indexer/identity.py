"""The model that a collection was made with."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from capsearch.encoders.models.registry import Model


@dataclass(frozen=True, slots=True)
class Identity:
    """What decides whether stored numbers can be compared.

    Features are comparable when they come from the same backbone, vectors when they come from
    the same model. `path` is where a model is that its name does not find.
    """

    model: str
    digest: str
    backbone: str
    backbone_digest: str
    feature_dimension: int
    dimension: int
    caption_dimension: int
    path: str | None = None

    @classmethod
    def of(cls, model: Model) -> Identity:
        """The identity of the vectors `model` produces."""
        image = model.image
        return cls(
            model.name,
            model.digest,
            image.name,
            image.digest,
            image.feature_dimension,
            image.dimension,
            model.text.caption_dimension,
            None if model.path is None else str(model.path),
        )

    @classmethod
    def parse(cls, text: str) -> Identity:
        """The inverse of `text()`."""
        return cls(**json.loads(text))

    def facts(self) -> dict[str, str | int]:
        """What is stored: without a path if there is none."""
        return {key: value for key, value in asdict(self).items() if value is not None}

    def text(self) -> str:
        """What is stored, as JSON."""
        return json.dumps(self.facts(), sort_keys=True)

    @property
    def source(self) -> str:
        """What `models.load` opens this model with: its path or its name."""
        return self.path or self.model

    def same_backbone(self, other: Identity) -> bool:
        """True when stored features can be reused: no image needs to be encoded again."""
        return (self.backbone_digest, self.feature_dimension) == (
            other.backbone_digest,
            other.feature_dimension,
        )

    def same_vectors(self, other: Identity) -> bool:
        """True when vectors of both may be in one index."""
        return (self.digest, self.dimension, self.caption_dimension) == (
            other.digest,
            other.dimension,
            other.caption_dimension,
        )

    def __str__(self) -> str:
        return f"{self.model}@{self.digest[:8]}"
