"""Words found as words: what matches, what a change makes stale, and how long queries are met."""

from __future__ import annotations

from dataclasses import replace

import pytest
from backend_contract import X, calibrated, document, ids, said
from embedded_toys import (
    add_caption,
    arrive,
    change,
    collection_of,
    index_words,
    leave,
    put,
)

from capsearch.encoders.text.tokenizers import fold, keywords
from capsearch.engine.evidence import SingleSource, word_weight
from capsearch.engine.query import EncodedQuery
from capsearch.engine.records import Caption, Document, Filters, ImageRecord, Tag
from capsearch.indexer.sqlite import matches
from capsearch.indexer.sqlite.matches import WordIndex, tokens_of
from capsearch.indexer.sqlite.writer import CatalogWriter


@pytest.fixture
def collection(tmp_path):
    documents = [document("a", said("a red car")), document("b", said("a red bus"), tags=["bus"])]
    with collection_of(tmp_path / "index", documents, {"a": X, "b": X}, ()) as opened:
        yield opened


def having(collection, *phrases: str) -> list[str]:
    """The images in which these phrases occur."""
    folded = tuple(tuple(phrase.split()) for phrase in phrases)
    query = EncodedQuery(SingleSource("image"), X, phrases=folded)
    return ids(collection.backend.search(query, Filters(), 10))


def match(collection, *words: str):
    """Where words occur in what people wrote."""
    return WordIndex(collection.catalog).match(words, 2)[0]


def test_texts_of_a_document_do_not_run_into_each_other():
    record = ImageRecord("a", ("/photos/my trips/Kyoto 2019/IMG_1.jpg",), 1, 1, 1, "JPEG")
    one = Document(record, (Caption("a cat", "en", "x"),), (Tag("猫", "zh", 1.0, "x"),))
    assert tokens_of(one, fold) == "cat ¶ 猫 ¶ my trip kyoto 2019 1"
    assert tokens_of(None, fold) == ""


def test_names_without_a_suffix_and_windows_paths_count_too():
    record = ImageRecord("a", ("C:\\photos\\kyoto\\temple",), 1, 1, 1, "JPEG")
    assert tokens_of(Document(record), fold) == "photo kyoto templ"


def test_matches_add_the_weights_of_the_words(collection):
    found = match(collection, "red", "bus", "nowhere")
    red, bus, nowhere = (word_weight(2, count) for count in (2, 1, 0))
    slots = dict(collection.catalog.rows("SELECT id, slot FROM images"))
    total = red + bus + nowhere
    assert found.coverage([slots["a"], slots["b"], 999]) == pytest.approx(
        [red / total, (red + bus) / total, 0]
    )
    assert found.best().keys.tolist() == sorted(slots.values()) and found.best().outside == 0


def test_a_query_without_words_matches_nothing(collection):
    assert match(collection).coverage([0]) == 0


@pytest.mark.parametrize("word", ['"', "red*", "red OR bus", "NOT", "a:b", "(", "-red", "ςigma"])
def test_no_word_is_taken_for_syntax(collection, word):
    assert match(collection, word).weights == {}
    assert having(collection, "car", word) in ([], ["a"])


def test_letters_beyond_ascii_are_matched_as_they_were_folded(collection):
    texts = ["Ελλάς", "东京塔", "ガラス", "нью-йорк", "straße", "𠮷野家"]
    for text in texts:
        add_caption(collection, "a", said(text))
    index_words(collection)
    with CatalogWriter(collection.catalog).transaction():
        folded = tokens_of(collection.catalog.documents(["a"])["a"], fold)
        [(number, slot)] = collection.catalog.rows("SELECT number, slot FROM images WHERE id = 'a'")
        CatalogWriter(collection.catalog).put_words("words", [(number, folded)])
    for text in texts:
        assert set(match(collection, *keywords(text)).weights) == {slot}, text


