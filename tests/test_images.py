"""Pictures: rounding as the release, files of every mode, regions drawn where they meet, sheets, safe writing."""

import os
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

import rti
from rti.images import (
    check_output,
    contact_sheet,
    draw_regions,
    fit,
    open_image,
    save_image,
    to_pil,
    to_tensor,
)
from rti.lab.probes.photograph import load_photograph
from tiny import refused

# Numbers.


def test_pixels_are_rounded_as_the_release_does():
    """x * 127.5 + 128, cut to a whole number and clamped to 255."""
    values = [-1.0, -0.9961, -0.5, -0.004, 0.0, 0.003, 0.5, 0.9960, 0.9961, 1.0, 7.0, -7.0]
    expected = [min(255, int(min(max(value, -1.0), 1.0) * 127.5 + 128)) for value in values]
    assert expected == [0, 0, 64, 127, 128, 128, 191, 254, 255, 255, 255, 0]
    [picture] = to_pil(torch.tensor(values).view(1, 1, 1, -1).expand(-1, 3, -1, -1))
    assert (np.asarray(picture) == np.array(expected, dtype=np.uint8)[None, :, None]).all()


def test_channels_go_last_and_pictures_keep_their_order():
    images = torch.zeros(2, 3, 4, 6) - 1
    images[1, 2] = 1
    black, blue = to_pil(images)
    assert (black.size, black.mode) == ((6, 4), "RGB")
    assert black.getpixel((0, 0)) == (0, 0, 0)
    assert blue.getpixel((5, 3)) == (0, 0, 255)


def test_half_precision_pictures_are_rounded_in_full_precision():
    values = torch.linspace(-1, 1, 511).bfloat16().view(1, 1, 1, -1).expand(-1, 3, -1, -1)
    assert to_pil(values) == to_pil(values.float())


def test_a_picture_becomes_a_tensor_and_comes_back():
    pixels = np.arange(256, dtype=np.uint8).repeat(3).reshape(16, 16, 3)
    tensor = to_tensor(Image.fromarray(pixels))
    assert (tensor.shape, tensor.dtype) == ((1, 3, 16, 16), torch.float32)
    assert (tensor.min().item(), tensor.max().item()) == (-1.0, 1.0)
    assert np.array_equal(np.array(to_pil(tensor)[0]), pixels)
    assert to_tensor(Image.new("L", (2, 3), 255)).shape == (1, 3, 3, 2)


@pytest.mark.parametrize(("size", "kept"), [((60, 20), (20, 40)), ((20, 60), (20, 40))])
def test_fitting_crops_the_middle(size, kept):
    """A strip three times as long as wide: its middle third stays."""
    picture = Image.new("RGB", size, "red")
    long = size.index(60)
    box = [0, 0, 20, 20]
    box[long], box[long + 2] = kept
    picture.paste("blue", tuple(box))
    fitted = fit(picture, 10, 10)
    assert fitted.size == (10, 10)
    assert fitted.getpixel((5, 5)) == (0, 0, 255)
    assert fit(picture, 4, 8).size == (8, 4)


# Files.


def save(picture: Image.Image, path, **options):
    picture.save(path, **options)
    return path


def test_transparency_goes_on_white(tmp_path):
    clear = Image.new("RGBA", (2, 1), (0, 0, 0, 0))
    clear.putpixel((1, 0), (10, 20, 30, 255))
    for mode, expected in (("RGBA", (10, 20, 30)), ("LA", (18, 18, 18))):
        opened = open_image(save(clear.convert(mode), tmp_path / f"{mode}.png"))
        assert opened.mode == "RGB"
        assert opened.getpixel((0, 0)) == (255, 255, 255)
        assert opened.getpixel((1, 0)) == expected
    half = open_image(save(Image.new("RGBA", (1, 1), (0, 0, 0, 128)), tmp_path / "half.png"))
    assert half.getpixel((0, 0)) == (127, 127, 127)


def test_a_palette_with_a_transparent_colour_is_opened_on_white(tmp_path):
    picture = Image.new("P", (2, 1))
    picture.putpalette([255, 0, 0, 0, 0, 255])
    picture.putpixel((1, 0), 1)
    for name in ("palette.png", "palette.gif"):
        opened = open_image(save(picture, tmp_path / name, transparency=0))
        assert [opened.getpixel((x, 0)) for x in range(2)] == [(255, 255, 255), (0, 0, 255)]
        opaque = open_image(save(picture, tmp_path / f"opaque-{name}"))
        assert [opaque.getpixel((x, 0)) for x in range(2)] == [(255, 0, 0), (0, 0, 255)]


