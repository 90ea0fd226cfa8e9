"""Pictures: tensors to PIL and back, contact sheets, and regions drawn on a picture."""

from __future__ import annotations

import os
import textwrap
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont, ImageOps

from rti.errors import InputError
from rti.files import first_line, local_path, require_regular, shown, whole_file

ENDINGS = (".png", ".jpg", ".jpeg", ".webp")
# What Pillow may open, whatever a file is called: left to itself it knows 40 formats and starts Ghostscript for one.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
MOST_PIXELS = 2**26  # about 67 million: the largest photographs of a camera, but no file that unfolds to gigabytes
INK, PAPER = (33, 33, 33), (255, 255, 255)
GAP = 6  # pixels between the pictures of a sheet


def to_pil(images: torch.Tensor) -> list[Image.Image]:
    """[-1, 1] -> 0..255 as the release rounds: (B, C, H, W) float -> B pictures."""
    return [Image.fromarray(picture) for picture in to_bytes(images).permute(0, 2, 3, 1).cpu().numpy()]


def to_bytes(images: torch.Tensor) -> torch.Tensor:
    """[-1, 1] -> 0..255, of any shape: float -> uint8."""
    return (images.float().clamp(-1, 1) * 127.5 + 128).clamp(max=255).to(torch.uint8)


def from_bytes(pixels: torch.Tensor) -> torch.Tensor:
    """0..255 -> [-1, 1], of any shape: uint8 -> float32."""
    return pixels.float() / 127.5 - 1


def open_image(path: Any, name: str | None = None) -> Image.Image:
    """A picture from a path or an open file (`name` for messages), upright, in RGB; transparency goes on white."""
    if not hasattr(path, "read"):
        require_regular(local_path(path))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a size that Pillow warns of is refused here
            with Image.open(path, formats=FORMATS) as file:
                check_pixels(*file.size)
                picture: Image.Image = file
                with suppress(SyntaxError, ValueError, KeyError, TypeError, OSError):  # unreadable metadata
                    picture = ImageOps.exif_transpose(file)  # turned as the camera says
                return _in_colours(picture)
    except Exception as error:  # damaged files make Pillow's decoders raise nearly anything
        raise InputError(f"{shown(name or path)} is not a readable picture ({first_line(error)})") from None


def check_pixels(width: int, height: int) -> None:
    """Refuse a picture without pixels, and one of so many that it would fill the memory."""
    whole = all(isinstance(side, int) and side > 0 for side in (width, height))
    if not whole or width * height > MOST_PIXELS:
        raise InputError(f"a picture of {width} x {height} pixels; allowed: 1 to {MOST_PIXELS:,} of them")


def _in_colours(picture: Image.Image) -> Image.Image:
    if picture.mode.startswith("I"):  # 16 bits of grey, which Pillow would clip rather than scale
        picture = Image.fromarray((np.asarray(picture).astype(np.float64) / 257).round().astype(np.uint8))
    if picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, (*PAPER, 255)), picture)
    return picture.convert("RGB")


def fit(picture: Image.Image, height: int, width: int) -> Image.Image:
    """Scale and centre-crop to the given size."""
    for sides in (picture.size, (width, height)):
        check_pixels(*sides)
    return ImageOps.fit(picture, (width, height), Image.Resampling.LANCZOS)


def to_tensor(picture: Image.Image) -> torch.Tensor:
    """0..255 -> [-1, 1]: a picture -> (1, 3, H, W) float32."""
    return from_bytes(torch.from_numpy(np.array(picture.convert("RGB"))).permute(2, 0, 1)[None])


def enlarge(picture: Image.Image, side: int) -> Image.Image:
    """A small picture with each pixel repeated until its longer side is at least `side`."""
    scale = max(1, -(-side // max(picture.size)))
    return picture.resize((picture.width * scale, picture.height * scale), Image.Resampling.NEAREST)


def draw_regions(picture: Image.Image, regions: torch.Tensor, grid: tuple[int, int]) -> Image.Image:
    """White lines on a black edge between regions; (N,) region of each patch, row by row. Enlarges small pictures."""
    rows, columns = grid
    canvas = enlarge(picture, 512)
    height, width = canvas.height // rows, canvas.width // columns
    canvas = canvas.resize((width * columns, height * rows))
    ids = regions.view(rows, columns).cpu().numpy()
    beside, below = np.argwhere(ids[:, 1:] != ids[:, :-1]), np.argwhere(ids[1:] != ids[:-1])
    lines = [((column + 1, row), (column + 1, row + 1)) for row, column in beside.tolist()]
    lines += [((column, row + 1), (column + 1, row + 1)) for row, column in below.tolist()]
    draw, thin = ImageDraw.Draw(canvas), max(1, min(height, width) // 16)
    for colour, thickness in ((INK, 3 * thin), (PAPER, thin)):
        for line in lines:
            draw.line([(x * width, y * height) for x, y in line], fill=colour, width=thickness)
    return canvas


def contact_sheet(
    rows: Sequence[Sequence[Image.Image]], row_labels: Sequence[str] = (), column_labels: Sequence[str] = ()
) -> Image.Image:
    """Pictures of one size in rows, with labels in the margins."""
    width, height = rows[0][0].size
    font = ImageFont.load_default(size=max(12, min(20, height // 16)))
    headings = [wrap(label, font, width) for label in column_labels]
    size_of = ImageDraw.Draw(Image.new("L", (1, 1))).multiline_textbbox
    left = max((size_of((2 * GAP, 0), text, font)[2] for text in row_labels), default=0)
    top = max((size_of((0, 2 * GAP), text, font, spacing=2)[3] for text in headings), default=0)
    x = [round(left) + GAP + column * (width + GAP) for column in range(max(map(len, rows)) + 1)]
    y = [round(top) + GAP + row * (height + GAP) for row in range(len(rows) + 1)]
    sheet = Image.new("RGB", (x[-1], y[-1]), PAPER)
    draw = ImageDraw.Draw(sheet)
    for place, text in zip(x, headings, strict=False):
        draw.multiline_text((place, GAP), text, INK, font, spacing=2)
    for place, text in zip(y, row_labels, strict=False):
        draw.multiline_text((GAP, place + height // 2), text, INK, font, anchor="lm")
    for place, row in zip(y, rows, strict=False):
        for column, picture in enumerate(row):
            sheet.paste(picture, (x[column], place))
    return sheet


def wrap(text: str, font: ImageFont.FreeTypeFont, width: int) -> str:
    """A text in at most three lines of about a width, by the mean width of its letters."""
    letters = int(0.95 * width * len(text) / max(1, font.getlength(text)))
    return textwrap.fill(text, max(4, letters), max_lines=3, placeholder=" …")


def check_output(path: str | Path) -> Path:
    """The path as it is written to; refuse one where no picture can be, before the work rather than after it."""
    path = local_path(path)
    if path.suffix.lower() not in ENDINGS:
        raise InputError(f"cannot write {path}: allowed endings are {', '.join(ENDINGS)}")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK) or path.is_dir():
        raise InputError(f"cannot write {path}: {path if path.is_dir() else folder} is in the way or read-only")
    return path


def save_image(picture: Image.Image, path: str | Path) -> Path:
    """Write a picture whole or not at all: to a temporary name first, then renamed."""
    path = check_output(path)
    with whole_file(path) as temporary:
        picture.save(temporary, format=Image.registered_extensions()[path.suffix.lower()])
    return path
