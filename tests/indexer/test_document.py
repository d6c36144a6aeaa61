"""The life of a document: what runs, models and people change, and what survives it."""

from __future__ import annotations

import copy
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from embedded_toys import change as edit
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from capsearch.engine.records import HAND, Caption, Document, ImageRecord, Tag
from capsearch.indexer.document import (
    CAPTIONS_FILES,
    METADATA_SOURCES,
    SIDECAR,
    StoredDocument,
    days_ago,
    now,
)
from capsearch.indexer.prepare import Prepared
from capsearch.indexer.sources.metadata import Metadata
from capsearch.indexer.sources.scan import ImageFile
from capsearch.indexer.sqlite.collection import Collection
from capsearch.indexer.sqlite.documents import CatalogDocuments
from capsearch.indexer.sqlite.writer import CatalogWriter
from capsearch.indexer.store import EncodedImage

RECORD = ImageRecord("a" * 32, ("/p/a.jpg",), 4, 3, 9, "JPEG")
MODEL = "model:m"
TEXTS, LANGUAGES = ("a cat", "a dog", "the sea"), ("en", "zh")
PATHS = ("/p/a.jpg", "/p/b.jpg", "/q/a.jpg")


def said(text: str = "a cat", source: str = SIDECAR, language: str = "en") -> Caption:
    return Caption(text, language, source)


def document(*captions: Caption, paths: tuple[str, ...] = PATHS[:1]) -> StoredDocument:
    """With files, and with captions that have no origin."""
    stored = StoredDocument.of(Document(RECORD, captions))
    stored.files = dict.fromkeys(paths, (1, 9, ""))
    return stored


def texts(stored: StoredDocument) -> list[str]:
    return [caption.text for caption in stored.document().captions]


def arrive(stored: StoredDocument, path: str, *captions: Caption) -> int:
    return stored.arrive(ImageFile(path, 1, 9), captions)


def encoded(metadata: Metadata) -> EncodedImage:
    prepared = Prepared(ImageFile(PATHS[0], 1, 9), RECORD.id, None, metadata, (), ())
    return EncodedImage(prepared, np.ones(2, np.float16), np.ones(3, np.float32))


# Captions follow edits


def test_an_edited_sidecar_replaces_its_captions_and_no_others() -> None:
    stored = document(said("by hand", HAND), said("in the file", "iptc"))
    assert arrive(stored, PATHS[0], said("a cat"), said("a dog")) == 2
    assert arrive(stored, PATHS[0], said("a dog"), said("the sea")) == 1
    assert sorted(texts(stored)) == ["a dog", "by hand", "in the file", "the sea"]


def test_edited_metadata_replaces_captions_tags_and_fields_and_no_others() -> None:
    stored = document(said("by hand", HAND))
    stored.add_tags([Tag("mine", "en", 1.0, HAND), Tag("old", "en", 1.0, "iptc")])
    new = Metadata(
        (said("new", "xmp"),), (Tag("new", "en", 1.0, "iptc"),), {"creator": "me"},
        datetime(2020, 1, 1), "exif",
    )  # fmt: skip
    stored.put_image(encoded(Metadata((said("old", "exif"),))))
    assert stored.put_image(encoded(new)) == 1
    assert texts(stored) == ["by hand", "new"]
    assert [tag.label for tag in stored.document().tags] == ["mine", "new"]
    assert stored.metadata == {"creator": "me", "taken_from": "exif"}
    assert stored.record.taken_at == datetime(2020, 1, 1)


def test_a_caption_that_stays_keeps_its_vector_but_not_in_another_language() -> None:
    stored = document()
    arrive(stored, PATHS[0], said("a cat"), said("猫"))
    for caption in stored.captions.values():
        caption.encoded = True
    assert arrive(stored, PATHS[0], said("a cat"), said("猫", language="zh")) == 1
    assert [caption.encoded for caption in stored.captions.values()] == [True, False]


def test_a_captions_file_leaves_images_without_a_file_alone() -> None:
    stored = document()
    assert stored.put_named("c.csv", [said("a cat", "csv")]) == 1
    stored.leave(PATHS[0])
    assert stored.put_named("c.csv", []) == 0 and texts(stored) == ["a cat"]
    arrive(stored, PATHS[0])
    assert stored.put_named("c.csv", [said("a dog", "csv")]) == 1
    assert texts(stored) == ["a dog"]


# Missing images


def test_without_any_file_all_that_is_known_stays() -> None:
    stored = document()
    arrive(stored, PATHS[0], said("a cat"))
    stored.leave(PATHS[0])
    assert stored.document().record.paths == ()
    assert (texts(stored), list(stored.past)) == (["a cat"], [PATHS[0]])
    assert stored.missing_since is not None and days_ago(0) >= stored.missing_since > days_ago(1)
    arrive(stored, PATHS[0], said("a cat"))
    assert (stored.missing_since, stored.past) == (None, {})


