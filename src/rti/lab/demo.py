"""The demo: one checkpoint at every budget, on a model that ships with the package."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from tqdm.auto import tqdm

from rti.files import read_json
from rti.images import contact_sheet, draw_regions, enlarge
from rti.pipeline import Pipeline

PROMPTS = (
    "a red star left of a blue circle",
    "two green triangles",
    "a yellow ring above a purple square",
    "an orange cross",
    "a cyan moon and a pink circle",
)


@dataclass(frozen=True)
class Row:
    """One budget: its pictures, how long they took, how much faster that is, and how often such pictures are right."""

    budget: int | None
    pictures: list[Image.Image]
    regions: torch.Tensor | None  # (pictures, N)
    seconds: float
    speedup: float
    accuracy: float | None

    @property
    def name(self) -> int | str:
        return "dense" if self.budget is None else self.budget

    @property
    def title(self) -> str:
        lines = ["dense"] if self.budget is None else [f"R = {self.budget}", f"{self.speedup:.2f}x"]
        return "\n".join(lines + ([f"{100 * self.accuracy:.0f} % right"] if self.accuracy is not None else []))


def run_demo(
    pipe: Pipeline,
    budgets: Sequence[int],
    prompts: Sequence[str] = PROMPTS,
    steps: int = 25,
    seed: int = 0,
    passes: int = 2,
    accuracies: dict[int | None, float] | None = None,
) -> list[Row]:
    """The same prompts and seeds, dense and at each budget. All take turns, so that the times are comparable."""
    times, results = defaultdict(list), {}
    for _ in tqdm(range(passes), desc="drawing", unit="pass"):
        for budget in (None, *budgets):
            generators = [torch.Generator().manual_seed(seed + index) for index in range(len(prompts))]
            options = {"num_inference_steps": steps, "generator": generators, "progress": False}
            with pipe.drawing(dense=budget is None) as drawing:  # folds the LoRA in before the clock starts
                started = time.perf_counter()
                results[budget] = drawing(list(prompts), budget=budget, return_regions=budget is not None, **options)
                times[budget].append(time.perf_counter() - started)
    seconds = {budget: statistics.median(some) for budget, some in times.items()}
    return [
        Row(budget, drawn.images, drawn.regions, took, seconds[None] / took, (accuracies or {}).get(budget))
        for (budget, drawn), took in zip(results.items(), seconds.values(), strict=True)
    ]


def demo_sheet(rows: Sequence[Row], prompts: Sequence[str], grid: tuple[int, int], side: int = 160) -> Image.Image:
    """A row of pictures for each budget, and one more with the regions of the middle one."""
    sheet = [(row.title, [enlarge(picture, side) for picture in row.pictures]) for row in rows]
    middle = len(rows) // 2
    if middle:
        row, size = rows[middle], sheet[0][1][0].size
        drawn = [draw_regions(*pair, grid) for pair in zip(row.pictures, row.regions, strict=True)]
        overlay = [one if one.size == size else one.resize(size, Image.Resampling.LANCZOS) for one in drawn]
        sheet.insert(middle + 1, (f"its {row.budget}\nregions", overlay))
    return contact_sheet([pictures for _, pictures in sheet], [title for title, _ in sheet], list(prompts))


def measured_accuracies(folder: Path) -> tuple[dict[int | None, float], int]:
    """What `rti eval scenes` found for a shipped model, by budget, and on how many pictures."""
    path = folder / "results.json"
    rows = read_json(path)["rows"] if path.is_file() else []
    found = {None if row["budget"] == "dense" else row["budget"]: row["overall"] for row in rows}
    return found, rows[0]["images"] if rows else 0
