"""Losses between sentences and images, by name.

Each takes the sentences' vectors (T, D), the images' vectors (B, D), the row of each
sentence's image (T,), the learned scale, and which pairs match beside that one (T, B), if any do.
It returns a mean over the sentences. An image has at most one sentence in a call, so every pair
that does not match is a negative.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

Loss = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor | None], Tensor]


def info_nce(
    texts: Tensor, images: Tensor, rows: Tensor, scale: Tensor, matching: Tensor | None = None
) -> Tensor:
    """Softmax in both directions. Images without a sentence in the batch are negatives too."""
    logits = scale * texts @ images.T  # (T, B)
    if matching is not None:
        others = matching.scatter(1, rows[:, None], False)
        logits = logits.masked_fill(others, -torch.inf)
    to_images = F.cross_entropy(logits, rows)
    to_texts = F.cross_entropy(logits[:, rows].T, torch.arange(len(rows)))
    return (to_images + to_texts) / 2


def hardest_triplet(
    texts: Tensor, images: Tensor, rows: Tensor, scale: Tensor, matching: Tensor | None = None
) -> Tensor:
    """VSE++ / W2VV++: margin .2 against the hardest negative in the batch, both ways."""
    scores = texts @ images.T  # (T, B)
    positive = scores.gather(1, rows[:, None])  # (T, 1)
    positives = torch.zeros_like(scores, dtype=torch.bool) if matching is None else matching
    positives = positives.scatter(1, rows[:, None], True)
    to_images = (0.2 + scores - positive).clamp(min=0).masked_fill(positives, 0).max(1).values
    square = (0.2 + scores[:, rows] - positive.T).clamp(min=0)
    to_texts = square.masked_fill(positives[:, rows], 0).max(0).values
    return (to_images + to_texts).mean()


def contrastive(
    texts: Tensor, images: Tensor, rows: Tensor, scale: Tensor, matching: Tensor | None = None
) -> Tensor:
    """COCO-CN eq. 2, margin 2, Euclidean: one random negative for each positive pair."""
    positive = (texts - images[rows]).pow(2).sum(1)
    others = (rows + torch.randint(1, len(images), rows.shape)) % len(images)
    negative = (2.0 - (texts - images[others]).norm(dim=1)).clamp(min=0).pow(2)
    if matching is not None:
        negative = negative.masked_fill(matching.gather(1, others[:, None])[:, 0], 0)
    return (positive + negative).mean()  # type: ignore[no-any-return]


def squared_error(
    texts: Tensor, images: Tensor, rows: Tensor, scale: Tensor, matching: Tensor | None = None
) -> Tensor:
    """W2VV: the image's feature is the regression target; there are no negatives."""
    return F.mse_loss(texts, images[rows])


LOSSES: Mapping[str, Loss] = {
    "infonce": info_nce,
    "triplet": hardest_triplet,
    "contrastive": contrastive,
    "mse": squared_error,
}
