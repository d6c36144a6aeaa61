"""Which bytes reach a decoder: an allow-list, by content."""

from __future__ import annotations

import struct
from io import BytesIO

import numpy as np
import pytest
from image_bytes import exif, saved
from PIL import EpsImagePlugin, ExifTags, Image

from capsearch.encoders.images import formats
from capsearch.encoders.images.formats import BY_SUFFIX, FORMATS, HEAD_BYTES, recognised
from capsearch.encoders.images.open import flat_rgb, opened, orientation, upright_size
from capsearch.engine.errors import InvalidImage

RED = Image.new("RGB", (32, 16), (255, 0, 0))
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n"


def kind_of(data: bytes) -> str | None:
    kind = recognised(data[:HEAD_BYTES])
    return kind.name if kind else None


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"])
def test_a_format_is_recognised_by_its_first_bytes(kind):
    """Issue 11, 12."""
    data = saved(RED, kind)
    assert kind_of(data) == kind
    with opened(data) as image:
        assert image.format == kind


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "HEIF"),
        (b"\0\0\0\x18ftypmif1\0\0\0\0mif1heic", "HEIF"),
        (b"\0\0\0\x1cftypmif1\0\0\0\0mif1avifmiaf", "AVIF"),
        (b"\0\0\0\x18ftypcrx \0\0\0\x01crx isom", "RAW"),
        (b"\0\0\0\x18ftypisom\0\0\0\0isommp42", None),
        (b"\0\0\0\x10ftypisom\0\0\0\0heic", None),  # behind the end of the box
        (b"\xff\x0a", "JXL"),
        (b"II*\0\x10\0\0\0CR\x02\0", "RAW"),
        (b"", None),
    ],
)
def test_brands_and_rare_signatures(head, kind):
    """Issue 11, 12."""
    assert kind_of(head) == kind


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (EPS, "PostScript"),
        (saved(RED, "PDF"), "PDF"),
        (saved(RED, "JPEG2000"), "JPEG 2000"),
        (saved(RED, "ICNS"), "ICNS"),
        (b"\xd7\xcd\xc6\x9a" + b"\0" * 60, "WMF"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "SVG"),
        (b"\0\0\0\x18ftypisom\0\0\0\0isommp42", "video"),
    ],
)
def test_other_formats_are_refused_by_name_before_a_decoder_runs(data, name, monkeypatch):
    """Issue 11, 12: EPS got as far as looking for Ghostscript."""
    monkeypatch.setattr(Image, "open", lambda *args, **named: pytest.fail("a decoder ran"))
    with (
        pytest.raises(InvalidImage, match=rf"not an image in a format we read \({name}\)"),
        opened(data),
    ):
        pass


@pytest.mark.parametrize("kind", ["PPM", "TGA", "PCX", "ICO", "SGI", "DDS", "MSP", "XBM"])
def test_no_other_decoder_of_pillow_is_reachable(kind):
    """Issue 11, 12."""
    mode = {"MSP": "1", "XBM": "1"}.get(kind, "RGB")
    data = saved(RED.convert(mode), kind)
    Image.open(BytesIO(data))  # Pillow reads it
    with pytest.raises(InvalidImage, match="not an image in a format we read"), opened(data):
        pass


def test_an_eps_under_the_name_of_a_photo_is_refused(tmp_path, monkeypatch):
    """Issue 11, 12: the content decides, not the suffix."""
    monkeypatch.setattr(EpsImagePlugin, "has_ghostscript", lambda: pytest.fail("EPS was read"))
    path = tmp_path / "photo.jpg"
    path.write_bytes(EPS)
    with pytest.raises(InvalidImage, match="PostScript"), opened(path):
        pass


def test_a_png_under_the_name_of_a_jpeg_is_read(tmp_path):
    path = tmp_path / "photo.jpg"
    path.write_bytes(saved(RED, "PNG"))
    with opened(path) as image:
        assert image.format == "PNG"


def test_stereo_photos_are_jpeg():
    """Issue 11, 12: MPO, as phones write it, begins with an ordinary JPEG."""
    data = saved(RED, "MPO", save_all=True, append_images=[RED])
    with opened(data) as image:
        assert flat_rgb(image).size == (32, 16)


def psd(width: int = 32, height: int = 16) -> bytes:
    """A flat Photoshop file: header, no colour table, resources or layers, raw planes."""
    header = b"8BPS" + struct.pack(">H6xHIIHH", 1, 3, height, width, 8, 3)
    planes = b"\xff" * (width * height) + b"\0" * (2 * width * height)
    return header + b"\0" * 12 + b"\0\0" + planes


