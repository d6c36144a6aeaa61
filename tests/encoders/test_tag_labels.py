"""Tags from annotations: vocabularies, and which labels are known."""

import numpy as np
import pytest

from capsearch.encoders.data.layouts import CaptionedImage
from capsearch.encoders.data.tag_labels import annotate, build_vocabulary, labels_of
from capsearch.engine.errors import TrainingProblem
from capsearch.engine.records import Caption


def image(number, captions=(), **more):
    by_language = {}
    for language, text in captions:
        by_language.setdefault(language, []).append(Caption(text, language, more.pop("by", "coco")))
    found = {language: tuple(texts) for language, texts in by_language.items()}
    return CaptionedImage(str(number), "train", f"{number}.jpg", found, **more)


IMAGES = (
    image(0, [("en", "a cat sleeps"), ("zh", "一只猫在睡觉")]),
    image(1, [("en", "an animal and a dog")]),
    image(2, [("zh", "一只狗")], objects=("dog",)),
    image(3, objects=("cat",)),
    image(4, concepts=("sparrow",), labelled_set="birds"),
    image(5, concepts=("eagle",), labelled_set="birds"),
    image(6, [("zh", "一只鸟")]),
)


@pytest.fixture(scope="module")
def annotated():
    annotations = annotate(IMAGES, ("en", "zh"))
    return annotations, build_vocabulary(annotations, ("en", "zh"), min_count=1)


def column(vocabulary, language, concept):
    tags = [vocabulary.tags[at].concept for at in vocabulary.columns[language]]
    return tags.index(concept)


def state(annotated, number, concept, language="en", **options):
    """1, 0, or None for unknown."""
    annotations, vocabulary = annotated
    values, known = labels_of(annotations, vocabulary, **options)[language].dense(
        np.array([number])
    )
    at = column(vocabulary, language, concept)
    return int(values[0, at]) if known[0, at] else None


def test_a_concept_is_one_tag_in_all_languages(annotated):
    _, vocabulary = annotated
    cats = [at for at, tag in enumerate(vocabulary.tags) if tag.concept == "cat"]
    assert len(cats) == 1
    assert all(cats[0] in columns for columns in vocabulary.columns.values())


def test_what_a_caption_does_not_name_is_absent(annotated):
    assert state(annotated, 0, "cat") == 1
    assert state(annotated, 0, "dog") == 0
    assert state(annotated, 0, "sparrow") == 0  # nobody would leave it unsaid


def test_a_broader_concept_is_unknown_unless_it_is_named(annotated):
    assert state(annotated, 0, "animal") is None
    assert state(annotated, 1, "animal") == 1


def test_a_language_without_captions_is_unknown_except_for_objects(annotated):
    assert state(annotated, 2, "dog", "en") == 1
    assert state(annotated, 2, "cat", "en") == 0  # an object that this image has not
    assert state(annotated, 2, "animal", "en") is None
    assert state(annotated, 3, "cat", "zh") == 1


def test_an_image_without_objects_was_not_searched_for_them(annotated):
    assert state(annotated, 6, "cat", "zh") == 0
    assert state(annotated, 6, "cat", "en") is None


def test_a_labelled_photograph_is_annotated_with_the_labels_of_its_set(annotated):
    assert state(annotated, 4, "sparrow") == 1
    assert state(annotated, 4, "eagle") == 0
    assert state(annotated, 4, "cat") is None


def test_objects_do_not_count_in_the_papers_protocol(annotated):
    assert state(annotated, 3, "cat", objects=False) is None
    assert not labels_of(*annotated, objects=False)["en"].captioned[3]
    assert state(annotated, 2, "dog", "en", objects=False) is None  # no captions in English
    assert state(annotated, 0, "animal", broader_unknown=False) == 0


def test_rare_words_are_no_tags():
    twice = [image(7, [("en", "a dog and a quux")]), image(8, [("en", "a dog")])]
    vocabulary = build_vocabulary(annotate(twice, ("en",)), ("en",), min_count=2)
    assert [tag.concept for tag in vocabulary.tags] == ["dog"]


def test_a_language_without_tags_is_named():
    with pytest.raises(TrainingProblem, match="no ja word is said of 1 images"):
        build_vocabulary(annotate(IMAGES, ("ja",)), ("ja",), min_count=1)


def test_translations_of_test_captions_are_not_read():
    translated = image(9, [("zh", "一只猫")], by="coco-cn-translated")
    assert dict(annotate([translated], ("zh",)).mentions[0].said) == {}


def test_human_tags_are_names_as_a_whole():
    tagged = image(9, tags_zh=("猫", "不存在的东西"))
    said = annotate([tagged], ("zh",)).mentions[0].said["zh"]
    assert said == {"cat", "zh:不存在的东西"}
