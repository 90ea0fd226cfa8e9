"""The demo: one checkpoint at every budget, on a model that ships with the package."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from tqdm.auto import tqdm

from rti.images import contact_sheet, draw_regions, enlarge
from rti.pipeline import Pipeline, PipelineOutput

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
    def title(self) -> str:
        lines = ["dense" if self.budget is None else f"R = {self.budget}"]
        lines += [f"{self.speedup:.2f}x"] if self.budget is not None else []
        return "\n".join(lines + ([f"{100 * self.accuracy:.0f} % right"] if self.accuracy is not None else []))


def run_demo(
    pipe: Pipeline,
    budgets: Sequence[int] = (128, 64, 32, 16),
    prompts: Sequence[str] = PROMPTS,
    steps: int = 25,
    seed: int = 0,
    passes: int = 2,
    accuracies: dict[int | None, float] | None = None,
) -> list[Row]:
    """The same prompts and seeds, dense and at each budget. All take turns, so that the times are comparable."""
    wanted = (None, *budgets)
    times: dict[int | None, list[float]] = {budget: [] for budget in wanted}
    results: dict[int | None, PipelineOutput] = {}
    for _ in tqdm(range(passes), desc="drawing", unit="pass"):
        for budget in wanted:
            if budget is not None:
                pipe.elastic.fuse()
            else:
                pipe.elastic.unfuse()  # before the clock starts: dense has no LoRA
            started = time.perf_counter()
            results[budget] = pipe(
                list(prompts),
                budget=budget,
                dense=budget is None,
                num_inference_steps=steps,
                generator=[torch.Generator().manual_seed(seed + index) for index in range(len(prompts))],
                return_regions=budget is not None,
                progress=False,
            )
            times[budget].append(time.perf_counter() - started)
    seconds = {budget: statistics.median(some) for budget, some in times.items()}
    rows = []
    for budget in wanted:
        speedup, known = seconds[None] / seconds[budget], (accuracies or {}).get(budget)
        rows.append(Row(budget, results[budget].images, results[budget].regions, seconds[budget], speedup, known))
    return rows


def demo_sheet(rows: Sequence[Row], prompts: Sequence[str], grid: tuple[int, int], side: int = 160) -> Image.Image:
    """A row of pictures for each budget, and one more with the regions of the middle one."""
    pictures, titles = [], []
    shown = rows[len(rows) // 2] if len(rows) > 1 else None
    for row in rows:
        pictures.append([enlarge(picture, side) for picture in row.pictures])
        titles.append(row.title)
        if row is shown:
            pairs = zip(row.pictures, row.regions, strict=True)
            pictures.append([_fit(draw_regions(picture, ids, grid), pictures[0][0].size) for picture, ids in pairs])
            titles.append(f"its {row.budget}\nregions")
    return contact_sheet(pictures, titles, list(prompts))


def _fit(picture: Image.Image, size: tuple[int, int]) -> Image.Image:
    return picture if picture.size == size else picture.resize(size, Image.Resampling.LANCZOS)


def measured_accuracies(folder: Path) -> tuple[dict[int | None, float], int]:
    """What `rti eval scenes` found for a shipped model, by budget, and on how many pictures."""
    path = folder / "results.json"
    if not path.is_file():
        return {}, 0
    values = json.loads(path.read_text(encoding="utf-8"))
    found = {None if row["budget"] == "dense" else row["budget"]: row["overall"] for row in values["rows"]}
    return found, values["rows"][0]["images"]
