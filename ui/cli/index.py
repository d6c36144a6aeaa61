"""`capsearch index`, `enrich`, `forget` and `info`: filling an index, and what is in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import capsearch
from capsearch.library import devices
from capsearch.ui.cli.options import (
    batch_size_option,
    decode_threads_option,
    json_option,
    place_options,
    replicas_option,
    shards_option,
    verbose_option,
)
from capsearch.ui.cli.progress import INTERRUPTED, progress_bar, stop_on_interrupt
from capsearch.ui.cli.terminal import aligned, print_json, remark, skipped_lines
from capsearch.ui.values import human_bytes, printable

if TYPE_CHECKING:
    from capsearch.indexer.enrichment import EnrichSummary
    from capsearch.indexer.pipeline import IndexSummary
    from capsearch.indexer.roots import Forgettable


SOMETHING_SKIPPED = 1
MAX_MEGAPIXELS = 178.95697  # encoders.images.open.MAX_PIXELS, which --help must not import

INDEX_EXAMPLES = """\b
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


def _in_pixels(context: click.Context, option: click.Parameter, megapixels: float) -> int:
    return round(megapixels * 1e6)


@click.command(epilog=INDEX_EXAMPLES)
@click.argument(
    "paths", nargs=-1, type=click.Path(exists=True, path_type=Path), metavar="[PATH]..."
)
@place_options
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
    callback=_in_pixels,
    metavar="MEGAPIXELS",
    help="Skip images with more megapixels than this; decoding them takes much memory and time. A "
    "skipped file is opened again when it changes, or with --rebuild.",
)
@batch_size_option
@decode_threads_option
@click.option(
    "--decode-budget",
    "decode_pixels",
    type=click.FloatRange(min=1),
    default=200,
    show_default=True,
    callback=_in_pixels,
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
@verbose_option
@json_option
def index(
    paths: tuple[Path, ...],
    place: Path | str | None,
    shards: int,
    replicas: int,
    model: str | None,
    no_enrich: bool,
    strict: bool,
    verbose: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Index folders of images, or bring their index up to date.

    Without PATH, the folders indexed before are updated.
    """
    # Without a name, an existing index keeps the model it was made with.
    library = capsearch.open(place, model=model, shards=shards, replicas=replicas)
    if model and not library.calibrated:
        remark(
            f"{model} is not calibrated: scores are plain scores, without a cut-off; "
            f"`capsearch calibrate --model {model} --data DIR` fits it to captioned images"
        )
    with stop_on_interrupt() as stop, progress_bar() as show:
        summary = library.index(
            paths,
            options=capsearch.IndexOptions(**options),
            enrich=not no_enrich,
            progress=show,
            stop=stop,
        )
    enriched = summary.enriched
    if as_json:
        print_json({"index": library.place, **asdict(summary)})
    else:
        _report_indexed(summary, library.place, verbose)
        if enriched is not None:
            _report_enriched(enriched, verbose)
    stopped = summary.interrupted or (enriched is not None and enriched.interrupted)
    return INTERRUPTED if stopped else SOMETHING_SKIPPED if strict and summary.skipped else 0


def _report_indexed(summary: IndexSummary, where: Path | str, verbose: bool) -> None:
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


ENRICH_EXAMPLES = """\b
Examples:
  capsearch enrich                       go on where `capsearch index` was stopped
  capsearch enrich ~/Pictures/2024       only these images
  capsearch enrich --redo                do it all over
  capsearch enrich --backend https://search.example:9200/images    in Elasticsearch

`capsearch index` does this too, once all images can be searched. Images that another model has
described are described anew. What people wrote, accepted or corrected stays, and captions that were
rejected do not come back. Ctrl-C finishes the current batch and saves everything up to it.
"""


@click.command(epilog=ENRICH_EXAMPLES)
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path), metavar="[PATH]...")
@place_options
@click.option(
    "--redo", is_flag=True, help="Also describe images that this model has described already."
)
@batch_size_option
@decode_threads_option
@verbose_option
@json_option
def enrich(
    paths: tuple[Path, ...],
    place: Path | str | None,
    verbose: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Write captions and tags for the images of an index, by the model it was made with.

    Images that have them already are left alone. With PATH, only images there and below.
    """
    with capsearch.open(place) as library, stop_on_interrupt() as stop, progress_bar() as show:
        summary = library.enrich(paths, progress=show, stop=stop, **options)
    if as_json:
        print_json({"index": library.place, **asdict(summary)})
    else:
        _report_enriched(summary, verbose)
    return INTERRUPTED if summary.interrupted else 0


def _report_enriched(summary: EnrichSummary, verbose: bool) -> None:
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


FORGET_EXAMPLES = """\b
Examples:
  capsearch forget /media/old-drive        its images are no longer found
  capsearch forget captions.csv --yes      its captions, without a question
"""


@click.command(epilog=FORGET_EXAMPLES)
@click.argument("path", type=click.Path(path_type=Path), metavar="FOLDER")
@place_options
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def forget(path: Path, place: Path | str | None, yes: bool, as_json: bool) -> int:
    """Let go of a folder that was indexed, or of a captions file.

    Its images leave the index with their captions, unless another folder holds them too. No
    image file is touched. The folder need not exist any more.
    """
    gone = capsearch.open(place).forget(path, lambda known: yes or _confirmed(known))
    if gone is None:
        click.echo("nothing was changed", err=True)
        return 1
    if as_json:
        print_json({"forgotten": gone.path, "images": gone.images, "captions": gone.captions})
    else:
        click.echo(printable(f"forgotten: {_described(gone)}"))
    return 0


def _confirmed(known: Forgettable) -> bool:
    try:
        return click.confirm(printable(f"Forget {_described(known)}?"), err=True)
    except click.Abort:  # Ctrl-C, or nobody to ask: --yes is for scripts
        return False


def _described(known: Forgettable) -> str:
    return f"{known.path} with {known.images} images and {known.captions} captions by people"


INFO_EXAMPLES = """\b
Examples:
  capsearch info
  capsearch info --index ./images.index --json
  capsearch info --backend https://search.example:9200/images
"""


@click.command(epilog=INFO_EXAMPLES)
@place_options
@json_option
def info(place: Path | str | None, as_json: bool) -> None:
    """Report what an index holds, which model made it, and its size on disk.

    This works without the index's model; a missing model is named.
    """
    library = capsearch.open(place)
    problem = library.model_problem()
    facts = {"index": str(library.place), **asdict(library.stats()), "devices": devices()}
    facts["model_problem"] = problem
    if problem is not None:
        remark(f"warning: {problem}")
    if as_json:
        print_json(facts)
        return
    rows = [
        (name.replace("_", " "), printable(_readable(name, value))) for name, value in facts.items()
    ]
    click.echo("\n".join(aligned(rows)))


def _readable(name: str, value: object) -> str:
    """A value in readable form; a missing one is a dash."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_readable(name, part)}" for key, part in value.items()) or "-"
    if isinstance(value, list | tuple):
        return ", ".join(_readable(name, part) for part in value) or "-"
    if isinstance(value, int) and "bytes" in name:
        return human_bytes(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    return "-" if value is None else str(value)
