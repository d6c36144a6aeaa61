"""`capsearch models export`: a model of open_clip that is served without torch."""

from __future__ import annotations

import os
import re
from dataclasses import asdict
from pathlib import Path

import click

from capsearch.ui.commands.options import json_option
from capsearch.ui.output.terminal import human_bytes, print_json, remark

EXAMPLES = """\b
Examples:
  capsearch models export open_clip:xlm-roberta-base-ViT-B-32 xlmr
  capsearch models export open_clip:ViT-B-16-SigLIP2/webli ./siglip2 --int8
  capsearch models export open_clip:./checkpoint mine --lang zh --lang ja
  capsearch index ~/Pictures --model xlmr --rebuild    use it; torch is not needed any more

OUT is a name in your models folder, or a path. open_clip downloads the weights once and keeps
them in its cache. A float export has the same vectors as the original, so that an index made by
one is searched with the other. --int8 makes a smaller and often faster model with other vectors;
how much it loses is printed.
"""


@click.command("export", epilog=EXAMPLES)
@click.argument("reference", metavar="open_clip:MODEL[/PRETRAINED]")
@click.argument("out", required=False)
@click.option("--int8", is_flag=True, help="Quantise the weights to eight bits; prints the loss.")
@click.option(
    "--lang",
    "languages",
    multiple=True,
    metavar="CODE",
    help="A language that the text tower reads: en, zh or ja. Repeatable. Known for models that "
    "open_clip names; others are taken for English.",
)
@click.option(
    "--images",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Images to compare the export with the original on.  [default: generated ones]",
)
@click.option("--offline", is_flag=True, help="Download nothing; the same as HF_HUB_OFFLINE=1.")
@json_option
def command(
    reference: str,
    out: str | None,
    int8: bool,
    languages: tuple[str, ...],
    images: Path | None,
    offline: bool,
    as_json: bool,
) -> None:
    """Export a model of open_clip, so that it searches without torch."""
    if offline:
        os.environ["HF_HUB_OFFLINE"] = "1"
    from capsearch.encoders import models
    from capsearch.encoders.clip.export import export
    from capsearch.encoders.clip.reference import SCHEME

    if not reference.startswith(f"{SCHEME}:"):
        raise click.UsageError(f"{reference} is not a model of open_clip; write {SCHEME}:MODEL")
    out = out or re.sub(r"[^\w.-]+", "-", reference.removeprefix(f"{SCHEME}:")).strip("-.")
    if models.is_path(out):
        folder = Path(models.reference(out))
    else:
        models.check_new_name(out)
        folder = models.user_models_dir() / out
    done = export(reference, folder, int8, languages, images, remark)
    if as_json:
        print_json({**asdict(done), "path": done.folder})
        return
    click.echo(str(done.folder))
    parity = done.parity
    remark(
        f"{human_bytes(done.size_bytes)}; cosine with the original, least / mean: images "
        f"{parity.images:.4f} / {parity.mean_images:.4f}, sentences "
        f"{parity.texts:.4f} / {parity.mean_texts:.4f}"
    )
    remark(f"use it with: capsearch index PATH --model {out} --rebuild")
