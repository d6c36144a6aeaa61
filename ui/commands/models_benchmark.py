"""`capsearch models benchmark`: what models cost on this machine."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from capsearch.ui.commands.options import json_option
from capsearch.ui.output.terminal import aligned, print_json, remark

if TYPE_CHECKING:
    from capsearch.benchmarks.models import ModelSpeed

EXAMPLES = """\b
Examples:
  capsearch models benchmark xlmr
  capsearch models benchmark open_clip:ViT-B-32/openai vit-b-32 --repeats 5

Each model runs in a process of its own, the built-in one first.
"""
HEADINGS = ("model", "images/s", "ms a query", "memory")


@click.command("benchmark", epilog=EXAMPLES)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--repeats",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="How often a batch of images is encoded.",
)
@json_option
def command(names: tuple[str, ...], repeats: int, as_json: bool) -> None:
    """Measure models beside the built-in one: images/s, ms a query, memory."""
    from capsearch.benchmarks.models import measure_models
    from capsearch.benchmarks.timing import machine

    found = []
    for speed in measure_models(names, repeats):
        remark(f"measured {speed.name}")
        found.append(speed)
    if as_json:
        print_json({"machine": machine(), "models": [asdict(one) for one in found]})
        return
    click.echo("\n".join(aligned([HEADINGS, *(_row(one) for one in found)])))


def _row(speed: ModelSpeed) -> tuple[str, ...]:
    return (
        speed.name,
        f"{speed.images_per_second:.1f}",
        ", ".join(f"{language} {ms:.1f}" for language, ms in speed.query_ms.items()),
        "" if speed.memory_mb is None else f"{speed.memory_mb} MB",
    )
