"""Pictures: tensors to PIL and back, contact sheets, and regions drawn on a picture."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
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


def to_uint8(images: torch.Tensor) -> torch.Tensor:
    """[-1, 1] -> 0..255 as the release rounds: (B, C, H, W) float -> (B, H, W, C) uint8."""
    pixels = (images.float().clamp(-1, 1) * 127.5 + 128).clamp(max=255)
    return pixels.to(torch.uint8).permute(0, 2, 3, 1).cpu()


def to_pil(images: torch.Tensor) -> list[Image.Image]:
    return [Image.fromarray(pixels) for pixels in to_uint8(images).numpy()]


def open_image(path: Any) -> Image.Image:
    """A picture from a path or an open file, upright, in RGB; transparency goes on white."""
    if not hasattr(path, "read"):
        require_regular(local_path(path))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a size that Pillow warns of is refused here
            with Image.open(path, formats=FORMATS) as file:
                check_pixels(*file.size)
                return _in_colours(_upright(file))
    except Exception as error:  # damaged files make Pillow's decoders raise nearly anything
        raise InputError(f"{shown(path)} is not a readable picture ({first_line(error)})") from None


def check_pixels(width: int, height: int) -> None:
    """Refuse a picture without pixels, and one of so many that it would fill the memory."""
    whole = all(isinstance(side, int) and side > 0 for side in (width, height))
    if not whole or width * height > MOST_PIXELS:
        raise InputError(f"a picture of {width} x {height} pixels; allowed: 1 to {MOST_PIXELS:,} of them")


def _upright(file: Image.Image) -> Image.Image:
    """Turned as the camera says; metadata that cannot be read turns nothing."""
    try:
        return ImageOps.exif_transpose(file)
    except (SyntaxError, ValueError, KeyError, TypeError, OSError):
        return file.copy()


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
    pixels = torch.from_numpy(np.array(picture.convert("RGB")))
    return (pixels.permute(2, 0, 1)[None].float() / 127.5) - 1


def enlarge(picture: Image.Image, side: int) -> Image.Image:
    """A small picture with each pixel repeated until its longer side is at least `side`."""
    scale = max(1, -(-side // max(picture.size)))
    return picture.resize((picture.width * scale, picture.height * scale), Image.Resampling.NEAREST)


def draw_regions(picture: Image.Image, regions: torch.Tensor, grid: tuple[int, int]) -> Image.Image:
    """Draw the boundaries between regions; (N,) region of each patch, row by row. Small pictures are enlarged first.

    White on a black edge, so that the lines show on any picture.
    """
    rows, columns = grid
    canvas = enlarge(picture, 512)
    height, width = canvas.height // rows, canvas.width // columns
    canvas = canvas.resize((width * columns, height * rows))
    draw = ImageDraw.Draw(canvas)
    ids = regions.view(rows, columns).cpu().numpy()
    beside, below = np.argwhere(ids[:, 1:] != ids[:, :-1]), np.argwhere(ids[1:] != ids[:-1])
    lines = [((column + 1, row), (column + 1, row + 1)) for row, column in beside.tolist()]
    lines += [((column, row + 1), (column + 1, row + 1)) for row, column in below.tolist()]
    thin = max(1, min(height, width) // 16)
    for colour, thickness in ((INK, 3 * thin), (PAPER, thin)):
        for line in lines:
            draw.line([(x * width, y * height) for x, y in line], fill=colour, width=thickness)
    return canvas


def contact_sheet(
    rows: Sequence[Sequence[Image.Image]],
    row_labels: Sequence[str] = (),
    column_labels: Sequence[str] = (),
    gap: int = 6,
) -> Image.Image:
    """Pictures of one size in rows, with labels in the margins."""
    width, height = rows[0][0].size
    font = ImageFont.load_default(size=max(12, min(20, height // 16)))
    line = font.getbbox("Ag")[3]
    margin = max((round(font.getlength(label)) for text in row_labels for label in text.split("\n")), default=0)
    margin += 2 * gap if margin else 0
    headings = [wrap(label, font, width) for label in column_labels]
    top = max((len(lines) for lines in headings), default=0) * (line + 2)
    top += 2 * gap if top else 0
    columns = max(len(row) for row in rows)
    size = (margin + columns * (width + gap) + gap, top + len(rows) * (height + gap) + gap)
    sheet = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(sheet)
    for column, lines in enumerate(headings):
        for number, text in enumerate(lines):
            draw.text((margin + gap + column * (width + gap), gap + number * (line + 2)), text, fill=INK, font=font)
    for index, row in enumerate(rows):
        y = top + gap + index * (height + gap)
        if index < len(row_labels):
            draw.multiline_text((gap, y + height // 2), row_labels[index], fill=INK, font=font, anchor="lm")
        for column, picture in enumerate(row):
            sheet.paste(picture, (margin + gap + column * (width + gap), y))
    return sheet


def wrap(text: str, font: ImageFont.FreeTypeFont, width: int, lines: int = 3) -> list[str]:
    """Break a text into at most `lines` lines that fit a width."""
    result = [""]
    for word in text.split():
        longer = f"{result[-1]} {word}".strip()
        if font.getlength(longer) <= width or not result[-1]:
            result[-1] = longer
        elif len(result) == lines:
            return [*result[:-1], f"{result[-1]} …"]
        else:
            result.append(word)
    return result


def check_output(path: str | Path) -> None:
    """Refuse a place where no picture can be written, before the work rather than after it."""
    path = local_path(path)
    if path.suffix.lower() not in ENDINGS:
        raise InputError(f"cannot write {path}: allowed endings are {', '.join(ENDINGS)}")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK) or path.is_dir():
        raise InputError(f"cannot write {path}: {path if path.is_dir() else folder} is in the way or read-only")


def save_image(picture: Image.Image, path: str | Path) -> Path:
    """Write a picture whole or not at all: to a temporary name first, then renamed."""
    check_output(path)
    path = local_path(path)
    with whole_file(path) as temporary:
        picture.save(temporary, format=Image.registered_extensions()[path.suffix.lower()])
    return path
