"""`capsearch caption`, `tag` and `describe`: images outside an index, put into words."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from capsearch.engine.errors import InvalidImage, UnknownModel
from capsearch.engine.records import LANGUAGES
from capsearch.ui.cli.options import json_option, model_option
from capsearch.ui.cli.terminal import aligned, print_json, remark
from capsearch.ui.values import printable

if TYPE_CHECKING:
    from capsearch.encoders.models.describe import DescribedFile
    from capsearch.encoders.models.registry import Model


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
    model = _model(name)
    if model.enricher().captioner is None:
        raise UnknownModel(f"{model.name} writes no captions: no captioner is trained with it")
    chosen = languages or LANGUAGES
    found = _described(model, files)
    texts = {one.path: [text for text in one.captions if text.language in chosen] for one in found}
    if as_json:
        print_json(
            [{"path": path, "captions": list(map(asdict, some))} for path, some in texts.items()]
        )
    else:
        _print(
            [
                (str(path), text.language, f"{text.confidence:.0%}", text.text)
                for path, some in texts.items()
                for text in some
            ]
        )
    return _exit_code(found)


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

    model = _model(name)
    if model.enricher().tagger is None:
        raise UnknownModel(f"{model.name} writes no tags: no tagger is trained with it")
    found = _described(model, files)
    named = {
        one.path: [
            {"name": concepts.label_of(tag.concept, tag.label, language), **asdict(tag)}
            for tag in one.tags[:limit]
        ]
        for one in found
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
    return _exit_code(found)


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
    from capsearch.encoders.images.preprocess import decode
    from capsearch.encoders.models import registry
    from capsearch.encoders.models.describe import best_sentences
    from capsearch.indexer.sources.charsets import read_text

    lines = [line.strip() for line in read_text(sentences.read()).splitlines()]
    pool = [line for line in lines if line]
    if not pool:
        raise click.UsageError("--sentences names a file with at least one sentence a line")
    model = registry.load(name)
    try:
        pixels = decode(file, model.image.preprocess).pixels
    except InvalidImage as error:
        raise InvalidImage(f"{file}: {error}") from error
    found = best_sentences(model, pixels, pool, limit, language)
    if as_json:
        print_json({"path": file, "sentences": [asdict(one) for one in found]})
    else:
        _print([(f"{one.score:.3f}", one.language, one.text) for one in found])
    return 0


def _model(name: str | None) -> Model:
    """The model; UnknownModel if it describes nothing."""
    from capsearch.encoders.models import registry
    from capsearch.encoders.models.describe import no_heads

    model = registry.load(name)
    if not model.enricher():
        raise UnknownModel(no_heads(model.name))
    return model


def _described(model: Model, files: tuple[Path, ...]) -> list[DescribedFile]:
    from capsearch.encoders.models.describe import describe_files

    found = list(describe_files(model, files))
    for one in found:
        if one.problem:
            remark(f"skipped {one.path}: {one.problem}")
    return found


def _print(rows: list[tuple[str, ...]]) -> None:
    if rows:
        click.echo("\n".join(aligned([tuple(printable(cell) for cell in row) for row in rows])))


def _exit_code(found: list[DescribedFile]) -> int:
    return SOMETHING_SKIPPED if any(one.problem for one in found) else 0
