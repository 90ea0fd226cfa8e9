"""Pictures to tensors, in every form in which pictures come. The helpers serve the other data tests too."""

import io
import struct
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image

from rti.data import BrokenExample, prepare_image
from rti.data.source import check_caption, decode_picture
from rti.errors import InputError


def encode_picture(picture: Image.Image, form: str = "png", **options) -> bytes:
    file = io.BytesIO()
    picture.save(file, form, **options)
    return file.getvalue()


def plain(colour=(255, 0, 0), size=(40, 30), form: str = "png", mode: str = "RGB", **options) -> bytes:
    """A picture of one colour; size is (width, height)."""
    return encode_picture(Image.new(mode, size, colour), form, **options)


def noise(seed: int, width: int = 40, height: int = 30) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def write_tar(path, members: list[tuple[str, bytes]]):
    """A plain tar with these members in this order."""
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def colour_of(image: torch.Tensor) -> list[int]:
    """Mean colour of a (3, H, W) image, 0..255."""
    return ((image.mean(dim=(1, 2)) + 1) * 127.5).round().int().tolist()


FORMS = {
    "rgb": (plain((255, 0, 0)), [255, 0, 0]),
    "grey": (plain(128, mode="L"), [128, 128, 128]),
    "one bit": (plain(1, mode="1"), [255, 255, 255]),
    "sixteen bits": (encode_picture(Image.fromarray(np.full((9, 9), 128 * 257, np.uint16))), [128, 128, 128]),
    "transparent on white": (plain((0, 0, 255, 0), mode="RGBA"), [255, 255, 255]),
    "opaque RGBA": (plain((0, 0, 255, 255), mode="RGBA"), [0, 0, 255]),
    "grey with alpha": (plain((0, 0), mode="LA"), [255, 255, 255]),
    "palette": (encode_picture(Image.new("RGB", (20, 20), (0, 255, 0)).convert("P")), [0, 255, 0]),
    "cmyk": (plain((0, 0, 0, 255), form="jpeg", mode="CMYK"), [0, 0, 0]),
    "webp": (plain((0, 0, 0), form="webp", lossless=True), [0, 0, 0]),
    "one pixel": (plain((0, 255, 0), size=(1, 1)), [0, 255, 0]),
    "thin and tall": (plain((0, 255, 0), size=(1, 500)), [0, 255, 0]),
    "flat and wide": (plain((0, 255, 0), size=(500, 1)), [0, 255, 0]),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_picture_becomes_rgb(form):
    data, colour = FORMS[form]
    image = prepare_image(decode_picture(data, form), (16, 24))
    assert image.shape == (3, 16, 24) and image.dtype == torch.float32 and image.is_contiguous()
    assert image.min() >= -1 and image.max() <= 1
    assert np.abs(np.subtract(colour_of(image), colour)).max() <= 1


def test_centre_is_cropped_and_shorter_side_scaled():
    """Stripes red, green, red: a square crop of the middle is all green."""
    pixels = np.zeros((10, 30, 3), np.uint8)
    pixels[:, :, 0] = 255
    pixels[:, 10:20] = (0, 255, 0)
    image = prepare_image(Image.fromarray(pixels), 10)
    assert colour_of(image) == [0, 255, 0]
    assert image[0].max() == -1  # no red anywhere


def test_same_size_is_exact_and_flip_mirrors():
    picture = noise(0, 16, 16)
    image = prepare_image(picture, 16)
    expected = torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 127.5 - 1
    assert torch.equal(image, expected)
    assert torch.equal(prepare_image(picture, 16, flip=True), expected.flip(2))
    assert not torch.equal(expected, expected.flip(2))


def test_palette_pictures_are_interpolated():
    """Scaling a palette picture by nearest neighbour would leave only black and white."""
    pixels = np.tile(np.array([0, 255], np.uint8), (32, 16))
    image = prepare_image(Image.fromarray(pixels).convert("P"), 8)
    assert image.abs().max() < 0.5


def test_camera_rotation_is_applied():
    picture = Image.new("RGB", (40, 20), (255, 0, 0))
    picture.paste((0, 0, 255), (0, 0, 20, 20))  # left half blue
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise: left becomes top
    image = prepare_image(decode_picture(encode_picture(picture, "jpeg", exif=exif, quality=95), "turned"), (40, 20))
    assert colour_of(image[:, :18])[2] > 240 and colour_of(image[:, 22:])[0] > 240


JPEG = encode_picture(noise(1, 64, 64), "jpeg")
BROKEN = {
    "truncated jpeg": JPEG[: len(JPEG) // 2],
    "truncated png": encode_picture(noise(1))[:500],
    "only a header": JPEG[:4],
    "empty": b"",
    "text": b"this is not a picture",
    "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n",
    "png with a damaged chunk": FORMS["rgb"][0].replace(b"IDAT", b"ID\0T"),
}


@pytest.mark.parametrize("form", BROKEN)
def test_broken_pictures_are_named(form):
    with pytest.raises(BrokenExample, match=r"^folder/x\.jpg ") as caught:
        decode_picture(BROKEN[form], "folder/x.jpg")
    assert "\n" not in str(caught.value)


def test_postscript_is_not_run(monkeypatch):
    """Pillow would hand PostScript to Ghostscript, which runs it."""
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *_: pytest.fail("Ghostscript was started"))
    with pytest.raises(BrokenExample, match=r"x\.jpg is not a readable picture"):
        decode_picture(BROKEN["postscript"], "x.jpg")


@pytest.mark.parametrize("error", [SyntaxError, struct.error, IndexError, EOFError])
def test_whatever_a_decoder_raises_is_a_broken_example(monkeypatch, error):
    def fail(file, **_):
        raise error("in the decoder")

    monkeypatch.setattr(Image, "open", fail)
    with pytest.raises(BrokenExample, match=r"^x\.jpg is not a readable picture .*in the decoder"):
        decode_picture(JPEG, "x.jpg")


@pytest.mark.parametrize("size", [0, -1, (16,), (16, 0), (8, 8, 8), 2.5, "16"])
def test_wrong_sizes(size):
    with pytest.raises(InputError, match="size must be a positive number"):
        prepare_image(noise(0), size)


def test_captions():
    assert check_caption("  ein schöner Hund 🐕\n", "x") == "ein schöner Hund 🐕"
    assert check_caption("\ufeffça".encode(), "x") == "ça"
    for missing in (None, "", " \n", 3, ["a"]):
        with pytest.raises(BrokenExample, match="x has no caption"):
            check_caption(missing, "x")
    with pytest.raises(BrokenExample, match="x has a caption that is not UTF-8 text"):
        check_caption("half a pair: \ud83d", "x")
    with pytest.raises(BrokenExample, match="UTF-8"):
        check_caption(b"\xff\xfe\x00", "x")
