"""Image files to pixels: formats, orientation, colour modes, and the reasons for an error."""

from __future__ import annotations

from datetime import datetime
from io import BytesIO

import numpy as np
import pytest
from image_bytes import exif, png_header, saved
from PIL import ExifTags, Image

from capsearch.encoders.images import preprocess
from capsearch.encoders.images.open import MAX_PIXELS, opened
from capsearch.engine.errors import InvalidImage
from capsearch.engine.fakes import colour_image
from capsearch.indexer.sources.metadata import read_metadata

RED, BLUE, WHITE = (255, 0, 0), (0, 0, 255), (255, 255, 255)


def decode(source, size: int, **limits):
    return preprocess.decode(source, lambda image: preprocess.squash(image, size), **limits)


def corner(pixels, row: int = 0, column: int = 0) -> tuple[int, ...]:
    return tuple(int(value) for value in pixels[row, column])


def test_an_image_is_squashed_whole_to_a_square():
    image = Image.fromarray(colour_image("red", "blue", size=64)).resize((200, 50))
    decoded = decode(saved(image), 8)
    assert decoded.pixels.shape == (8, 8, 3) and decoded.pixels.dtype == np.uint8
    assert corner(decoded.pixels) == RED and corner(decoded.pixels, 7, 7) == BLUE
    assert (decoded.width, decoded.height, decoded.format) == (200, 50, "PNG")


def test_a_path_decodes_like_its_bytes(tmp_path):
    path = tmp_path / "p.png"
    path.write_bytes(saved(Image.new("RGB", (20, 10), RED)))
    assert (decode(path, 4).pixels == decode(path.read_bytes(), 4).pixels).all()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "AVIF", "GIF", "BMP", "TIFF"])
def test_every_format_decodes_to_about_the_same_pixels(kind):
    decoded = decode(saved(Image.new("RGB", (32, 32), RED), kind), 8)
    assert np.abs(decoded.pixels.astype(int) - RED).max() <= 6
    assert decoded.format == kind


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_exif_orientation_is_turned_upright(orientation):
    # A camera held that way stores the image turned: apply the inverse turn to an upright one.
    upright = Image.new("RGB", (64, 32), WHITE)
    upright.paste(RED, (0, 0, 32, 16))  # top left
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM, 5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90, 7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }  # fmt: skip
    stored = upright.transpose(undo[orientation]) if orientation in undo else upright
    exif = Image.Exif()
    exif[0x0112] = orientation
    decoded = decode(saved(stored, "PNG", exif=exif), 4)
    assert (decoded.width, decoded.height) == (64, 32)
    assert corner(decoded.pixels, 0, 0) == RED
    assert {corner(decoded.pixels, *at) for at in ((0, 3), (3, 0), (3, 3))} == {WHITE}


def test_an_invalid_orientation_is_ignored():
    exif = Image.Exif()
    exif[0x0112] = 99
    assert decode(saved(Image.new("RGB", (6, 4)), exif=exif), 4).width == 6


def test_of_an_animation_the_first_frame_is_decoded():
    frames = [Image.new("RGB", (16, 16), colour) for colour in (RED, BLUE)]
    data = saved(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert corner(decode(data, 4).pixels) == RED


def test_cmyk_becomes_rgb():
    data = saved(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG", quality=95)
    red, green, blue = corner(decode(data, 4).pixels)
    assert red > 200 and green < 60 and blue < 60


def test_sixteen_bits_are_scaled_and_not_clipped():
    ramp = np.linspace(0, 65535, 256).astype(np.uint16)
    data = saved(Image.fromarray(np.tile(ramp, (256, 1))), "PNG")
    row = decode(data, 256).pixels[0, :, 0].astype(int)
    assert np.abs(row - np.linspace(0, 255, 256)).max() <= 1


def test_a_dark_sixteen_bit_image_stays_dark():
    data = saved(Image.fromarray(np.full((8, 8), 6553, np.uint16)), "PNG")
    assert corner(decode(data, 4).pixels)[0] == round(6553 / 65535 * 255)


def test_float_pixels_use_their_own_range():
    values = np.array([[-1.0, 3.0]], np.float32).repeat(2, axis=0)
    pixels = decode(saved(Image.fromarray(values), "TIFF"), 2).pixels
    assert (corner(pixels, 0, 0)[0], corner(pixels, 0, 1)[0]) == (0, 255)


def test_transparent_pixels_become_white():
    assert corner(decode(saved(Image.new("RGBA", (8, 8), (255, 0, 0, 0))), 4).pixels) == WHITE


def test_a_transparent_palette_colour_becomes_white():
    image = Image.new("P", (8, 8), 0)
    image.putpalette([*RED, *BLUE])
    image.paste(1, (0, 0, 8, 4))
    pixels = decode(saved(image, "PNG", transparency=0), 8).pixels
    assert corner(pixels, 0, 0) == BLUE and corner(pixels, 7, 0) == WHITE


def test_grey_and_black_and_white_become_rgb():
    assert corner(decode(saved(Image.new("L", (8, 8), 77)), 4).pixels) == (77, 77, 77)
    assert corner(decode(saved(Image.new("1", (8, 8), 1)), 4).pixels) == WHITE


def test_drafting_a_large_jpeg_hardly_changes_the_pixels():
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 255, (24, 32, 3), np.uint8))
    image = coarse.resize((1600, 1200), Image.Resampling.BICUBIC)
    data = saved(image, "JPEG", quality=95)
    whole = Image.open(BytesIO(data)).convert("RGB").resize((96, 96), Image.Resampling.BILINEAR)
    assert np.abs(decode(data, 96).pixels.astype(int) - np.asarray(whole)).mean() < 2


