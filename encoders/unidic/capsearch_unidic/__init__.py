"""The reduced UniDic that capsearch cuts Japanese with (encoders/unidic in its repository)."""

from pathlib import Path

DICDIR = Path(__file__).parent / "dicdir"
# For MeCab, which looks for a mecabrc of the system otherwise.
ARGUMENTS = f'-r "{DICDIR / "mecabrc"}" -d "{DICDIR}"'
