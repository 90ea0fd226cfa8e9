"""What `rti adapt` takes at true size: minutes of each stage and memory, by measured steps with random weights.

    python scripts/adapt_cost.py minit2i-b16 --batch-per-device 2

One step of eight pictures stands for the twelve of each trajectory, and an example of each budget for all examples.
"""

import argparse
import json
import resource
import statistics
import time
from collections.abc import Callable
from tempfile import TemporaryDirectory
from typing import Any

import torch

from rti.training import closed_form, trajectories
from rti.training.adapt import Adapting
from rti.training.distillation import Distillation
from rti.training.draws import Dial


def seconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def peak() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="minit2i-b16")
    parser.add_argument("--batch-per-device", type=int, default=8)
    options = parser.parse_args()
    steps, at_once = trajectories.STEPS, trajectories.AT_ONCE
    closed_form.STEPS = trajectories.STEPS = 1
    with TemporaryDirectory() as folder:
        given = {"init": "random", "output": folder, "batch_per_device": options.batch_per_device}
        run = Adapting.of(options.model, given | {"linear_prompts": at_once, "stage": "linear"})
        config = run.config
        found = {"model": options.model, "threads": torch.get_num_threads(), "loaded_gb": peak()}
        found["closed_form_minutes"] = round(seconds(run.solve) * steps * 48 / at_once / 60, 1)
        found["closed_form_gb"] = peak()
        task = Distillation(config, run.model, run.subjects.used, run.encoder)
        drawing = steps / at_once * seconds(lambda: task.pictures.draw_until(1))  # of a picture
        found["drawing_gb"] = peak()
        taken = []
        for budget in config.budgets:
            examples = task.examples(0, range(config.batch_per_device), Dial(budget, False))
            taken.append(seconds(lambda: task.module(*examples).mean().backward()) / config.batch_per_device)  # noqa: B023
        found["first_pictures_minutes"] = round(drawing * task.pictures.room / 60, 1)
        found["minutes_of_100_steps"] = round(config.batch * (statistics.mean(taken) + drawing / config.reuse) / 0.6, 1)
        print(json.dumps(found | {"all_gb": peak()}))
