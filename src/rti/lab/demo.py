"""The demo: one checkpoint at every budget, on a model that ships with the package."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image
from torch import Generator
from tqdm.auto import tqdm

from rti.files import read_json
from rti.images import contact_sheet, draw_regions, enlarge
from rti.pipeline import Pipeline, PipelineOutput

PROMPTS = (
    "a red star left of a blue circle",
    "two green triangles",
    "a yellow ring above a purple square",
    "an orange cross",
    "a cyan moon and a pink circle",
)
SIDE = 160  # pixels of a picture on the sheet, at least


class Row(NamedTuple):
    """One budget, None for dense: its pictures, how long they took, and how much faster than dense that is."""

    budget: int | None
    drawn: PipelineOutput
    seconds: float
    speedup: float


def run_demo(
    pipe: Pipeline, budgets: Sequence[int], prompts: Sequence[str], steps: int, seed: int, passes: int
) -> list[Row]:
    """The same prompts and seeds, dense and at each budget. All take turns, so that the times are comparable."""
    times, results = defaultdict(list), {}
    for _ in tqdm(range(passes), desc="drawing", unit="pass"):
        for budget in (None, *budgets):
            generators = [Generator().manual_seed(seed + index) for index in range(len(prompts))]
            options = {"num_inference_steps": steps, "generator": generators, "progress": False}
            with pipe.drawing(dense=budget is None) as drawing:  # folds the LoRA in before the clock starts
                started = time.perf_counter()
                results[budget] = drawing(list(prompts), budget=budget, return_regions=budget is not None, **options)
                times[budget].append(time.perf_counter() - started)
    seconds = {budget: statistics.median(some) for budget, some in times.items()}
    return [Row(budget, drawn, seconds[budget], seconds[None] / seconds[budget]) for budget, drawn in results.items()]


def demo_sheet(
    rows: Sequence[Row], prompts: Sequence[str], grid: tuple[int, int], right: dict[int | None, float]
) -> Image.Image:
    """A row of pictures for each budget, and one more with the regions of the middle one."""
    labels, sheet = [], []
    for place, row in enumerate(rows):
        label = "dense" if row.budget is None else f"R = {row.budget}\n{row.speedup:.2f}x"
        labels.append(label + (f"\n{100 * right[row.budget]:.0f} % right" if row.budget in right else ""))
        sheet.append([enlarge(picture, SIDE) for picture in row.drawn.images])
        if place == len(rows) // 2 and row.budget is not None:
            pairs, size = zip(row.drawn.images, row.drawn.regions, strict=True), sheet[0][0].size
            labels.append(f"its {row.budget}\nregions")
            sheet.append([draw_regions(*pair, grid).resize(size, Image.Resampling.LANCZOS) for pair in pairs])
    return contact_sheet(sheet, labels, prompts)


def measured_accuracies(folder: Path) -> tuple[dict[int | None, float], int]:
    """What `rti eval scenes` found for a shipped model, by budget, and on how many pictures."""
    path = folder / "results.json"
    rows = read_json(path)["rows"] if path.is_file() else []
    found = {None if row["budget"] == "dense" else row["budget"]: row["overall"] for row in rows}
    return found, rows[0]["images"] if rows else 0
