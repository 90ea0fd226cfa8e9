"""What the estimate costs in training: a step with the pass that makes it, and without.

    python scripts/estimate_cost.py minit2i-b16 --budgets 64,128,256,512 --passes 3

Random weights at true size, one example, forward and backward. The two take turns, and the medians are compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch

import rti
from rti.cli.output import show_table
from rti.lab.bench.benchmark import random_condition
from rti.presets import get_preset
from rti.training.draws import DrawSettings, draw
from rti.training.elastic import Dial, ElasticObjective

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model", nargs="?", default="minit2i-b16")
parser.add_argument("--budgets", help="default: the preset's")
parser.add_argument("--passes", type=int, default=3)
arguments = parser.parse_args()

preset = get_preset(arguments.model, None)
budgets = [int(text) for text in arguments.budgets.split(",")] if arguments.budgets else list(preset.budgets)
backbone = rti.load_backbone(preset.name, init="random")
model = rti.attach(backbone, rti.RegionConfig(core=preset.core, cuts="merge", cuts_from="estimate"))
generator = torch.Generator().manual_seed(0)
images = torch.rand(1, backbone.channels, *backbone.image_size, generator=generator) * 2 - 1
draws = draw(images.shape[1:], 0, 0, [0], DrawSettings())
condition = random_condition(backbone, 1)

lean = min(budgets)
ways = {
    "pass": (ElasticObjective(model, lean), False),
    "none": (ElasticObjective(model, lean), True),
}


def seconds(objective: ElasticObjective, dial: Dial) -> float:
    started = time.perf_counter()
    objective(images, condition, draws, dial).mean().backward()
    model.zero_grad()
    return time.perf_counter() - started


rows = []
for budget in budgets:
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(arguments.passes + 1):
        for name, (objective, blind) in ways.items():
            taken = seconds(objective, Dial(budget, blind))
            if turn:  # the first round warms up
                times[name].append(taken)
    medians = {name: statistics.median(some) for name, some in times.items()}
    share = 1 - medians["none"] / medians["pass"]
    rows.append(
        {"budget": budget, **{name: round(value, 2) for name, value in medians.items()}, "share": round(share, 3)}
    )
show_table(
    f"seconds a step of {preset.name}, estimate at R = {lean}, {torch.get_num_threads()} threads",
    ("budget", "pass", "none", "share of the pass"),
    [[*row.values()] for row in rows],
)
mean = {name: sum(row[name] for row in rows) / len(rows) for name in ways}
print(json.dumps({"model": preset.name, "rows": rows, "share": round(1 - mean["none"] / mean["pass"], 3)}))