def test_the_composite_of_a_photoshop_file_is_read():
    """Issue 11, 17."""
    with opened(psd()) as image:
        assert np.asarray(flat_rgb(image))[0, 0].tolist() == [255, 0, 0]


def test_heif_is_read_with_its_extra():
    """Issue 11, 12."""
    pillow_heif = pytest.importorskip("pillow_heif")
    stream = BytesIO()
    pillow_heif.from_pillow(RED.resize((64, 64))).save(stream)
    with opened(stream.getvalue()) as image:
        assert (image.format, image.size) == ("HEIF", (64, 64))


def test_jpeg_xl_is_read_with_its_extra():
    """Issue 11, 17."""
    pytest.importorskip("pillow_jxl")
    data = saved(RED, "JXL")
    with opened(data) as image:
        assert flat_rgb(image).size == (32, 16)


@pytest.mark.parametrize(("name", "head"), [("JXL", b"\xff\x0a"), ("HEIF", b"\0\0\0\x18ftypheic")])
def test_a_missing_extra_is_named(name, head, monkeypatch):
    """Issue 11, 17."""
    monkeypatch.setattr(formats, "_installed", lambda package: False)
    with pytest.raises(InvalidImage, match=rf"{name} needs an extra: pip install"), opened(head):
        pass


def nef(preview: bytes, orientation: int = 6) -> bytes:
    """A TIFF like Nikon's: tags, a directory of sensor data, a lossless JPEG and a preview."""
    sub = 8 + 2 + 12 * 2 + 4
    main = struct.pack("<H", 2)
    main += struct.pack("<HHIHH", 0x0112, 3, 1, orientation, 0)
    main += struct.pack("<HHII", 0x014A, 4, 1, sub) + b"\0" * 4
    sensor = struct.pack("<H", 1) + struct.pack("<HHIHH", 0x0106, 3, 1, 32803, 0) + b"\0" * 4
    lossless = b"\xff\xd8\xff\xc3\x00\x0b\x08\x40\x00\x40\x00\x01\x01\x11\x00"
    return b"II*\0\x08\0\0\0" + main + sensor + lossless + b"\0" * 50 + preview + b"\0" * 50


THUMBNAIL = saved(Image.new("RGB", (16, 8), (0, 0, 255)), "JPEG")
PREVIEW = saved(RED, "JPEG")
RAW_FILES = {
    "nef": nef(THUMBNAIL + b"\0" * 9 + PREVIEW),
    "cr2": b"II*\0\x10\0\0\0CR\x02\0" + b"\0" * 60 + THUMBNAIL + PREVIEW,
    "raf": b"FUJIFILMCCD-RAW 0201" + b"\0" * 80 + PREVIEW + b"\0" * 99,
    "orf": b"IIRO\x08\0\0\0" + b"\0" * 99 + PREVIEW,
    "rw2": b"IIU\0\x08\0\0\0" + b"\0" * 99 + PREVIEW,
    "cr3": b"\0\0\0\x18ftypcrx \0\0\0\x01crx isom" + b"\0" * 99 + THUMBNAIL + PREVIEW,
}


@pytest.mark.parametrize("kind", RAW_FILES)
def test_of_a_raw_file_the_largest_preview_is_read(kind):
    """Issue 11, 17."""
    with opened(RAW_FILES[kind]) as image:
        assert (image.format, image.size) == ("RAW", (32, 16))
        red, green, blue = np.asarray(flat_rgb(image))[0, 0]
        assert red > 240 and green < 15 and blue < 15


def test_the_preview_is_turned_as_the_raw_file_says():
    """Issue 11, 17."""
    with opened(nef(PREVIEW, orientation=6)) as image:
        assert (orientation(image), upright_size(image)) == (6, (16, 32))


def test_a_raw_file_without_a_preview_is_refused():
    """Issue 11, 17."""
    with pytest.raises(InvalidImage, match="RAW file without a JPEG preview"), opened(nef(b"")):
        pass


def test_an_ordinary_tiff_with_a_jpeg_inside_is_no_raw_file():
    taken = exif(sub={ExifTags.Base.UserComment: b"ASCII\0\0\0" + PREVIEW})
    with opened(saved(RED, "TIFF", exif=taken)) as image:
        assert image.format == "TIFF"


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
@pytest.mark.parametrize("length", range(0, 120, 7))
def test_truncated_raw_files_are_refused_and_do_not_hang(length):
    with pytest.raises(InvalidImage), opened(nef(PREVIEW)[:length]):
        pass


def test_suffixes_belong_to_one_format():
    suffixes = [suffix for one in FORMATS.values() for suffix in one.suffixes]
    assert len(suffixes) == len(BY_SUFFIX)
    assert not formats.UNREAD_SUFFIXES & BY_SUFFIX.keys()
