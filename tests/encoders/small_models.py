"""Model folders small enough for tests: a sentence encoder and a backbone card."""

import json

import numpy as np

from capsearch.encoders.models import model_folder

PIECES = (
    "<unk>",
    "<s>",
    "</s>",
    "▁",
    "▁a",
    "▁red",
    "▁car",
    "c",
    "a",
    "r",
    "红",
    "车",
    "赤",
    "い",
    "!",
)
SCORES = (0.0, 0.0, 0.0, -4.0, -2.0, -3.0, -3.0, -5.0, -5.0, -5.0, -3.0, -3.0, -3.0, -3.0, -2.0)
EMBEDDED, CONVOLVED = 16, 8
NETWORK = {
    "cnn_W": (EMBEDDED + 3 * CONVOLVED, 16),
    "cnn_b": (16,),
    "ln_g": (EMBEDDED + 3 * CONVOLVED,),
    "ln_b": (EMBEDDED + 3 * CONVOLVED,),
    "p1": (16, 16),
    "d0": (16, 8),
    "d1": (8, 16),
    "p3": (16, 512),
    "d2": (16, 8),
    "d3": (8, 512),
    "scale": (len(PIECES),),
    "low": (len(PIECES),),
}
for order in (2, 3, 5):
    NETWORK |= {
        f"proj{order}": (EMBEDDED, CONVOLVED),
        f"w1_{order}": (order * CONVOLVED, CONVOLVED),
        f"w2_{order}": (order * CONVOLVED, CONVOLVED),
        **{f"{name}{order}": (CONVOLVED,) for name in ("proj_b", "ln_g", "ln_b", "b1_", "b2_")},
    }


def write_sentence_model(folder, seed=1):
    """A sentence encoder with random weights and the pieces above."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    save_file(
        {name: rng.normal(0, 0.5, shape).astype(np.float32) for name, shape in NETWORK.items()},
        folder / "weights.safetensors",
    )
    np.save(folder / "table.npy", rng.integers(0, 255, (len(PIECES), EMBEDDED), np.uint8))
    pieces = json.dumps({"pieces": PIECES, "scores": SCORES})
    (folder / "pieces.json").write_text(pieces, encoding="utf-8")
    model_folder.write_card(folder, {"kind": "sentence", "name": folder.name, "languages": ["en"]})
    return folder


def write_backbone_card(folder, dimension=6):
    """A backbone that can be opened but has no network: `features` fails."""
    folder.mkdir(parents=True)
    (folder / "backbone.onnx").write_bytes(b"never run")
    card = {"kind": "backbone", "name": folder.name, "input_size": 8, "dimension": dimension}
    model_folder.write_card(folder, {**card, "digest": model_folder.digest(folder)})
    return folder
