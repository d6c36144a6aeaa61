"""Captions, tags and dates inside image files: EXIF, IPTC and XMP."""

from __future__ import annotations

import struct
from io import BytesIO

import pytest
from image_bytes import exif, jpeg_with_segment, saved
from PIL import ExifTags, Image

from capsearch.engine.records import Caption, Tag
from capsearch.indexer.sources.metadata import (
    Metadata,
    language_code,
    read_metadata,
    written_caption,
)

PLAIN = Image.new("RGB", (8, 8), (255, 0, 0))
XP = {"title": 0x9C9B, "comment": 0x9C9C, "keywords": 0x9C9E, "subject": 0x9C9F}


def read(data: bytes) -> Metadata:
    with Image.open(BytesIO(data)) as image:
        return read_metadata(image)


def with_description(stored: bytes) -> bytes:
    return saved(PLAIN, "JPEG", exif=exif({ExifTags.Base.ImageDescription: stored}))


def with_user_comment(stored: bytes) -> bytes:
    return saved(PLAIN, "JPEG", exif=exif(sub={ExifTags.Base.UserComment: stored}))


def with_iptc(*records: tuple[int, bytes]) -> bytes:
    fields = b"".join(b"\x1c\x02" + bytes([n]) + struct.pack(">H", len(v)) + v for n, v in records)
    block = (
        b"8BIM\x04\x04\0\0" + struct.pack(">I", len(fields)) + fields + b"\0" * (len(fields) % 2)
    )
    return jpeg_with_segment(0xED, b"Photoshop 3.0\0" + block)


def with_xmp(body: str) -> bytes:
    packet = f"""<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF
        xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"
        xmlns:dc="http://purl.org/dc/elements/1.1/">
        <rdf:Description>{body}</rdf:Description></rdf:RDF></x:xmpmeta>"""
    return jpeg_with_segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0" + packet.encode())


@pytest.mark.parametrize(
    "text", ["a cat on a sofa", "一只猫趴在沙发上", "ソファーの上の猫", "un café à Paris"]
)
def test_an_exif_description_is_a_caption(text):
    [caption] = read(with_description(text.encode())).captions
    assert (caption.text, caption.source) == (text, "exif")


@pytest.mark.parametrize(
    ("text", "encoding"), [("一只猫趴在沙发上", "gb18030"), ("ねこがいる", "shift_jis")]
)
def test_an_exif_description_in_an_old_encoding_is_read(text, encoding):
    assert read(with_description(text.encode(encoding))).captions[0].text == text


@pytest.mark.parametrize(
    "stored",
    [
        b"ASCII\0\0\0a red bus",
        b"UNICODE\0" + "a red bus".encode("utf-16-le"),
        b"UNICODE\0" + "a red bus".encode("utf-16-be"),
        b"JIS\0\0\0\0\0" + "a red bus".encode("iso2022_jp"),
        b"\0" * 8 + b"a red bus",
        b"a red bus",
    ],
)
def test_a_user_comment_is_read_in_every_character_set(stored):
    [caption] = read(with_user_comment(stored)).captions
    assert caption.text == "a red bus"


def test_a_japanese_user_comment_is_read():
    stored = b"JIS\0\0\0\0\0" + "赤いバス".encode("iso2022_jp")
    [caption] = read(with_user_comment(stored)).captions
    assert (caption.text, caption.language) == ("赤いバス", "ja")


def test_the_exif_fields_of_windows_are_captions_and_tags():
    fields = {
        XP["title"]: "公园里的狗\0".encode("utf-16-le"),
        XP["comment"]: "a comment on it\0".encode("utf-16-le"),
        XP["subject"]: "犬がいる\0".encode("utf-16-le"),
        XP["keywords"]: "dog;公园\0".encode("utf-16-le"),
    }
    metadata = read(saved(PLAIN, "JPEG", exif=exif(fields)))
    assert [(c.text, c.language) for c in metadata.captions] == [
        ("公园里的狗", "zh"),
        ("a comment on it", "en"),
        ("犬がいる", "ja"),
    ]
    assert metadata.tags == (
        Tag("dog", "en", 1.0, "exif", "dog"),
        Tag("公园", "zh", 1.0, "exif", "park"),
    )


