"""Options of a command from a dataclass: what is declared there is said once.

A field's name is the option's, its type and default are the option's, and its metadata (see
`capsearch.encoders.settings.option`) has the help and what values are allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from functools import wraps
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import click

from capsearch.ui.cli.options import OutputFile

R = TypeVar("R")
_KINDS = {"folder": {"file_okay": False}, "file": {"dir_okay": False}, "path": {}}


def declared_by(settings: type[Any]) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Adds an option for each field; the command gets one `settings` in place of their values."""
    types = get_type_hints(settings)

    def decorated(command: Callable[..., R]) -> Callable[..., R]:
        @wraps(command)
        def run(**values: Any) -> R:
            of_fields = {field.name: values.pop(field.name) for field in fields(settings)}
            return command(settings(**of_fields), **values)

        described: Callable[..., R] = run
        for field in reversed(fields(settings)):
            described = _option(field, types[field.name])(described)
        return described

    return decorated


def flag_of(name: str) -> str:
    """batch_size -> --batch-size, from_ -> --from."""
    return f"--{name.strip('_').replace('_', '-')}"


def _option(field: Field[Any], annotated: Any) -> Callable[[Callable[..., R]], Callable[..., R]]:
    default, flag = field.default, flag_of(field.name)
    if annotated is bool:
        flag = flag if default is False else flag.replace("--", "--no-", 1)
        return click.option(
            flag, field.name, is_flag=True, default=default, flag_value=not default,
            help=field.metadata["help"],
        )  # fmt: skip
    multiple = get_origin(annotated) is tuple
    kind = get_args(annotated)[0] if multiple or isinstance(annotated, UnionType) else annotated
    return click.option(
        flag,
        field.name,
        type=_type(kind, field),
        multiple=multiple,
        required=default is MISSING,
        default=None if default is MISSING or multiple else default,
        show_default=default not in (MISSING, None, ()),
        metavar=field.metadata["metavar"] or _METAVARS.get((kind, field.metadata["exists"])),
        help=field.metadata["help"],
    )


_METAVARS = {(Path, None): "DIR", (Path, "folder"): "DIR", (Path, "path"): "DIR"}
_METAVARS |= {(Path, "file"): "FILE", (Path, "new file"): "FILE"}


def _type(kind: Any, field: Field[Any]) -> Any:
    """What click checks a value against; by default that it can be converted."""
    exists = field.metadata["exists"]
    bounds = field.metadata["least"], field.metadata["most"]
    if kind is Path:
        if exists == "new file":
            return OutputFile()
        return click.Path(exists is not None, path_type=Path, **_KINDS[exists or "folder"])
    if get_origin(kind) is Literal:
        return click.Choice(get_args(kind))
    if bounds != (None, None):
        return click.IntRange(*bounds) if kind is int else click.FloatRange(*bounds)
    return kind
