"""The model an index was built with: stored in the catalog, and in manifest.json for people."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

from capsearch.encoders import atomic
from capsearch.encoders.models import Model
from capsearch.indexer.embedded.disk import writing
from capsearch.indexer.embedded.schema import SCHEMA

NAME = "manifest.json"


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

    def text(self) -> str:
        """The JSON stored in the catalog; without a path if there is none, as older versions."""
        stored = {key: value for key, value in asdict(self).items() if value is not None}
        return json.dumps(stored, sort_keys=True)

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


def now() -> str:
    """The current UTC time as stored in the catalog and the manifest."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def write(folder: Path, identity: Identity, created_at: str, updated_at: str) -> None:
    """Replaces manifest.json atomically. Called last, so that it only describes whole indexes."""
    content = {
        "schema": SCHEMA,
        "model": {
            "name": identity.model,
            "digest": identity.digest,
            **({"path": identity.path} if identity.path else {}),
        },
        "backbone": {"name": identity.backbone, "digest": identity.backbone_digest},
        "dimensions": {
            "feature": identity.feature_dimension,
            "image": identity.dimension,
            "caption": identity.caption_dimension,
        },
        "created_at": created_at,
        "updated_at": updated_at,
    }
    with writing(folder / NAME):
        atomic.write_text(folder / NAME, json.dumps(content, indent=2, ensure_ascii=False))
