"""Which models an index was made with, in the catalog and, for people, in manifest.json."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

from capsearch.encoders.models import Model
from capsearch.indexer.embedded.arrays import flush, flush_folder
from capsearch.indexer.embedded.schema import SCHEMA

NAME = "manifest.json"


@dataclass(frozen=True, slots=True)
class Identity:
    """What has to be equal for numbers to be comparable.

    Features are comparable within one backbone, vectors within one model.
    """

    model: str
    digest: str
    backbone: str
    backbone_digest: str
    feature_dimension: int
    dimension: int
    caption_dimension: int

    @classmethod
    def of(cls, model: Model) -> Identity:
        """The identity of what a model will write."""
        image = model.image
        return cls(
            model.name,
            model.digest,
            image.name,
            image.digest,
            image.feature_dimension,
            image.dimension,
            model.text.caption_dimension,
        )

    @classmethod
    def parse(cls, text: str) -> Identity:
        """The identity that `text` was made of."""
        return cls(**json.loads(text))

    def text(self) -> str:
        """As kept in the catalog."""
        return json.dumps(asdict(self), sort_keys=True)

    def same_backbone(self, other: Identity) -> bool:
        """True when features of one serve the other: no photo needs to be opened again."""
        return (self.backbone_digest, self.feature_dimension) == (
            other.backbone_digest,
            other.feature_dimension,
        )

    def same_vectors(self, other: Identity) -> bool:
        """True when vectors of one may lie beside the other's."""
        return (self.digest, self.dimension, self.caption_dimension) == (
            other.digest,
            other.dimension,
            other.caption_dimension,
        )

    def __str__(self) -> str:
        return f"{self.model}@{self.digest[:8]}"


def now() -> str:
    """This moment as kept on disk."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def write(folder: Path, identity: Identity, created_at: str, updated_at: str) -> None:
    """Replaces manifest.json in one step. Comes last: who sees it sees a whole index."""
    content = {
        "schema": SCHEMA,
        "model": {"name": identity.model, "digest": identity.digest},
        "backbone": {"name": identity.backbone, "digest": identity.backbone_digest},
        "dimensions": {
            "feature": identity.feature_dimension,
            "image": identity.dimension,
            "caption": identity.caption_dimension,
        },
        "created_at": created_at,
        "updated_at": updated_at,
    }
    temporary = folder / f"{NAME}.{os.getpid()}.tmp"
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=2, ensure_ascii=False)
        file.flush()
        flush(file.fileno())
    temporary.replace(folder / NAME)
    flush_folder(folder)
