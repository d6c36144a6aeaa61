"""`capsearch index`: bring an index up to date with folders of images.

What `capsearch index` says about files that it skipped, and when it added none.

What an enrichment run did, in a few lines.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import click

from capsearch.ui.cli.options import (
    backend_option,
    decode_threads_option,
    index_option,
    json_option,
    replicas_option,
    shards_option,
)
from capsearch.ui.cli.progress import INTERRUPTED, stop_on_interrupt
from capsearch.ui.cli.terminal import print_json, remark
from capsearch.ui.opening import AnyCollection, Place, create_at, place_of

if TYPE_CHECKING:
    from capsearch.indexer.enrichment import EnrichSummary
    from capsearch.indexer.pipeline import IndexOptions, IndexSummary
    from capsearch.indexer.sources.scan import Skipped


NAMED_FILES = 3  # a larger group with one reason is one line
_NUMBER = re.compile(r"\d[\d.,]*")


def skipped_lines(skipped: Sequence[Skipped], verbose: bool = False) -> Iterator[str]:
    """A line a file; of many with the same suffix and reason one line, unless `verbose`.

    Reasons that differ only in numbers, such as sizes, are the same; the first one is shown.
    """
    groups: dict[tuple[str, str], list[Skipped]] = defaultdict(list)
    for one in skipped:
        groups[PurePath(one.path).suffix.lower(), _NUMBER.sub("0", one.reason)].append(one)
    for (suffix, _), group in groups.items():
        if verbose or len(group) <= NAMED_FILES:
            yield from (f"skipped {one.path}: {one.reason}" for one in group)
        else:
            first = group[0]
            files = f"{suffix} files" if suffix else "files or folders"
            yield f"skipped {len(group):,} {files}: {first.reason} (first: {first.path})"


def why_nothing_was_added(summary: IndexSummary) -> str | None:
    """The reason, if a complete run added no image; None otherwise."""
    if summary.added or summary.reused or summary.interrupted:
        return None
    if summary.found:
        if summary.unchanged == summary.found:
            return f"nothing added: all {summary.found:,} images are already indexed"
        return (
            f"nothing added: {summary.unchanged:,} of {summary.found:,} images are already "
            "indexed, the others were skipped"
        )
    return f"nothing added: {_why_nothing_was_found(summary)}"


def _why_nothing_was_found(summary: IndexSummary) -> str:
    if summary.skipped:
        return "the only files found are in formats that are not read, or cannot be read"
    if summary.excluded:
        return f"--exclude left out all there is ({summary.excluded:,} files and folders)"
    if summary.index_folders:
        return "this folder is an index; name the folder that your images are in"
    return "no image files found"


def report_enriched(summary: EnrichSummary, verbose: bool = False) -> None:
    """Counts on stdout; skipped files and what is left on stderr."""
    for line in skipped_lines(summary.skipped, verbose):
        remark(line)
    verb = "interrupted; saved" if summary.interrupted else "enriched"
    click.echo(
        f"{verb}: {summary.tagged} images tagged, {summary.captioned} captioned "
        f"({summary.captions} captions) in {summary.seconds:.1f} s"
    )
    if summary.pending:
        remark(f"{summary.pending} images are left; `capsearch enrich` goes on")


SOMETHING_SKIPPED = 1
MAX_MEGAPIXELS = 178.95697  # encoders.images.open.MAX_PIXELS, which --help must not import
NOTHING_TO_INDEX = "nothing to index: name a folder, e.g. `capsearch index ~/Pictures`"

EXAMPLES = """\b
Examples:
  capsearch index ~/Pictures                     index a folder and all below it
  capsearch index                                update the folders indexed before
  capsearch index images --exclude '*/raw/*'     leave some files out
  capsearch index images --captions coco.json    read captions from a file
  capsearch index images --index ./images.index  write a separate index
  capsearch index --prune                        delete what is known of deleted images
  capsearch index images --backend https://search.example:9200/images    into Elasticsearch