def test_a_file_that_leaves_takes_its_sidecars_along_if_there_are_others() -> None:
    stored = document(paths=())
    arrive(stored, PATHS[0], said("here"))
    arrive(stored, PATHS[1], said("there"))
    stored.leave(PATHS[0])
    assert (texts(stored), stored.missing_since) == (["there"], None)


def test_a_file_that_was_not_there_cannot_leave() -> None:
    stored = document()
    stored.leave("/elsewhere.jpg")
    assert (stored.past, stored.missing_since) == ({}, None)


def test_a_forgotten_folder_leaves_no_trace() -> None:
    stored = document(paths=PATHS)
    stored.past = {"/p/was.jpg": now()}
    stored.forget_files(lambda path: path.startswith("/p/"))
    assert (list(stored.files), stored.past) == (["/q/a.jpg"], {})


# What follows to new content


def test_what_people_wrote_and_rejected_follows_to_the_edited_image() -> None:
    before = document(
        said("by hand", HAND), said("beside it", SIDECAR), said("inside", "iptc"),
        said("generated", MODEL),
    )  # fmt: skip
    before.put_named("c.csv", [said("in a table", "csv")])
    before.add_tags([Tag("holiday", "en", 1.0, HAND), Tag("camera", "en", 1.0, "exif")])
    before.rejected = frozenset({"a dog"})
    after = document()
    after.rejected = frozenset({"a cow"})
    assert after.follow(before) == 2 and after.follow(before) == 0
    assert texts(after) == ["by hand", "in a table"]
    assert [tag.label for tag in after.document().tags] == ["holiday"]
    assert after.rejected == {"a dog", "a cow"}
    assert not any(caption.encoded for caption in after.captions.values())


# Models, and what people say about them


def test_a_model_replaces_what_another_wrote_and_nothing_by_people() -> None:
    stored = document(said("a cat", HAND, "zh"), said("a boat", "model:old"))
    assert (
        stored.put_generated_captions("m", [said("the sea", MODEL), said("猫", MODEL, "zh")]) == 1
    )
    assert (texts(stored), stored.captioner) == (["a cat", "the sea"], "m")  # Chinese is decided
    stored.add_tags([Tag("mine", "en", 1.0, HAND)])
    stored.put_generated_tags("t", [Tag("x", "en", 0.9, MODEL), Tag("x", "en", 0.1, MODEL)])
    assert [tag.confidence for tag in stored.document().tags] == [1.0, 0.9]
    stored.put_generated_tags("t", [])
    assert [tag.label for tag in stored.document().tags] == ["mine"]


def test_a_generated_caption_that_stays_keeps_its_vector_and_gets_the_new_probability() -> None:
    stored = document()
    stored.put_generated_captions("m", [Caption("a cat", "en", MODEL, 0.5)])
    next(iter(stored.captions.values())).encoded = True
    stored.put_generated_captions("m", [Caption("a cat", "en", MODEL, 0.75)])
    [caption] = stored.captions.values()
    assert (caption.caption.confidence, caption.encoded) == (0.75, True)


@pytest.mark.parametrize("text", ["a cat", "a tomcat"])
def test_an_accepted_caption_is_a_persons_and_a_corrected_one_was_wrong(text: str) -> None:
    stored = document(said("a cat", MODEL))
    assert stored.accept(said("a cat", MODEL), text, "en")
    assert [(one.text, one.source) for one in stored.document().captions] == [(text, HAND)]
    assert stored.rejected == ({"a cat"} if text != "a cat" else set())
    assert not stored.accept(said("a cat", MODEL), text, "en")  # it is not there any more


def test_a_rejected_caption_does_not_come_back_whichever_model_writes_it() -> None:
    stored = document(said("a cat", MODEL))
    assert stored.reject(said("a cat", MODEL)) and not stored.reject(said("a cat", MODEL))
    assert stored.put_generated_captions("n", [said("a cat", "model:n")]) == 0


def test_models_that_are_forgotten_describe_again_what_they_wrote() -> None:
    stored = document(said("a cat", MODEL))
    stored.tagger, stored.captioner = "t", "m"
    stored.forget_models()
    assert (stored.tagger, stored.captioner, texts(stored)) == ("", "", ["a cat"])


def test_reviews_of_another_copy_are_taken_over() -> None:
    mine = document(said("a cat", MODEL), said("a dog", MODEL), said("猫", MODEL, "zh"))
    theirs = document(said("a tomcat", HAND))
    theirs.rejected = frozenset({"猫"})
    mine.take_reviews(theirs)
    assert texts(mine) == ["a tomcat"]


