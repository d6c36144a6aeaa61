"""Importing open_clip, also where torchvision's compiled operators do not load."""

from __future__ import annotations

import logging
from typing import Any

from capsearch.engine.errors import MissingExtra

PURPOSE, EXTRA = "a model of open_clip", "clip"
# torchvision registers these two at import, whether or not its library loaded.
_OPERATORS = ("nms", "qnms")
_declared: list[Any] = []  # a torch.library.Library takes its operators away when it is collected


def open_clip() -> Any:
    """The module; MissingExtra if it is not installed."""
    try:
        _import_torchvision()
        import open_clip
    except ImportError as problem:
        raise MissingExtra(PURPOSE, EXTRA) from problem
    logging.getLogger("httpx").setLevel(logging.WARNING)
    return open_clip


def _import_torchvision() -> None:
    """Import torchvision beside a torch of another build, e.g. the CPU one.

    Its library of detection operators is then not loaded, which it accepts, but for two
    operators that it registers all the same. open_clip calls neither of them: declaring them is
    enough for the import. A call would still fail, as without the library it must.
    """
    try:
        import torchvision
    except RuntimeError as problem:
        if "torchvision::" not in str(problem):
            raise
        import torch

        library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for name in _OPERATORS:
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # type: ignore[no-untyped-call]
        _declared.append(library)
        import torchvision  # noqa: F401