def test_iptc_abstracts_are_captions_and_keywords_are_tags():
    metadata = read(with_iptc((120, "湖边的白色房子".encode()), (25, b"lake"), (25, b"house")))
    assert metadata.captions == (Caption("湖边的白色房子", "zh", "iptc"),)
    assert metadata.tags == (
        Tag("lake", "en", 1.0, "iptc", "lake"),
        Tag("house", "en", 1.0, "iptc", "house"),
    )


def test_xmp_descriptions_come_in_several_languages():
    metadata = read(
        with_xmp(
            '<dc:description><rdf:Alt><rdf:li xml:lang="x-default">a white house</rdf:li>'
            '<rdf:li xml:lang="ja-JP">白い家</rdf:li><rdf:li xml:lang="zh_TW">白色的房子</rdf:li>'
            '<rdf:li xml:lang="fr">une maison</rdf:li></rdf:Alt></dc:description>'
            "<dc:subject><rdf:Bag><rdf:li>house</rdf:li><rdf:li>家</rdf:li></rdf:Bag></dc:subject>"
        )
    )
    assert metadata.captions == (
        Caption("a white house", "en", "xmp"),
        Caption("白い家", "ja", "xmp"),
        Caption("白色的房子", "zh", "xmp"),
        Caption("une maison", "fr", "xmp"),
    )
    assert [tag.label for tag in metadata.tags] == ["house", "家"]


def test_the_same_sentence_in_two_places_is_one_caption():
    text = (
        '<dc:description><rdf:Alt><rdf:li xml:lang="en">a dog</rdf:li></rdf:Alt></dc:description>'
    )
    with_both = with_xmp(text * 2)
    assert read(with_both).captions == (Caption("a dog", "en", "xmp"),)


@pytest.mark.parametrize("packet", ["<broken", "<dc:description>&bomb;</dc:description>"])
def test_broken_xmp_is_ignored(packet):
    assert read(with_xmp(packet)) == Metadata()


def test_entities_in_xmp_are_not_expanded():
    packet = b'<!DOCTYPE x [<!ENTITY a "aaaa">]><x>&a;</x>'
    assert read(jpeg_with_segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0" + packet)) == Metadata()


@pytest.mark.parametrize(
    "text",
    [
        "OLYMPUS DIGITAL CAMERA", "SONY DSC", "DCIM", "DSC_0042", "IMG_1234", "dav", "ASCII",
        "KONICA MINOLTA DIGITAL CAMERA", "Exif_JPEG_IMAGE", "Samsung", "untitled", "default",
        "Processed with VSCO with a5 preset", "Created with GIMP", "charset=Ascii", "", "  ", "7",
        "12345", "{\"prompt\": 1}", "<x:xmpmeta/>", "words " * 1000,
    ],
)  # fmt: skip
def test_texts_that_cameras_and_programs_write_are_no_captions(text):
    assert written_caption(text, "exif") is None


@pytest.mark.parametrize("text", ["a digital camera on a table", "image of a cat", "Default Café"])
def test_sentences_that_contain_such_texts_are_captions(text):
    assert written_caption(text, "exif") == Caption(text, "en", "exif")


def test_captions_are_normalised():
    assert written_caption("ｆｕｌｌ　width\r\n\0 text", "exif") == Caption(
        "full width text", "en", "exif"
    )


@pytest.mark.parametrize(
    ("given", "code"),
    [("zh-Hans-CN", "zh"), ("zh_TW", "zh"), ("JA", "ja"), ("x-default", None), (None, None)],
)
def test_language_codes_lose_region_and_script(given, code):
    assert language_code(given) == code


@pytest.mark.parametrize("stored", ["0000:00:00 00:00:00", "yesterday", "2024:13:45 00:00:00"])
def test_an_invalid_date_is_ignored(stored):
    data = saved(PLAIN, "JPEG", exif=exif(sub={ExifTags.Base.DateTimeOriginal: stored}))
    with Image.open(BytesIO(data)) as image:
        assert read_metadata(image).taken_at is None


def test_an_image_without_metadata_has_no_captions_or_tags():
    assert read(saved(PLAIN, "PNG")) == Metadata()


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_broken_exif_is_ignored():
    assert read(jpeg_with_segment(0xE1, b"Exif\0\0MM\0*\xff\xff\xff\xff")) == Metadata()
