"""XMP inside images and in sidecars of Lightroom, darktable and digiKam; IPTC and EXIF fields."""

from __future__ import annotations

from datetime import datetime
from io import BytesIO
from pathlib import Path

import pytest
from image_bytes import exif, jpeg_with_segment, saved
from index_contents import captions
from PIL import ExifTags, Image
from test_metadata import with_iptc

from capsearch.engine.errors import InvalidCaptions
from capsearch.engine.records import Caption, Filters
from capsearch.indexer.pipeline import index
from capsearch.indexer.sources.captions import read_sidecar
from capsearch.indexer.sources.metadata import Metadata, read_metadata, read_xmp_sidecar

LIGHTROOM = """<?xpacket begin="" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/">
 <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <rdf:Description rdf:about=""
    xmlns:xmp="http://ns.adobe.com/xap/1.0/" xmlns:exif="http://ns.adobe.com/exif/1.0/"
    xmlns:photoshop="http://ns.adobe.com/photoshop/1.0/"
    xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:lr="http://ns.adobe.com/lightroom/1.0/"
    xmp:CreateDate="2020-01-01T00:00:00" exif:DateTimeOriginal="2019-07-14T18:30:00.12+02:00"
    xmp:Rating="4" photoshop:City="Paris" photoshop:Country="France"
    photoshop:Headline="Bastille Day on the river">
   <dc:description><rdf:Alt>
     <rdf:li xml:lang="x-default">Fireworks behind the tower</rdf:li>
     <rdf:li xml:lang="zh-CN">塔后面的烟花</rdf:li>
     <rdf:li xml:lang="ja">塔の後ろの花火</rdf:li></rdf:Alt></dc:description>
   <dc:title><rdf:Alt><rdf:li xml:lang="x-default">DSC_0042</rdf:li></rdf:Alt></dc:title>
   <dc:creator><rdf:Seq><rdf:li>Jane Doe</rdf:li><rdf:li>John Smith</rdf:li></rdf:Seq></dc:creator>
   <dc:subject><rdf:Bag><rdf:li>fireworks</rdf:li><rdf:li>夜景</rdf:li></rdf:Bag></dc:subject>
   <lr:hierarchicalSubject><rdf:Bag><rdf:li>Places|France|Paris</rdf:li></rdf:Bag>
   </lr:hierarchicalSubject>
  </rdf:Description>
 </rdf:RDF>
</x:xmpmeta>
<?xpacket end="w"?>"""
DIGIKAM = """<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF
  xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><rdf:Description
  xmlns:digiKam="http://www.digikam.org/ns/1.0/" xmlns:photoshop="http://ns.adobe.com/photoshop/1.0/"
  photoshop:DateCreated="2018-03-04"><digiKam:TagsList><rdf:Seq><rdf:li>People/Anna</rdf:li></rdf:Seq>
  </digiKam:TagsList></rdf:Description></rdf:RDF></x:xmpmeta>"""
EXPECTED = Metadata(
    captions=(
        Caption("Fireworks behind the tower", "en", "xmp"),
        Caption("塔后面的烟花", "zh", "xmp"),
        Caption("塔の後ろの花火", "ja", "xmp"),
        Caption("Bastille Day on the river", "en", "xmp"),
    ),
    fields={
        "creator": "Jane Doe, John Smith",
        "city": "Paris",
        "country": "France",
        "rating": "4",
        "description": "DSC_0042",  # a title that is none
    },
    taken_at=datetime(2019, 7, 14, 18, 30),
    taken_from="xmp",
)


def read(data: bytes) -> Metadata:
    with Image.open(BytesIO(data)) as image:
        return read_metadata(image)


def without_tags(metadata: Metadata) -> Metadata:
    return Metadata(metadata.captions, (), metadata.fields, metadata.taken_at, metadata.taken_from)


def test_a_lightroom_sidecar_is_read_whole(tmp_path):
    """Issue 11, 18."""
    path = tmp_path / "a.xmp"
    path.write_text(LIGHTROOM, encoding="utf-8")
    metadata = read_xmp_sidecar(path)
    assert without_tags(metadata) == EXPECTED
    labels = ["fireworks", "夜景", "Places", "France", "Paris"]
    assert [tag.label for tag in metadata.tags] == labels


def test_the_same_packet_inside_an_image_says_the_same():
    """Issue 11, 18."""
    body = b"http://ns.adobe.com/xap/1.0/\0" + LIGHTROOM.encode()
    assert without_tags(read(jpeg_with_segment(0xE1, body))) == EXPECTED


def test_a_digikam_sidecar_has_tags_by_levels_and_a_date(tmp_path):
    """Issue 11, 18."""
    path = tmp_path / "a.xmp"
    path.write_text(DIGIKAM)
    metadata = read_xmp_sidecar(path)
    assert [tag.label for tag in metadata.tags] == ["People", "Anna"]
    assert (metadata.taken_at, metadata.taken_from) == (datetime(2018, 3, 4), "xmp")


