"""Captions of some sources only, as `train --caption-source` takes them."""

from capsearch.encoders.data.dataset import CaptionDataset, CaptionedImage
from capsearch.engine.records import Caption


def test_captions_of_some_sources_and_the_images_that_have_one():
    def image(name: str, **captions: tuple[Caption, ...]) -> CaptionedImage:
        return CaptionedImage(name, "train", f"{name}.jpg", captions)

    people, tool = Caption("狗", "zh", "coco-cn"), Caption("一只狗", "zh", "coco-cn-ext")
    english = Caption("a dog", "en", "coco")
    data = CaptionDataset((image("a", zh=(people, tool), en=(english,)), image("b", zh=(tool,))))
    assert data.from_sources() is data
    assert data.from_sources("coco-cn").images == (image("a", zh=(people,)),)
    assert data.from_sources("coco", "coco-cn-ext").images == (
        image("a", zh=(tool,), en=(english,)),
        image("b", zh=(tool,)),
    )
    assert data.from_sources("yj").images == ()