def test_a_grey_picture_with_a_transparent_grey_is_opened_on_white(tmp_path):
    picture = Image.new("L", (2, 1), 7)
    picture.putpixel((1, 0), 90)
    opened = open_image(save(picture, tmp_path / "grey.png", transparency=7))
    assert [opened.getpixel((x, 0)) for x in range(2)] == [(255, 255, 255), (90, 90, 90)]


def test_cmyk_is_opened_in_its_colours(tmp_path):
    path = save(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), tmp_path / "cmyk.jpg", quality=100)
    red, green, blue = open_image(path).getpixel((8, 8))
    assert red > 200
    assert green < 60
    assert blue < 60


@pytest.mark.parametrize("name", ["grey16.png", "grey16.tif"])
def test_sixteen_bits_of_grey_keep_their_shades(tmp_path, name):
    """0, a quarter, half and all of 65535 are those shares of 255, and not all white above 255."""
    values = np.array([[0, 16384, 32768, 65535]], dtype=np.uint16)
    opened = open_image(save(Image.fromarray(values), tmp_path / name))
    shades = np.array(opened)[0]
    assert (shades == shades[:, :1]).all()
    assert np.abs(shades[:, 0].astype(int) - [0, 64, 128, 255]).max() <= 1


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photograph_is_turned_upright(tmp_path, orientation):
    """Red lies top left when upright, in whatever orientation the camera stored it."""
    upright = Image.new("RGB", (32, 16), "white")
    upright.paste("red", (0, 0, 8, 8))
    turns = {
        1: None,
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    stored = upright if turns[orientation] is None else upright.transpose(turns[orientation])
    exif = Image.Exif()
    exif[0x0112] = orientation
    opened = open_image(save(stored, tmp_path / "photo.png", exif=exif))
    assert opened.size == (32, 16)
    assert opened.tobytes() == upright.tobytes()


def noise_picture(size=(64, 48)) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (*size[::-1], 3), dtype=np.uint8))


FORMATS = ["photo.png", "photo.jpg", "photo.webp", "photo.gif", "photo.tif", "photo.bmp"]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("keep", [0.0, 0.01, 0.5])
def test_a_truncated_file_is_refused(tmp_path, name, keep):
    path = save(noise_picture(), tmp_path / name)
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content))])
    with refused(path, "not a readable picture"):
        open_image(path)


def assert_opens_or_is_refused(path) -> None:
    """Not every format can tell that it is damaged, but none may fail in a way of its own."""
    try:
        assert open_image(path).mode == "RGB"
    except rti.InputError as error:
        assert str(path) in str(error)
        assert "\n" not in str(error)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FORMATS)