Only new and changed files are encoded; renamed and copied files reuse their vectors. Captions
beside the images (NAME.txt, NAME.json, NAME.xmp) and inside them (EXIF, IPTC, XMP) are read too.
Once all images can be searched, the model writes captions and tags, if it does (--no-enrich).
Ctrl-C finishes the current batch and saves everything up to it.
"""


@click.command(epilog=EXAMPLES)
@click.argument(
    "paths", nargs=-1, type=click.Path(exists=True, path_type=Path), metavar="[PATH]..."
)
@index_option
@backend_option
@shards_option
@replicas_option
@click.option(
    "--model",
    metavar="NAME",
    help="The model that encodes images and captions; `capsearch models` lists them. With a slash, "
    "as in ./mine, it is the path of a model's folder; open_clip:MODEL[/PRETRAINED] is a model of "
    "open_clip. An existing index accepts another model only with --rebuild.",
)
@click.option(
    "--exclude",
    multiple=True,
    metavar="GLOB",
    help="Leave out files and folders whose name, path below PATH, or absolute path matches this "
    "pattern. Repeatable. Remembered for each PATH until others are given; '' leaves nothing out.",
)
@click.option(
    "--follow-symlinks",
    is_flag=True,
    help="Also enter folders that are symbolic links. No folder is entered twice, so loops of "
    "links end. Links to single files are always followed.",
)
@click.option(
    "--captions",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Read captions from COCO-style JSON, or from CSV or TSV with the columns file and "
    "caption. Repeatable. The file is read again in later runs.",
)
@click.option(
    "--confirm-removed",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="The images of this folder were really deleted. Without it, a folder that has suddenly "
    "lost all its images is taken for a drive that is not mounted. Repeatable.",
)
@click.option(
    "--prune",
    is_flag=True,
    help="Delete at once what is known of images whose files are gone, and their thumbnails. This "
    "also confirms all removed folders.",
)
@click.option(
    "--keep-missing",
    type=click.FloatRange(min=0),
    metavar="DAYS",
    help="How long captions and vectors of images whose files are gone are kept, in case the files "
    "come back. Remembered.  [default: 30]",
)
@click.option(
    "--max-pixels",
    type=click.FloatRange(min=0, min_open=True, max=MAX_MEGAPIXELS),
    default=MAX_MEGAPIXELS,
    show_default=True,
    metavar="MEGAPIXELS",
    help="Skip images with more megapixels than this; decoding them takes much memory and time. A "
    "skipped file is opened again when it changes, or with --rebuild.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=32,
    show_default=True,
    metavar="IMAGES",
    help="How many images are encoded and saved at once. A larger batch may be faster and needs "
    "more memory; an interrupted run loses at most one batch.",
)
@decode_threads_option
@click.option(
    "--decode-budget",
    type=click.FloatRange(min=1),
    default=200,
    show_default=True,
    metavar="MEGAPIXELS",
    help="How many megapixels all threads together decode at once; 100 take about 0.5 GB of "
    "memory. A larger image is decoded alone.",
)
@click.option(
    "--rebuild",
    is_flag=True,
    help="Encode everything again, including files skipped before. With another --model of the "
    "same backbone, images are not opened: their stored features are projected again. Searches "
    "use the old vectors until all new ones are there.",
)
@click.option(
    "--no-enrich",
    is_flag=True,
    help="Do not let the model write captions and tags, which it does once all images can be "
    "searched. `capsearch enrich` does it later.",
)
@click.option("--strict", is_flag=True, help="Exit with status 1 if any file was skipped.")
@click.option("--verbose", is_flag=True, help="Name every skipped file, also of large groups.")
@json_option
def command(
    paths: tuple[Path, ...],
    index_path: Path | None,
    backend: str | None,
    shards: int,
    replicas: int,
    model: str | None,
    exclude: tuple[str, ...],
    follow_symlinks: bool,
    captions: tuple[Path, ...],
    confirm_removed: tuple[Path, ...],
    prune: bool,
    keep_missing: float | None,
    max_pixels: float,
    batch_size: int,
    decode_threads: int | None,
    decode_budget: float,
    rebuild: bool,
    no_enrich: bool,
    strict: bool,
    verbose: bool,
    as_json: bool,
) -> int:
    """Index folders of images, or bring their index up to date.

    Without PATH, the folders indexed before are updated.
    """
    from capsearch.encoders.models import registry
    from capsearch.encoders.models.text import is_calibrated
    from capsearch.indexer.pipeline import IndexOptions

    where = place_of(index_path, backend)
    if not paths and isinstance(where, Path) and not where.exists():
        raise click.UsageError(NOTHING_TO_INDEX)
    options = IndexOptions(
        exclude=exclude,
        captions=captions,
        confirm_removed=confirm_removed,
        prune=prune,
        keep_missing=keep_missing,
        rebuild=rebuild,
        batch_size=batch_size,
        decode_threads=decode_threads,
        max_pixels=round(max_pixels * 1e6),
        follow_symlinks=follow_symlinks,
        decode_pixels=round(decode_budget * 1e6),
    )
    # Without a name, an existing index keeps the model it was made with.
    loaded = registry.load(model) if model else None
    with create_at(where, loaded, shards, replicas, rebuild) as collection:
        _require_roots(collection, paths)
        if model and not is_calibrated(collection.model):
            remark(
                f"{model} is not calibrated: scores are plain scores, without a cut-off; "
                f"`capsearch calibrate --model {model} --data DIR` fits it to captioned images"
            )
        summary, enriched = _run(collection, paths, options, not no_enrich)
    if as_json:
        written = asdict(enriched) if enriched else None
        print_json({"index": where, **asdict(summary), "enriched": written})
    else:
        _report(summary, where, verbose)
        if enriched is not None:
            report_enriched(enriched, verbose)
    stopped = summary.interrupted or (enriched is not None and enriched.interrupted)
    return INTERRUPTED if stopped else SOMETHING_SKIPPED if strict and summary.skipped else 0


def _require_roots(collection: AnyCollection, paths: tuple[Path, ...]) -> None:
    if not paths and not collection.roots():
        raise click.UsageError(NOTHING_TO_INDEX)


def _run(
    collection: AnyCollection, roots: tuple[Path, ...], options: IndexOptions, with_enrichment: bool
) -> tuple[IndexSummary, EnrichSummary | None]:
    """Vectors of all images first, then what the model writes about them, if it writes."""
    from capsearch.indexer.enrichment import EnrichOptions, enrich
    from capsearch.indexer.pipeline import index
    from capsearch.ui.cli.progress import progress_bar

    with stop_on_interrupt() as stop, progress_bar() as show:
        summary = index(collection, roots, options, progress=show, stop=stop)
        if stop.is_set() or not with_enrichment or not collection.model.enricher():
            return summary, None
        settings = EnrichOptions(
            batch_size=options.batch_size,
            decode_threads=options.decode_threads,
            max_pixels=options.max_pixels,
            decode_pixels=options.decode_pixels,
        )
        return summary, enrich(collection, settings, show, stop)


def _report(summary: IndexSummary, where: Place, verbose: bool) -> None:
    for line in skipped_lines(summary.skipped, verbose):
        remark(line)
    counts = ", ".join(
        f"{getattr(summary, name)} {name}" for name in ("added", "reused", "unchanged", "removed")
    )
    verb = "interrupted; saved" if summary.interrupted else "indexed"
    click.echo(f"{verb}: {counts}, {len(summary.skipped)} skipped in {summary.seconds:.1f} s")
    why = why_nothing_was_added(summary)
    if why:
        remark(why)
    if summary.pruned:
        click.echo(f"pruned: {summary.pruned} images whose files are gone")
    if summary.missing:
        remark(
            f"{summary.missing} images have no file any more; `capsearch index --prune` "
            "deletes what is known of them"
        )
    if summary.captions_added:
        click.echo(f"captions: {summary.captions_added} added")
    if summary.skipped:
        remark(f"warnings: {len(summary.skipped)}")
    if summary.interrupted:
        remark("run the same command again to continue")
    else:
        option = f" --backend {where}" if isinstance(where, str) else ""
        remark(f'index: {where}; now try: capsearch query "..."{option}')