def test_a_new_caption_is_found_and_a_removed_one_is_not(collection):
    tram = [said("tram")]
    change(collection, "a", lambda one: one.replace_captions(("sidecar",), "", tram))
    index_words(collection)
    assert (having(collection, "tram"), having(collection, "car")) == (["a"], [])


def test_tags_replace_each_other(collection):
    coach = Tag("coach", "en", 1.0, "iptc")
    change(collection, "b", lambda one: replace(one, tags={("coach", "en", "iptc"): coach}))
    index_words(collection)
    assert having(collection, "coach") == ["b"]
    assert having(collection, "bus") == ["b"]  # in the caption still


def test_file_names_come_and_go(collection):
    arrive(collection, "/q/zoo.jpg", "a")
    index_words(collection)
    assert having(collection, "zoo") == ["a"]
    leave(collection, "/q/zoo.jpg")
    index_words(collection)
    assert having(collection, "zoo") == []


def test_a_file_that_got_another_image_is_no_name_of_the_old_one(collection):
    arrive(collection, "/q/zoo.jpg", "a")
    index_words(collection)
    leave(collection, "/q/zoo.jpg")
    arrive(collection, "/q/zoo.jpg", "b", mtime_ns=2)
    index_words(collection)
    assert having(collection, "zoo") == ["b"]


def test_an_image_that_is_deleted_leaves_no_words_to_its_successor(collection):
    leave(collection, "/p/b.jpg")
    writer = CatalogWriter(collection.catalog)
    with writer.transaction():
        writer.prune(days=0)
    assert having(collection, "bus") == []
    assert collection.catalog.rows("SELECT count(*) FROM words") == [(1,)]
    new = document("c")

    put(collection, new)  # it gets the same number
    with writer.transaction():
        writer.set_image_slots([("c", 1)])
    index_words(collection)
    assert (having(collection, "bus"), having(collection, "c")) == ([], ["c"])


def test_nothing_is_stale_after_the_words_were_indexed(collection):
    writer = CatalogWriter(collection.catalog)
    assert writer.stale_words(10) == []
    leave(collection, "/p/b.jpg")
    assert [image_id for image_id, _ in writer.stale_words(10)] == ["b"]


def test_of_a_very_long_query_the_rarest_words_count(collection, monkeypatch):
    monkeypatch.setattr(matches, "MAX_WORDS", 1)
    slots = dict(collection.catalog.rows("SELECT id, slot FROM images"))
    assert set(match(collection, "red", "bus").weights) == {slots["b"]}


def test_a_word_finds_an_image_far_from_the_query(collection):
    query = EncodedQuery(calibrated(), -X, words=("bus",))
    assert ids(collection.backend.search(query, Filters(), 1)) == ["b"]


def test_what_was_looked_up_of_words_is_kept(collection, monkeypatch):
    index, asked = WordIndex(collection.catalog), []
    rows = collection.catalog.rows
    monkeypatch.setattr(
        collection.catalog, "rows", lambda sql, *more: asked.append(sql) or rows(sql, *more)
    )
    first = index.match(("red", "nowhere"), 2)
    assert len(asked) == 2  # how often words occur, and where rare ones do
    assert index.match(("nowhere", "red"), 2) == first and len(asked) == 2
    index.match(("red", "bus"), 2)
    assert len(asked) == 4 and "red" not in str(asked[2:])


def test_what_people_and_what_models_wrote_are_kept_apart(collection):
    people, models = WordIndex(collection.catalog).match(("red",), 2)
    assert len(people.weights) == 2 and models.weights == {}


def test_of_several_phrases_the_rarest_is_counted_up_to_a_limit(collection):
    def count(*phrases, limit=9):
        return matches.occurrences(collection.catalog, [one.split() for one in phrases], limit)

    assert count("red") == 2 and count("red", "bus") == 1 and count("red", "nowhere") == 0
    assert count("red", limit=1) == 1
