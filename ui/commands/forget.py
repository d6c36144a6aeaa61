"""`capsearch forget`: let go of an indexed folder, or of a captions file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from capsearch.ui.commands.options import backend_option, index_option, json_option
from capsearch.ui.opening import place_of, sources_at
from capsearch.ui.output.terminal import print_json, printable

if TYPE_CHECKING:
    from capsearch.indexer.forgetting import Forgettable

EXAMPLES = """\b
Examples:
  capsearch forget /media/old-drive        its images are no longer found
  capsearch forget captions.csv --yes      its captions, without a question
"""


@click.command(epilog=EXAMPLES)
@click.argument("path", type=click.Path(path_type=Path), metavar="FOLDER")
@index_option
@backend_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def command(
    path: Path, index_path: Path | None, backend: str | None, yes: bool, as_json: bool
) -> int:
    """Let go of a folder that was indexed, or of a captions file.

    Its images leave the index with their captions, unless another folder holds them too. No
    image file is touched. The folder need not exist any more.
    """
    from capsearch.indexer.forgetting import forget

    with sources_at(place_of(index_path, backend)) as sources:
        found = forget(sources, path, lambda known: yes or _confirmed(known))
    if found is None:
        click.echo("nothing was changed", err=True)
        return 1
    if as_json:
        print_json({"forgotten": found.path, "images": found.images, "captions": found.captions})
    else:
        click.echo(printable(f"forgotten: {_described(found)}"))
    return 0


def _confirmed(known: Forgettable) -> bool:
    try:
        return click.confirm(printable(f"Forget {_described(known)}?"), err=True)
    except click.Abort:  # Ctrl-C, or nobody to ask: --yes is for scripts
        return False


def _described(known: Forgettable) -> str:
    return f"{known.path} with {known.images} images and {known.captions} captions by people"