def test_the_capture_time_is_read():
    taken = exif(sub={ExifTags.Base.DateTimeOriginal: "2024:02:29 12:30:45"})
    data = saved(Image.new("RGB", (8, 8)), "JPEG", exif=taken)
    with opened(data) as image:
        assert read_metadata(image).taken_at == datetime(2024, 2, 29, 12, 30, 45)
    with opened(saved(Image.new("RGB", (8, 8)), "JPEG")) as image:
        assert read_metadata(image).taken_at is None


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP"])
def test_a_truncated_file_is_refused(kind):
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    data = saved(Image.fromarray(noise), kind)
    with pytest.raises(InvalidImage):
        decode(data[: len(data) * 2 // 3], 8)


@pytest.mark.parametrize("data", [b"", b"hello, I am no image", b"\xff\xd8\xff"])
def test_bytes_that_are_not_an_image_are_refused(data):
    with pytest.raises(InvalidImage):
        decode(data, 8)


def test_a_decompression_bomb_is_refused_by_its_header():
    with pytest.raises(InvalidImage, match="too large to open safely"):
        decode(png_header(50_000, 50_000), 8)


def test_a_lower_limit_can_be_set():
    with pytest.raises(InvalidImage, match=r"100 x 100 is more than 0\.005 megapixels"):
        decode(saved(Image.new("RGB", (100, 100))), 8, max_pixels=5000)
    assert MAX_PIXELS > 100e6  # large panoramas pass


def test_pillows_own_limit_is_not_changed():
    before = Image.MAX_IMAGE_PIXELS
    with pytest.raises(InvalidImage):
        decode(png_header(50_000, 50_000), 8)
    assert before == Image.MAX_IMAGE_PIXELS


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InvalidImage, match="No such file"):
        decode(tmp_path / "nowhere.jpg", 8)


def test_a_crop_is_the_square_in_the_middle_of_either_format():
    wide = Image.new("RGB", (300, 100), BLUE)
    wide.paste(RED, (100, 0, 200, 100))
    for image in (wide, wide.transpose(Image.Transpose.ROTATE_90)):
        pixels = preprocess.crop(image, 8, "bicubic")
        assert pixels.shape == (8, 8, 3)
        assert (pixels[2:6, 2:6] == RED).all()  # the edges blend with what is beside them


def test_a_narrow_panorama_is_cropped_without_growing():
    assert preprocess.crop(Image.new("RGB", (50_000, 2), RED), 224).shape == (224, 224, 3)


def test_padding_keeps_the_proportions_in_the_middle_of_black():
    pixels = preprocess.pad(Image.new("RGB", (400, 200), RED), 8)
    assert corner(pixels, 1) == (0, 0, 0) == corner(pixels, 6)
    assert corner(pixels, 2) == RED == corner(pixels, 5, 7)
    assert preprocess.pad(Image.new("RGB", (4000, 1), RED), 8).shape == (8, 8, 3)


def test_crops_and_padding_are_turned_upright():
    tall = Image.new("RGB", (100, 200), RED)
    tall.paste(BLUE, (0, 0, 50, 200))  # left half
    content = saved(tall, "JPEG", exif=exif({ExifTags.Base.Orientation: 3}))
    for resize in (preprocess.crop, preprocess.pad):
        pixels = preprocess.decode(content, lambda image, r=resize: r(image, 8)).pixels
        assert np.abs(pixels[4, 5].astype(int) - BLUE).max() < 60
