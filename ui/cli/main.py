"""The `capsearch` command: a table of commands, and the only place where errors become exits.

Exit codes: 0 success, 1 something was left out or declined, 2 failure, 130 interrupted.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import NamedTuple

import click

from capsearch.engine.errors import CapsearchError
from capsearch.ui.cli.terminal import remark
from capsearch.ui.values import printable

FAILED = 2
INTERRUPTED = 130


class Entry(NamedTuple):
    """The module of a command, and its line in `capsearch --help`."""

    target: str  # "module:attribute", imported when the command runs
    help: str


COMMANDS: Mapping[str, Entry] = {
    "index": Entry("capsearch.ui.cli.index:index", "Index folders of images."),
    "query": Entry(
        "capsearch.ui.cli.query:command", "Find images by text, by an image or by both."
    ),
    "enrich": Entry("capsearch.ui.cli.index:enrich", "Let the model write captions and tags."),
    "caption": Entry("capsearch.ui.cli.describe:caption", "Write captions for image files."),
    "tag": Entry("capsearch.ui.cli.describe:tag", "Name what image files show."),
    "describe": Entry(
        "capsearch.ui.cli.describe:describe", "Find the sentences that describe an image."
    ),
    "ui": Entry("capsearch.ui.cli.serve:command", "Open the search page in a browser."),
    "info": Entry("capsearch.ui.cli.index:info", "Report what an index holds."),
    "forget": Entry("capsearch.ui.cli.index:forget", "Let go of an indexed folder."),
    "copy": Entry("capsearch.ui.cli.export:copy", "Copy an index to a cluster, or back, as it is."),
    "export": Entry("capsearch.ui.cli.export:export", "Captions and tags for other programs."),
    "models": Entry("capsearch.ui.cli.models:command", "List the available models."),
    "train": Entry("capsearch.ui.cli.train:command", "Train models on your own captions."),
    "calibrate": Entry(
        "capsearch.ui.cli.train:calibrate", "Fit what evidence is worth to a model."
    ),
    "bench": Entry("capsearch.ui.cli.bench:command", "Measure quality and speed."),
}

EXAMPLES = """\b
Examples:
  capsearch index ~/Pictures
  capsearch query "a cat on a laptop"
  capsearch query "一只猫趴在笔记本电脑上" --open
  capsearch query "ノートパソコンの上の猫" --json
  capsearch query --image holiday.jpg --limit 20
  capsearch ui

Options and more examples: capsearch COMMAND --help
"""


class LazyGroup(click.Group):
    """A group that lists its commands by name and imports only the one that runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names in COMMANDS, in their order."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now; None for an unknown name."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry.target.partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list in `--help` from COMMANDS, so that nothing is imported."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])


@click.command(
    cls=LazyGroup, epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(package_name="capsearch")
def cli() -> None:
    """Find images with a sentence in Chinese, Japanese or English, offline.

    Results go to stdout, everything else to stderr.
    """


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; errors a user can act on are one line."""
    arguments = None if argv is None else list(argv)
    try:
        code = cli.main(arguments, prog_name="capsearch", standalone_mode=False)
    except click.ClickException as error:
        _show(error)
        return FAILED
    except (CapsearchError, OSError) as error:  # OSError: full disk, no permission
        remark(f"capsearch: {_one_line(error)}")
        return FAILED
    except click.Abort:
        click.echo("capsearch: interrupted", err=True)
        return INTERRUPTED
    return code if isinstance(code, int) else 0


def run() -> None:
    """The console script's entry point."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # Captions may be in any script, and file names need not be valid UTF-8.
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")
    sys.exit(main())


def _open_closed_streams() -> None:
    """Streams that were closed before the start (`>&-`), which Python leaves out, go nowhere."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115


def _show(error: click.ClickException) -> None:
    """Print click's own message; it may quote an argument, and a file name may contain escapes."""
    message = io.StringIO()
    error.show(message)
    click.echo("\n".join(map(printable, message.getvalue().splitlines())), err=True)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).splitlines())
