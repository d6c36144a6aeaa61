"""unidic-lite without what capsearch does not use: a third of its size, the same words.

Four reductions, none of which can change the best path through a sentence's lattice:

- features: of 26 fields, parts of speech and the dictionary form; equal ones are stored once
- identifiers of contexts that no entry has, and contexts whose connection costs are all equal
- entries that another entry of the same spelling and contexts beats by its cost
- equal entries

The format is MeCab's (dictionary.cpp, connector.cpp): `sys.dic` is a header of 72 bytes, a double
array from spellings to (first entry << 8 | number of entries), the entries, and the features;
`matrix.bin` is two sizes and int16 costs by (left context of the word after, right context of the
word before).
"""

from __future__ import annotations

import csv
import io
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HEADER = np.dtype([("magic", "<u4"), ("version", "<u4"), ("type", "<u4"), ("entries", "<u4"),
                   ("left", "<u4"), ("right", "<u4"), ("trie_bytes", "<u4"), ("entry_bytes", "<u4"),
                   ("feature_bytes", "<u4"), ("unused", "<u4"), ("charset", "S32")])  # fmt: skip
ENTRY = np.dtype([("left", "<u2"), ("right", "<u2"), ("pos", "<u2"), ("cost", "<i2"),
                  ("feature", "<u4"), ("compound", "<u4")])  # fmt: skip
UNIT = np.dtype([("base", "<i4"), ("check", "<u4")])
MAGIC = 0xEF718F77  # XOR the size of the file
COPIED = ("char.bin", "dicrc", "mecabrc", "AUTHORS", "BSD", "COPYING")
FIELDS = 17  # of UniDic 2.1 without accents, which fugashi knows by this number
KEPT = (0, 1, 10)  # pos1, pos2, orthBase


@dataclass(frozen=True, slots=True)
class Lexicon:
    """`sys.dic` or `unk.dic`."""

    header: NDArray[Any]
    trie: NDArray[Any]
    entries: NDArray[Any]
    features: bytes

    @classmethod
    def read(cls, path: Path) -> Lexicon:
        """The parts of a file; ValueError for another format."""
        content = path.read_bytes()
        header = np.frombuffer(content, HEADER, 1)[0].copy()
        if header["magic"] ^ len(content) != MAGIC or header["version"] != 102:
            raise ValueError(f"{path} is not a dictionary of MeCab 0.996")
        ends = np.cumsum([HEADER.itemsize, header["trie_bytes"], header["entry_bytes"]])
        trie = np.frombuffer(content[ends[0] : ends[1]], UNIT).copy()
        entries = np.frombuffer(content[ends[1] : ends[2]], ENTRY).copy()
        return cls(header, trie, entries, content[ends[2] :])

    def write(self, path: Path, left: int, right: int) -> None:
        """The file, for a matrix of these sizes."""
        parts = [self.trie.tobytes(), self.entries.tobytes(), self.features]
        header = self.header.copy()
        header["magic"] = MAGIC ^ (HEADER.itemsize + sum(map(len, parts)))
        header["entries"], header["left"], header["right"] = len(self.entries), left, right
        header["trie_bytes"], header["entry_bytes"], header["feature_bytes"] = map(len, parts)
        path.write_bytes(b"".join([header.tobytes(), *parts]))


def reduce(source: Path, target: Path) -> None:
    """Write the reduced dictionary of `source`, unidic-lite's folder, to a new folder."""
    target.mkdir(parents=True)
    words, unknown = Lexicon.read(source / "sys.dic"), Lexicon.read(source / "unk.dic")
    costs, lefts, rights = merge_contexts(
        read_costs(source / "matrix.bin"), np.concatenate([words.entries, unknown.entries])
    )
    for lexicon in (words, unknown):
        lexicon.entries["left"] = lefts[lexicon.entries["left"]]
        lexicon.entries["right"] = rights[lexicon.entries["right"]]
    sizes = costs.shape[::-1]  # MeCab's "left" is the word before: the matrix's columns
    without_beaten(with_fewer_features(words)).write(target / "sys.dic", *sizes)
    unknown.write(target / "unk.dic", *sizes)
    header = np.array(sizes, "<u2").tobytes()
    (target / "matrix.bin").write_bytes(header + costs.tobytes())
    for name in COPIED:
        shutil.copyfile(source / name, target / name)