def test_a_file_damaged_anywhere_is_opened_or_refused(tmp_path, name):
    path = save(noise_picture((16, 12)), tmp_path / name)
    content = path.read_bytes()
    for place in range(0, len(content), max(1, len(content) // 50)):
        path.write_bytes(content[:place] + b"\xff\x00\xff\x7f" + content[place + 4 :])
        assert_opens_or_is_refused(path)


@pytest.mark.parametrize("name", ["photo.png", "photo.jpg", "photo.webp"])
@pytest.mark.parametrize("exif", [b"Exif\0\0garbage", b"garbage", b"Exif\0\0II*\0\xff\xff\xff\xff"])
def test_a_picture_with_garbled_metadata_is_opened_or_refused(tmp_path, name, exif):
    assert_opens_or_is_refused(save(noise_picture(), tmp_path / name, exif=exif))


def test_what_is_no_picture_is_refused(tmp_path):
    with refused(tmp_path / "nowhere.png", "does not exist"):
        open_image(tmp_path / "nowhere.png")
    with refused(tmp_path):
        open_image(tmp_path)
    (tmp_path / "text.png").write_text("not a picture\n" * 9)
    with refused(tmp_path / "text.png"):
        open_image(tmp_path / "text.png")


def test_a_picture_too_large_to_be_honest_is_refused(tmp_path, monkeypatch):
    path = save(noise_picture(), tmp_path / "bomb.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with refused(path):
        open_image(path)


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"


def test_a_picture_starts_no_other_program(tmp_path, monkeypatch):
    """Pillow would hand PostScript to Ghostscript, which runs it, whatever the file is called."""
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *_: pytest.fail("Ghostscript was started"))
    (tmp_path / "photo.jpg").write_bytes(POSTSCRIPT)
    with refused(tmp_path / "photo.jpg", "not a readable picture"):
        open_image(tmp_path / "photo.jpg")


def png_of(width: int, height: int) -> bytes:
    """The beginning of a PNG: a header that says its size, and pixels that are not there."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + name + data + zlib.crc32(name + data).to_bytes(4, "big")

    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 2, 0, 0, 0])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(100)))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("size", "named"), [((13000, 13000), "13000 x 13000"), ((8200, 6150), "truncated")])
def test_a_picture_of_too_many_pixels_is_refused_before_it_is_decoded(tmp_path, size, named):
    """169 million are not even begun; 50 million, as a camera takes them, are."""
    (tmp_path / "large.png").write_bytes(png_of(*size))
    with refused("large.png", named):
        open_image(tmp_path / "large.png")


def test_what_is_no_regular_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    for path in (tmp_path / "pipe.png", "/dev/zero"):
        with refused(path, "no regular file"):
            open_image(path)


@pytest.mark.parametrize("name", ["a" * 300 + ".png", "~nouser-at-all/a.png", "a\0.png"])
def test_what_can_be_no_name_is_refused(name):
    for use in (open_image, check_output, lambda path: save_image(noise_picture(), path)):
        with refused("no name of a file"):
            use(name)


@pytest.mark.parametrize(("picture", "size"), [((0, 5), (4, 4)), ((4, 4), (0, 4)), ((4, 4), (10**6, 10**6))])
def test_a_size_that_cannot_be_is_refused(picture, size):
    with refused("allowed: 1 to 67,108,864"):
        fit(Image.new("RGB", picture), *size)


@pytest.mark.parametrize(("size", "patch"), [(10**6, 16), (10**30, 16), (8000, 1)])
def test_a_photograph_of_too_many_pixels_or_patches_is_refused(tmp_path, size, patch):
    noise_picture((64, 64)).save(tmp_path / "a.png")
    with refused("allowed"):
        load_photograph(tmp_path / "a.png", size, patch)


# Regions.


def marks(ids: list[list[int]], size=(512, 512)) -> tuple[np.ndarray, int]:
    """Which pixels of a grey picture were drawn on, and how wide a line is."""
    grid = (len(ids), len(ids[0]))
    grey = Image.new("RGB", size, (100, 100, 100))
    drawn = np.array(draw_regions(grey, torch.tensor(ids).flatten(), grid))
    height, width = drawn.shape[0] // grid[0], drawn.shape[1] // grid[1]
    return (drawn != 100).any(axis=2), 3 * max(1, min(height, width) // 16)


@pytest.mark.parametrize(
    "ids",
    [
        [[0, 1], [0, 1]],
        [[0, 0], [1, 1]],
        [[0, 1], [2, 1]],
        [[0, 0, 0, 0], [0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]],
        [[0, 1, 2, 3]],
    ],
)
def test_the_lines_lie_exactly_where_regions_meet(ids):
    """Every border between unlike neighbours is drawn along its whole length, and no pixel further from one than half
    a line (and a pixel, for rounding)."""
    drawn, thickness = marks(ids)
    rows, columns = len(ids), len(ids[0])
    height, width = drawn.shape[0] // rows, drawn.shape[1] // columns
    near = np.zeros_like(drawn)
    reach = thickness // 2 + 1
    for row in range(rows):
        for column in range(columns):
            top, left = row * height, column * width
            if column + 1 < columns and ids[row][column] != ids[row][column + 1]:
                x = left + width
                assert drawn[top : top + height, x - 1 : x + 1].all()
                near[max(0, top - reach) : top + height + reach, x - reach : x + reach] = True
            if row + 1 < rows and ids[row][column] != ids[row + 1][column]:
                y = top + height
                assert drawn[y - 1 : y + 1, left : left + width].all()
                near[y - reach : y + reach, max(0, left - reach) : left + width + reach] = True
    assert not (drawn & ~near).any()


def test_one_straight_border_takes_its_length_times_its_width():
    drawn, thickness = marks([[0, 1], [0, 1]])
    assert drawn.sum() == 512 * thickness
    assert (drawn.sum(axis=1) == thickness).all()


def test_one_region_has_no_border():
    assert marks([[0, 0], [0, 0]])[0].sum() == 0


def test_small_pictures_are_enlarged_and_the_picture_stays_underneath():
    picture = noise_picture((16, 8))
    result = draw_regions(picture, torch.zeros(8, dtype=torch.int64), (2, 4))
    assert result.size == (512, 256)
    assert result.resize((16, 8), Image.Resampling.NEAREST).tobytes() == picture.tobytes()
    untouched = picture.copy()
    draw_regions(picture, torch.arange(8), (2, 4))
    assert picture.tobytes() == untouched.tobytes()


def test_a_picture_that_is_no_multiple_of_the_grid_is_drawn_on():
    result = draw_regions(noise_picture((701, 500)), torch.arange(21), (3, 7))
    assert result.size == (700, 498)


# Contact sheets.


def test_a_sheet_holds_its_pictures_in_rows_with_gaps():
    pictures = [[Image.new("RGB", (20, 10), (row, column, 50)) for column in range(3)] for row in range(2)]
    sheet = contact_sheet(pictures)
    assert sheet.size == (3 * 26 + 6, 2 * 16 + 6)
    for row in range(2):
        for column in range(3):
            assert sheet.getpixel((6 + column * 26 + 10, 6 + row * 16 + 5)) == (row, column, 50)
    assert sheet.getpixel((2, 2)) == (255, 255, 255)


def test_labels_widen_the_margins_and_are_written_there():
    pictures = [[Image.new("RGB", (100, 100), (0, 0, 200))] * 2] * 2
    plain = contact_sheet(pictures)
    labelled = contact_sheet(pictures, ["R = 64", "dense"], ["a cube", "a ball"])
    margin, top = (big - small for big, small in zip(labelled.size, plain.size, strict=True))
    assert margin > 0
    assert top > 0
    pixels = np.array(labelled)
    assert (pixels[:, :margin] < 100).any()  # ink in the left margin
    assert (pixels[:top, margin:] < 100).any()
    assert np.array_equal(pixels[top:, margin:], np.array(plain))
    assert contact_sheet(pictures, row_labels=["two\nlines"] * 2).size[1] == plain.size[1]
    long = contact_sheet(pictures, column_labels=["many words " * 50, "few"])
    assert long.size[0] == plain.size[0]
    assert long.size[1] < 2 * plain.size[1]


def test_rows_may_have_different_lengths():
    picture = Image.new("RGB", (10, 10))
    assert contact_sheet([[picture], [picture] * 3]).size == (3 * 16 + 6, 2 * 16 + 6)


# Writing.


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.JPEG", "a.webp", "deep/er/a.png"])
def test_a_picture_is_written_and_its_folders_made(tmp_path, name):
    path = tmp_path / name
    assert save_image(noise_picture(), str(path)) == path
    assert open_image(path).size == (64, 48)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    save_image(Image.new("RGB", (5, 5)), path)  # over the old one
    assert open_image(path).size == (5, 5)


@pytest.mark.parametrize("name", ["a.txt", "a", "a.png.exe", "a.gif"])
def test_other_endings_are_refused(tmp_path, name):
    with refused(name, ".png", ".webp"):
        save_image(noise_picture(), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_refused_and_left_alone(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "folder.png" / "kept").write_text("mine")
    for path in (tmp_path / "file" / "a.png", tmp_path / "file" / "deep" / "a.png", tmp_path / "folder.png"):
        with refused("cannot write", path):
            save_image(noise_picture(), path)
    assert sorted(file.name for file in tmp_path.rglob("*")) == ["file", "folder.png", "kept"]


def test_a_write_that_fails_half_way_leaves_the_old_picture(tmp_path, monkeypatch):
    path = save_image(noise_picture(), tmp_path / "a.png")
    before = path.read_bytes()

    def half(self, file, *args, **options):
        with open(file, "wb") as handle:
            handle.write(b"half a picture")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, refused("cannot write", path, "No space left"):
        patch.setattr(Image.Image, "save", half)
        save_image(noise_picture(), path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.png"]


def test_a_mode_that_the_format_cannot_hold_is_refused(tmp_path):
    with refused("cannot write", "RGBA"):
        save_image(noise_picture().convert("RGBA"), tmp_path / "a.jpg")
    assert list(tmp_path.iterdir()) == []
