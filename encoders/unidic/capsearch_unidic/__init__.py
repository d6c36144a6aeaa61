"""The reduced UniDic that capsearch cuts Japanese with (encoders/unidic in its repository)."""

from pathlib import Path

DICDIR = Path(__file__).parent / "dicdir"
