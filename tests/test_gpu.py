"""The packages for GPUs, in an environment of their own. No GPU was at hand: they report none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = (
    "faiss-gpu-cu12",
    "onnxruntime-gpu",
    "filelock",
    "pillow",
    "platformdirs",
    "safetensors",
)
SCRIPT = """
import json
import numpy as np
from capsearch.encoders.models.image import device
from capsearch.indexer.sqlite import nearest

rows = np.random.default_rng(0).standard_normal((21_000, 64)).astype(np.float32)
rows /= np.linalg.norm(rows, axis=1, keepdims=True)
search = nearest.build(rows, lambda: nearest.coded(rows))
found = {
    "device": device(),
    "gpus": nearest.gpus(),
    "search": type(search).__name__,
    "nearest": [int(search.top(rows[row], 10)[0]) for row in (0, 17, 20_999)],
}
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="faiss-gpu-cu12 is for Linux")
def test_packages_for_gpus_encode_and_search_on_the_cpu_where_there_is_none(tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", *PACKAGES]
    subprocess.run(pip, check=True)
    done = subprocess.run(
        [python, "-c", SCRIPT],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / ".src")},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {  # and nothing else on stdout
        "device": "cpu",
        "gpus": 0,
        "search": "CodeSearch",
        "nearest": [0, 17, 20_999],
    }