# Whatever happens, in whatever order


def caption_by(*sources: str) -> st.SearchStrategy[Caption]:
    return st.builds(
        Caption, st.sampled_from(TEXTS), st.sampled_from(LANGUAGES), st.sampled_from(sources)
    )


def written_by(*sources: str) -> st.SearchStrategy[list[Caption]]:
    return st.lists(caption_by(*sources), max_size=3)


paths = st.sampled_from(PATHS)
metadata = st.builds(Metadata, written_by(*METADATA_SOURCES).map(tuple))
generated = written_by(MODEL)
# (name of a method, its arguments)
changes = st.one_of(
    st.tuples(
        st.just("arrive"),
        st.tuples(st.builds(ImageFile, paths, st.integers(1, 3), st.just(9)), written_by(SIDECAR)),
    ),
    st.tuples(st.just("leave"), st.tuples(paths)),
    st.tuples(
        st.just("put_named"), st.tuples(st.sampled_from(["c.csv"]), written_by(*CAPTIONS_FILES))
    ),
    st.tuples(
        st.just("put_image"),
        st.tuples(st.builds(encoded, metadata)),
    ),
    st.tuples(st.just("put_generated_captions"), st.tuples(st.sampled_from("mn"), generated)),
    st.tuples(
        st.just("put_generated_tags"),
        st.tuples(
            st.sampled_from("tu"),
            st.lists(st.builds(Tag, st.sampled_from(TEXTS), st.just("en"), st.just(0.5),
                               st.just(MODEL), st.sampled_from(["", "cat"])), max_size=2),
        ),
    ),
    st.tuples(
        st.just("accept"),
        st.tuples(caption_by(MODEL), st.sampled_from(TEXTS),
                  st.sampled_from(LANGUAGES)),
    ),
    st.tuples(st.just("reject"), st.tuples(caption_by(MODEL))),
    st.tuples(st.just("forget_models"), st.just(())),
)  # fmt: skip


def make(stored: StoredDocument, change: tuple[str, tuple]) -> None:
    name, arguments = change
    getattr(stored, name)(*arguments)


def without_times(stored: StoredDocument) -> StoredDocument:
    plain = copy.deepcopy(stored)
    plain.past = dict.fromkeys(plain.past, "")
    plain.missing_since = "" if plain.missing_since else None
    plain.feature = plain.vector = None
    plain.record = plain.document().record
    return plain


@given(st.lists(changes, max_size=12), changes)
def test_a_change_that_is_made_twice_is_the_same_as_made_once(before, change) -> None:
    once = document()
    for earlier in before:
        make(once, earlier)
    make(once, change)
    twice = copy.deepcopy(once)
    if change[0] not in ("accept", "reject"):  # these say that there is no such caption any more
        make(twice, change)
    assert without_times(twice) == without_times(once)


@given(st.lists(changes, max_size=20))
def test_what_people_wrote_by_hand_or_in_a_table_is_lost_by_no_run_and_no_model(before) -> None:
    stored = document(said("mine", HAND, "ja"))
    for change in before:
        make(stored, change)
        assert said("mine", HAND, "ja") in stored.document().captions


@given(st.lists(changes, max_size=20))
def test_what_holds_of_every_document(before) -> None:
    stored = document()
    for change in before:
        make(stored, change)
        assert (stored.missing_since is None) == bool(stored.files)
        assert not set(stored.files) & set(stored.past)
        assert not any(
            caption.caption.generated and caption.caption.text in stored.rejected
            for caption in stored.captions.values()
        )
        assert all(key == caption.key for key, caption in stored.captions.items())
        if stored.files:
            origins = {one.origin for one in stored.captions.values()
                       if one.caption.source == SIDECAR}  # fmt: skip
            assert origins <= set(stored.files)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(runs=st.lists(st.lists(changes, min_size=1, max_size=4), max_size=6))
def test_the_rows_of_a_catalog_say_what_the_document_says(fake_model, runs) -> None:
    with (
        TemporaryDirectory() as folder,
        Collection.create(Path(folder), fake_model) as collection,
    ):
        expected = document()
        edit(collection, RECORD.id, lambda _: copy.deepcopy(expected))
        for run in runs:

            def steps(stored: StoredDocument, run=run) -> None:
                for change in run:
                    make(stored, change)
                stored.feature = stored.vector = None  # nine numbers wide there

            edit(collection, RECORD.id, steps)
            steps(expected)
            documents = CatalogDocuments(CatalogWriter(collection.catalog))
            [stored] = documents.read([RECORD.id]).values()
            assert without_times(stored) == without_times(expected)