@pytest.mark.parametrize("name", ["blue.xmp", "blue.png.xmp", "blue.png.XMP"])
def test_sidecars_beside_an_image_give_captions_tags_and_its_date(collection, image_folder, name):
    """Issue 11, 18: NAME.xmp of Lightroom, NAME.EXT.xmp of darktable and digiKam."""
    (image_folder / name).write_text(LIGHTROOM, encoding="utf-8")
    index(collection, [image_folder])
    assert captions(collection)[0] == ("Bastille Day on the river", "en", "sidecar")
    [(blue,)] = collection.catalog.select(Filters(tags=("Paris", "夜景")))
    record = collection.catalog.images([blue])[blue]
    assert (Path(record.path).name, record.taken_at) == ("blue.png", EXPECTED.taken_at)


def test_keywords_of_a_sidecar_that_comes_later_are_found(collection, image_folder):
    index(collection, [image_folder])
    (image_folder / "blue.xmp").write_text(LIGHTROOM, encoding="utf-8")
    assert index(collection, [image_folder]).captions_added == 4
    [(blue,)] = collection.catalog.select(Filters(tags=("Paris", "夜景")))
    assert Path(collection.catalog.images([blue])[blue].path).name == "blue.png"


@pytest.mark.parametrize("content", ["<broken", "", '<!DOCTYPE x [<!ENTITY a "b">]><x>&a;</x>'])
def test_a_broken_sidecar_is_named(tmp_path, content):
    path = tmp_path / "a.xmp"
    path.write_text(content)
    for reader in (read_xmp_sidecar, read_sidecar):
        with pytest.raises(InvalidCaptions, match=r"a\.xmp: not XMP"):
            reader(path)


def test_a_sidecar_that_cannot_be_read_or_is_too_large_is_named(tmp_path, monkeypatch):
    with pytest.raises(InvalidCaptions, match="cannot be read: No such file"):
        read_xmp_sidecar(tmp_path / "gone.xmp")
    monkeypatch.setattr("capsearch.indexer.sources.metadata.MAX_XMP_BYTES", 10)
    (tmp_path / "a.xmp").write_text(LIGHTROOM)
    with pytest.raises(InvalidCaptions, match="is not a sidecar"):
        read_xmp_sidecar(tmp_path / "a.xmp")


def test_iptc_headline_keywords_byline_place_and_date():
    """Issue 11, 18."""
    records = [
        (120, "湖边的白色房子".encode()), (105, b"A house by the lake"), (5, b"DSC_0042"),
        (25, b"lake"), (25, b"house"), (80, b"Jane Doe"), (90, "北京".encode("gb18030")),
        (101, b"China"), (55, b"20240131"), (60, b"123456+0900"),
    ]  # fmt: skip
    metadata = read(with_iptc(*records))
    assert [caption.text for caption in metadata.captions] == [
        "湖边的白色房子",
        "A house by the lake",
    ]
    assert [tag.label for tag in metadata.tags] == ["lake", "house"]
    assert metadata.fields == {
        "creator": "Jane Doe", "city": "北京", "country": "China", "description": "DSC_0042",
    }  # fmt: skip
    assert metadata.taken_at == datetime(2024, 1, 31, 12, 34, 56)
    assert metadata.taken_from == "iptc"


def test_exif_author_camera_and_software_are_fields():
    """Issue 11, 18, and 12, 4: camera strings are kept, but are no captions."""
    fields = {
        ExifTags.Base.ImageDescription: "OLYMPUS DIGITAL CAMERA",
        ExifTags.Base.Make: "OLYMPUS IMAGING CORP.",
        ExifTags.Base.Model: "E-M5",
        ExifTags.Base.Artist: "Jane Doe",
        ExifTags.Base.Software: "darktable 4.2",
    }
    metadata = read(saved(Image.new("RGB", (8, 8)), "JPEG", exif=exif(fields)))
    assert metadata.captions == ()
    assert metadata.fields == {
        "creator": "Jane Doe",
        "camera": "OLYMPUS IMAGING CORP. E-M5",
        "software": "darktable 4.2",
        "description": "OLYMPUS DIGITAL CAMERA",
    }


def test_the_date_in_exif_comes_before_xmp_and_iptc():
    """Issue 11, 18."""
    data = saved(
        Image.new("RGB", (8, 8)),
        "JPEG",
        exif=exif(sub={ExifTags.Base.DateTimeOriginal: "2017:01:02 03:04:05"}),
        xmp=LIGHTROOM.encode(),
    )
    metadata = read(data)
    assert metadata.taken_at == datetime(2017, 1, 2, 3, 4, 5)
    assert metadata.taken_from == "exif"
