"""The one reader of COCO captions json, strict or lenient about file names."""

import pytest

from capsearch.encoders.data.layouts import CocoCaption, InvalidCoco, coco_captions

IMAGES = [{"id": 1, "file_name": "a.jpg"}]


def captions(images, annotations, require_file_names=True):
    document = {"images": images, "annotations": annotations}
    return list(coco_captions(document, require_file_names))


def test_an_annotation_comes_with_its_file_name_and_the_language_it_states():
    annotations = [
        {"image_id": 1, "caption": "a cat"},
        {"image_id": 1, "caption": "子猫", "language": "ja"},
        {"image_id": 1, "caption": "un chat", "lang": "fr"},
    ]
    assert captions(IMAGES, annotations) == [
        CocoCaption(1, "a.jpg", "a cat", None),
        CocoCaption(1, "a.jpg", "子猫", "ja"),
        CocoCaption(1, "a.jpg", "un chat", "fr"),
    ]


@pytest.mark.parametrize("images", [[], [{"id": 1}]])
def test_file_names_may_be_missing_where_they_are_not_required(images):
    (caption,) = captions(images, [{"image_id": 1, "caption": "a cat"}], require_file_names=False)
    assert caption.file_name == ""


def test_the_list_of_images_may_be_missing_where_file_names_are_not_required():
    document = {"annotations": [{"image_id": 1, "caption": "a cat"}]}
    assert len(list(coco_captions(document, require_file_names=False))) == 1
    with pytest.raises(InvalidCoco, match="has a list 'images', this has none"):
        list(coco_captions(document, require_file_names=True))


@pytest.mark.parametrize(
    ("images", "annotations", "message"),
    [
        (IMAGES, None, "has a list 'annotations', this has none"),
        (IMAGES, [{"image_id": 1}], r"annotations\[0\] has no 'caption'"),
        (["a.jpg"], [], r"images\[0\] has no 'id'"),
        ([{"id": 1}], [], r"images\[0\] has no 'file_name'"),
        (IMAGES, [{"image_id": 2, "caption": "x"}], "image 2, which is not among its images"),
    ],
)
def test_the_wrong_entry_is_named(images, annotations, message):
    with pytest.raises(InvalidCoco, match=message):
        captions(images, annotations)
