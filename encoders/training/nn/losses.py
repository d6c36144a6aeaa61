"""Losses between sentences and images, by name.

Each takes the sentences' vectors (T, D), the images' vectors (B, D), the row of each
sentence's image (T,) and the learned scale, and returns a mean over the sentences. An image
has at most one sentence in a call, so every other pair in the batch is a negative.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

Loss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def info_nce(texts: Tensor, images: Tensor, rows: Tensor, scale: Tensor) -> Tensor:
    """Softmax in both directions. Images without a sentence in the batch are negatives too."""
    logits = scale * texts @ images.T  # (T, B)
    to_images = F.cross_entropy(logits, rows)
    to_texts = F.cross_entropy(logits[:, rows].T, torch.arange(len(rows)))
    return (to_images + to_texts) / 2


def hardest_triplet(texts: Tensor, images: Tensor, rows: Tensor, scale: Tensor) -> Tensor:
    """VSE++ / W2VV++: margin .2 against the hardest negative in the batch, both ways."""
    scores = texts @ images.T  # (T, B)
    positive = scores.gather(1, rows[:, None])  # (T, 1)
    negative = torch.ones_like(scores, dtype=torch.bool).scatter(1, rows[:, None], False)
    to_images = (0.2 + scores - positive).clamp(min=0).masked_fill(~negative, 0).max(1).values
    square, off = scores[:, rows], ~torch.eye(len(rows), dtype=torch.bool)
    to_texts = (0.2 + square - positive.T).clamp(min=0).masked_fill(~off, 0).max(0).values
    return (to_images + to_texts).mean()


def contrastive(texts: Tensor, images: Tensor, rows: Tensor, scale: Tensor) -> Tensor:
    """COCO-CN eq. 2, margin 2, Euclidean: one random negative for each positive pair."""
    positive = (texts - images[rows]).pow(2).sum(1)
    others = (rows + torch.randint(1, len(images), rows.shape)) % len(images)
    negative = (2.0 - (texts - images[others]).norm(dim=1)).clamp(min=0).pow(2)
    return (positive + negative).mean()  # type: ignore[no-any-return]


def squared_error(texts: Tensor, images: Tensor, rows: Tensor, scale: Tensor) -> Tensor:
    """W2VV: the image's feature is the regression target; there are no negatives."""
    return F.mse_loss(texts, images[rows])


LOSSES: Mapping[str, Loss] = {
    "infonce": info_nce,
    "triplet": hardest_triplet,
    "contrastive": contrastive,
    "mse": squared_error,
}
