"""What an enrichment run did, in a few lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from capsearch.ui.output.skipped import skipped_lines
from capsearch.ui.output.terminal import remark

if TYPE_CHECKING:
    from capsearch.indexer.enrichment import EnrichSummary


def report_enriched(summary: EnrichSummary, verbose: bool = False) -> None:
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