def read_costs(path: Path) -> NDArray[np.int16]:
    """(left contexts, right contexts): of a word after, of the word before it."""
    stored = np.fromfile(path, "<i2")
    before, after = stored[:2].view("<u2")
    return stored[2:].reshape(after, before)


def merge_contexts(
    costs: NDArray[np.int16], entries: NDArray[Any]
) -> tuple[NDArray[np.int16], NDArray[np.uint16], NDArray[np.uint16]]:
    """Costs of the contexts that occur and differ; the new number of each left and right one.

    Context 0, of the beginning and the end of a sentence, stays 0.
    """
    lefts, rights = (np.unique(np.append(0, entries[side])) for side in ("left", "right"))
    used = costs[np.ix_(lefts, rights)]
    first_left, of_left = _distinct(used)
    first_right, of_right = _distinct(np.ascontiguousarray(used[first_left].T))
    numbers = [np.zeros(size, np.uint16) for size in costs.shape]
    numbers[0][lefts], numbers[1][rights] = of_left, of_right
    return np.ascontiguousarray(used[np.ix_(first_left, first_right)]), numbers[0], numbers[1]


def _distinct(rows: NDArray[np.int16]) -> tuple[list[int], list[int]]:
    """The first row of each content, in order, and the number of each row's content."""
    numbers: dict[bytes, int] = {}
    firsts: list[int] = []
    of_row: list[int] = []
    for row, content in enumerate(rows):
        number = numbers.setdefault(content.tobytes(), len(numbers))
        if number == len(firsts):
            firsts.append(row)
        of_row.append(number)
    return firsts, of_row


def with_fewer_features(lexicon: Lexicon) -> Lexicon:
    """Entries that share features of KEPT fields."""
    texts = lexicon.features.split(b"\0")
    starts = np.cumsum([0, *(len(text) + 1 for text in texts)])
    offsets: dict[bytes, int] = {}
    stored = bytearray()
    entries = lexicon.entries.copy()
    for row, text in enumerate(np.searchsorted(starts, lexicon.entries["feature"]).tolist()):
        kept = _kept_fields(texts[text])
        if kept not in offsets:
            offsets[kept] = len(stored)
            stored += kept + b"\0"
        entries["feature"][row] = offsets[kept]
    return Lexicon(lexicon.header, lexicon.trie, entries, bytes(stored))


def _kept_fields(feature: bytes) -> bytes:
    """As many fields as fugashi expects, empty but for KEPT."""
    text = feature.decode("utf-8")
    fields = next(csv.reader([text])) if '"' in text else text.split(",")
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(
        [fields[at] if at in KEPT else "" for at in range(FIELDS)]
    )
    return line.getvalue().encode("utf-8")


def without_beaten(lexicon: Lexicon) -> Lexicon:
    """Of the entries with one spelling and equal contexts: the cheapest, each feature once.

    Several features of the same cost all stay, in their order: which of them is chosen is MeCab's
    business.
    """
    trie, entries = lexicon.trie.copy(), lexicon.entries
    leaves = np.flatnonzero(trie["base"] < 0)
    values = -trie["base"][leaves].astype(np.int64) - 1
    kept: list[int] = []
    for leaf, value in sorted(zip(leaves.tolist(), values.tolist(), strict=True), key=_second):
        first, count = value >> 8, value & 255
        chosen = _unbeaten(entries[first : first + count].tolist())
        trie["base"][leaf] = -(len(kept) << 8 | len(chosen)) - 1
        kept.extend(first + at for at in chosen)
    return Lexicon(lexicon.header, trie, entries[kept], lexicon.features)


def _second(pair: tuple[int, int]) -> int:
    return pair[1]


def _unbeaten(entries: list[tuple[int, ...]]) -> list[int]:
    least: dict[tuple[int, int], int] = {}
    for left, right, _, cost, *_ in entries:
        least[left, right] = min(cost, least.get((left, right), cost))
    seen = set()
    kept = []
    for at, (left, right, _, cost, feature, _) in enumerate(entries):
        if cost == least[left, right] and (left, right, feature) not in seen:
            seen.add((left, right, feature))
            kept.append(at)
    return kept
