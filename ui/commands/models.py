"""`capsearch models`: the models that are available for indexing and training."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from capsearch.ui.commands.options import json_option
from capsearch.ui.output.terminal import aligned, human_bytes, print_json, printable, remark

if TYPE_CHECKING:
    from capsearch.encoders.models import ModelSummary

EXAMPLES = """\b
Examples:
  capsearch models
  capsearch index ~/Pictures --model NAME

Models that you train are listed here too; see capsearch train --help.
"""

HEADINGS = ("name", "kind", "languages", "size", "source", "description")


@click.command(epilog=EXAMPLES)
@json_option
def command(as_json: bool) -> None:
    """List the available models; the default one is marked with a star."""
    from capsearch.encoders import models

    found = models.available()
    if as_json:
        print_json([{**asdict(one), "default": one.name == models.DEFAULT_MODEL} for one in found])
        return
    rows = [_row(one, models.DEFAULT_MODEL) for one in found]
    click.echo("\n".join(aligned([HEADINGS, *rows])))
    remark(f"your own models are in {models.user_models_dir()}")


def _row(model: ModelSummary, default: str) -> tuple[str, ...]:
    return (
        f"{printable(model.name)}{' *' if model.name == default else ''}",
        model.kind,
        " ".join(model.languages),
        human_bytes(model.size_bytes),
        "capsearch" if model.built_in else "user",
        printable(model.description),
    )
