"""SceneEval to look at and to keep: a sheet of pictures with captions and verdicts, and the verdicts as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from rti.errors import InputError
from rti.images import INK, PAPER, check_output, contact_sheet, enlarge, save_image, to_pil, wrap
from rti.lab.evaluation.scenes import SceneResult
from rti.lab.scenes import TASKS, Scene

RIGHT, WRONG = (0, 128, 60), (200, 30, 30)
_COLUMNS = 2 * len(TASKS)  # prompts take the tasks in turn: every column is one task
_SIDE, _FRAME, _LINES = 128, 4, 5
_SHOWN = 20 * len(TASKS)  # pictures on a sheet at the most


def check_folder(folder: Path) -> None:
    """Refuse a folder that cannot be written, before the work rather than after it."""
    check_output(folder / "dense.png")


def save_results(folder: Path, values: dict[str, Any], results: Sequence[SceneResult]) -> None:
    """Write a sheet per budget drawn now, and results.json: the values, and every picture's verdict at every budget."""
    for result in (one for one in results if one.images is not None):
        save_image(verdict_sheet(result), folder / f"{result.name}.png")
    pictures = [
        {
            "task": scene.task,
            "caption": scene.caption,
            "correct": {str(result.name): bool(result.score.correct[index]) for result in results},
            "reason": {str(result.name): result.score.reasons[index] for result in results},
        }
        for index, scene in enumerate(results[0].score.scenes)
    ]
    path = folder / "results.json"
    temporary = path.with_name(".results.part.json")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(values | {"pictures": pictures}, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None


def verdict_sheet(result: SceneResult) -> Image.Image:
    """The first pictures of a budget, each in a green or red frame over its caption and, if it is wrong, the reason."""
    score = result.score
    tiles = [
        _tile(picture, scene, reason)
        for picture, scene, reason in zip(
            to_pil(result.images[:_SHOWN]), score.scenes[:_SHOWN], score.reasons[:_SHOWN], strict=True
        )
    ]
    rows = [tiles[first : first + _COLUMNS] for first in range(0, len(tiles), _COLUMNS)]
    return contact_sheet(rows, column_labels=[task.replace("_", " ") for task in TASKS] * (_COLUMNS // len(TASKS)))


def _tile(picture: Image.Image, scene: Scene, reason: str) -> Image.Image:
    picture = enlarge(picture, _SIDE)
    font = ImageFont.load_default(size=12)
    height = font.getbbox("Ag")[3] + 1
    colour = WRONG if reason else RIGHT
    tile = Image.new("RGB", (picture.width + 2 * _FRAME, picture.height + 2 * _FRAME + _LINES * height), PAPER)
    draw = ImageDraw.Draw(tile)
    draw.rectangle((0, 0, tile.width - 1, picture.height + 2 * _FRAME - 1), fill=colour)
    tile.paste(picture, (_FRAME, _FRAME))
    # Words beside the colours: not everyone tells red from green.
    lines = [(line, INK) for line in wrap(scene.caption, font, tile.width, lines=3)]
    verdict = f"wrong: {reason}" if reason else "right"
    lines += [(line, colour) for line in wrap(verdict, font, tile.width, lines=_LINES - len(lines))]
    for number, (line, ink) in enumerate(lines):
        draw.text((0, picture.height + 2 * _FRAME + number * height), line, fill=ink, font=font)
    return tile
