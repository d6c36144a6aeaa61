"""`capsearch caption`, `tag` and `describe`: images outside an index, put into words."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from capsearch.engine.protocols import Head
from capsearch.engine.records import LANGUAGES
from capsearch.library import best_sentences, describe_files
from capsearch.ui.cli.options import json_option, model_option
from capsearch.ui.cli.terminal import aligned, print_json, remark
from capsearch.ui.values import printable

if TYPE_CHECKING:
    from capsearch.encoders.models.describe import Description


SOMETHING_SKIPPED = 1
CAPTION_EXAMPLES = """\b
Examples:
  capsearch caption cat.jpg
  capsearch caption *.jpg --language zh
  capsearch caption cat.jpg --json

Each caption comes with its probability of being right. For a whole index: capsearch enrich.
"""
TAG_EXAMPLES = """\b
Examples:
  capsearch tag cat.jpg
  capsearch tag *.jpg --language ja --limit 5
  capsearch tag cat.jpg --json

Each tag comes with its probability of being right. For a whole index: capsearch enrich.
"""
DESCRIBE_EXAMPLES = """\b
Examples:
  capsearch describe cat.jpg --sentences headlines.txt
  cat titles.txt | capsearch describe cat.jpg --sentences - --limit 3 --json

The best sentences come first: search the other way, e.g. to recommend texts for an image. The file
has one sentence a line, in any of the languages. Scores compare within one image only.
"""
files_argument = click.argument(
    "files", nargs=-1, required=True, type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE...",
)  # fmt: skip


@click.command(epilog=CAPTION_EXAMPLES)
@files_argument
@click.option(
    "--language",
    "languages",
    multiple=True,
    type=click.Choice(LANGUAGES),
    help="Only captions in this language; repeatable.  [default: all that the model writes]",
)
@model_option
@json_option
def caption(
    files: tuple[Path, ...], languages: tuple[str, ...], name: str | None, as_json: bool
) -> int:
    """Write captions for image files."""
    chosen = languages or LANGUAGES
    images = _described(files, name, "captioner")
    written = {
        image.path: [caption for caption in image.captions if caption.language in chosen]
        for image in images
    }
    if as_json:
        print_json(
            [
                {"path": path, "captions": list(map(asdict, captions))}
                for path, captions in written.items()
            ]
        )
    else:
        _print(
            [
                (str(path), caption.language, f"{caption.confidence:.0%}", caption.text)
                for path, captions in written.items()
                for caption in captions
            ]
        )
    return _exit_code(images)


@click.command(epilog=TAG_EXAMPLES)
@files_argument
@click.option(
    "--language",
    type=click.Choice(LANGUAGES),
    default="en",
    show_default=True,
    help="The language of the tags' names.",
)
@click.option(
    "--limit", "-n", type=click.IntRange(min=1), help="At most so many tags an image, surest first."
)
@model_option
@json_option
def tag(
    files: tuple[Path, ...], language: str, limit: int | None, name: str | None, as_json: bool
) -> int:
    """Name what image files show."""
    from capsearch.encoders.text import concepts

    images = _described(files, name, "tagger")
    named = {
        image.path: [
            {"name": concepts.label_of(tag.concept, tag.label, language), **asdict(tag)}
            for tag in image.tags[:limit]
        ]
        for image in images
    }
    if as_json:
        print_json([{"path": path, "tags": tags} for path, tags in named.items()])
    else:
        _print(
            [
                (str(path), f"{tag['confidence']:.0%}", tag["name"])
                for path, tags in named.items()
                for tag in tags
            ]
        )
    return _exit_code(images)


@click.command(epilog=DESCRIBE_EXAMPLES)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--sentences",
    type=click.File("rb"),
    required=True,
    metavar="FILE",
    help="The pool to choose from, one sentence a line; - reads it from stdin.",
)
@click.option(
    "--language",
    type=click.Choice(LANGUAGES),
    help="The language of all sentences.  [default: detected for each]",
)
@click.option("--limit", "-n", type=click.IntRange(min=1), default=10, show_default=True)
@model_option
@json_option
def describe(
    file: Path,
    sentences: IO[bytes],
    language: str | None,
    limit: int,
    name: str | None,
    as_json: bool,
) -> int:
    """Find the sentences of a pool that describe an image best."""
    from capsearch.indexer.sources.charsets import read_text

    lines = [line.strip() for line in read_text(sentences.read()).splitlines()]
    pool = [line for line in lines if line]
    if not pool:
        raise click.UsageError("--sentences names a file with at least one sentence a line")
    best = best_sentences(file, pool, language=language, limit=limit, model=name)
    if as_json:
        print_json({"path": file, "sentences": list(map(asdict, best))})
    else:
        _print([(f"{sentence.score:.3f}", sentence.language, sentence.text) for sentence in best])
    return 0


def _described(files: tuple[Path, ...], model: str | None, head: Head) -> list[Description]:
    images = list(describe_files(files, model=model, head=head))
    for image in images:
        if image.problem:
            remark(f"skipped {image.path}: {image.problem}")
    return images


def _print(rows: list[tuple[str, ...]]) -> None:
    if rows:
        click.echo("\n".join(aligned([tuple(printable(cell) for cell in row) for row in rows])))


def _exit_code(images: list[Description]) -> int:
    return SOMETHING_SKIPPED if any(image.problem for image in images) else 0
