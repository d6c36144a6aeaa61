"""Tags to filter by, whatever language they are written in: concepts, and labels that name none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from capsearch.engine.records import Facet


class ConceptTable(Protocol):
    """What tags mean (the module encoders.concepts): names of concepts, and which are broader."""

    def under(self, name: str) -> frozenset[str]:
        """The ids of all concepts with a name in any language, and of all below them."""
        ...

    def broader(self, concept_id: str) -> frozenset[str]:
        """The ids of all concepts above, itself included."""
        ...

    def label_of(self, concept_id: str, label: str, language: str) -> str:
        """The name of a concept in a language; `label` for an unknown one."""
        ...


def tag_facets(
    labels: Mapping[str, int], concepts: Mapping[str, int], table: ConceptTable
) -> tuple[Facet, ...]:
    """Most images first, then by name.

    `labels` counts images by labels without a concept, `concepts` by concept ids: a concept is
    counted where an image has it or something narrower. A broader concept is left out where it
    counts no more images than a narrower one, for it offers nothing.
    """
    repeated = {
        above
        for one, count in concepts.items()
        for above in table.broader(one)
        if above != one and concepts.get(above) == count
    }
    found = [Facet(label, count) for label, count in labels.items()]
    found += [
        Facet(table.label_of(one, one, "en"), count, one)
        for one, count in concepts.items()
        if one not in repeated
    ]
    return tuple(sorted(found, key=lambda one: (-one.images, one.value, one.concept)))
