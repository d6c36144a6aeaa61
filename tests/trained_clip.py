"""An open_clip model of ten million parameters, trained briefly on captioned images."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

STEPS = int(os.environ.get("CAPSEARCH_TEST_STEPS", "400"))
BATCH, IMAGES, LR = 96, 12_000, 1e-3
VISION = {"image_size": 64, "layers": 6, "width": 256, "patch_size": 16, "head_width": 64}
TEXT = {
    "context_length": 32, "vocab_size": 8000, "width": 256, "heads": 4, "layers": 4,
    "hf_tokenizer_name": "local", "pool_type": "eos", "eos_id": 2,
}  # fmt: skip


def train_clip(folder: Path, data_folder: Path) -> Path:
    """A folder that `open_clip:PATH` opens; images are squashed, as those of the data are."""
    import torch
    from safetensors.torch import save_file
    from small_clip import write_config, write_tokenizer

    from capsearch.encoders.data.dataset import read
    from capsearch.encoders.data.features import decoded_batches
    from capsearch.encoders.images.preprocess import squash
    from capsearch.encoders.models.open_clip import new_network, open_clip, scale_pixels

    data = read([data_folder], splits=["train"])
    images = [one for one in data.images if sum(map(len, one.captions.values()))][:IMAGES]
    data = data.only(images)
    texts = [[c.text for one in image.captions.values() for c in one] for image in images]
    folder.mkdir(parents=True)
    write_tokenizer(folder, [text for one in texts for text in one], TEXT["vocab_size"])
    squashed = {"resize_mode": "squash", "interpolation": "bilinear"}
    languages = ["en", "zh", "ja"]
    write_config(folder, TEXT, VISION, 256, preprocess_cfg=squashed, languages=languages)
    torch.manual_seed(1)
    library = open_clip()
    network = new_network(library, folder)
    tokenizer = library.get_tokenizer(f"local-dir:{folder}")
    rows = {image.id: row for row, image in enumerate(images)}
    pixels = np.zeros((len(images), 64, 64, 3), np.uint8)
    for ids, batch in decoded_batches(data, lambda image: squash(image, 64)):
        pixels[[rows[one] for one in ids]] = batch
    settings, random = network.visual.preprocess_cfg, np.random.default_rng(1)
    optimizer = torch.optim.AdamW(network.parameters(), lr=LR, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LR, total_steps=STEPS)
    for _ in range(STEPS):
        chosen = random.choice(len(images), BATCH, replace=False)
        scaled = scale_pixels(torch.from_numpy(pixels[chosen]), settings["mean"], settings["std"])
        tokens = tokenizer([str(random.choice(texts[row])) for row in chosen])
        one = network.encode_image(scaled, normalize=True)
        other = network.encode_text(tokens, normalize=True)
        logits = network.logit_scale.exp().clamp(max=100) * one @ other.T
        right = torch.arange(BATCH)
        cross_entropy = torch.nn.functional.cross_entropy
        loss = (cross_entropy(logits, right) + cross_entropy(logits.T, right)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    state = {name: value.contiguous() for name, value in network.state_dict().items()}
    save_file(state, folder / "open_clip_model.safetensors")
    return folder
