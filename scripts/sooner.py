"""What brings pictures sooner: solvers, the span of guidance, or reuse of earlier steps. By PSNR to a reference.

    python scripts/sooner.py solvers scenes --pictures 48 --output solvers.json      # or guidance, or reuse

The reference is the dense picture of the same noise in 100 steps, by Heun's method for `solvers`, else by `multistep`.
Every setting draws the same pictures, batch by batch and in a random order, so that seconds compare. It can be stopped
at any moment and run again, also for more pictures, or for the table of fewer; batches that the file has are not drawn
again. References lie beside the file, where another part of the same model finds them.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from sooner_draws import BATCH, SEED, Rows, Setting, adams_bashforth, draw, measure
from sooner_reuse import Reuse

import rti
from rti.backbones.base import FlowSettings
from rti.cli.output import say, show_table
from rti.lab.intervals import mean_interval
from rti.lab.pictures.generation import adapter_weights_of, weights_of
from rti.lab.pictures.prompts import scene_prompts
from rti.solvers import BY_VELOCITY, SOLVERS

CAREFUL = 100  # steps of a reference
EVALUATIONS, SHIFTS = (6, 8, 12, 16, 25), (0.5, 2.0, 3.0)  # a shift of 1 is in the table already
STARTS, ENDS, GUIDED_STEPS = (0.0, 0.05, 0.1, 0.2, 0.3), (1.0, 0.9, 0.8, 0.7, 0.6, 0.5), (12, 25)
BUDGETS, BASES, FEWER = (None, 64), (25, 50), (6, 8, 10, 12, 16, 20, 25, 32, 40, 50)
RULES = [Reuse("core", tau, cap=3) for tau in (0.05, 0.1, 0.2, 0.4)] + [Reuse("core", math.inf, cap=1)]
for kind, taus in {"difference": (0.03, 0.1, 0.3), "clean": (0.03, 0.1, 0.3), "velocity": (0.01, 0.03, 0.1)}.items():
    RULES += [Reuse(kind, tau, warm=0.15) for tau in taus]


# Each part: stages of settings, of which the later ones may depend on what was found, and a table.


def solvers(rows: Rows, flow: FlowSettings) -> Iterator[list[Setting]]:
    names = ["euler", "heun", "adams", "multistep", *(("dpm++", "unipc") if find_spec("diffusers") else ())]
    found = {name: [Setting(name, steps_of(name, count)) for count in EVALUATIONS] for name in names}
    yield [one for some in found.values() for one in some]
    best = max(names, key=lambda name: np.mean([rows.of(one, "psnr").mean() for one in found[name]]))
    yield [Setting(best, one.steps, shift) for shift in SHIFTS for one in found[best]]


def steps_of(solver: str, evaluations: int) -> int:
    """Heun's method asks twice a step, but for the last one."""
    return (evaluations + 1) // 2 if solver == "heun" else evaluations


def solvers_table(rows: Rows, settings: Sequence[Setting]) -> tuple[list[str], list[list]]:
    table = []
    for one in settings:
        asked = next(count for count in EVALUATIONS if steps_of(one.solver, count) == one.steps)
        base, near = Setting("multistep", asked), rows.of(one, "psnr")
        compared = [cell(near), cell(near - rows.of(base, "psnr"), True), cell(rows.of(one, "state") - near, True)]
        table.append([str(one), int(rows.of(one, "evaluations")[0]), round(rows.seconds(one), 3), *compared])
    return ["setting", "evaluations", "s / picture", "PSNR", "minus multistep", "of the state, minus it"], table


def guidance(rows: Rows, flow: FlowSettings) -> Iterator[list[Setting]]:
    """First where it ends, then where it begins, then both."""

    def over(spans: Sequence[tuple[float, float]]) -> list[Setting]:
        usual = flow.guidance_interval
        some = [
            Setting("multistep", n, interval=None if span == usual else span) for n in GUIDED_STEPS for span in spans
        ]
        return list(dict.fromkeys(some))

    yield over([flow.guidance_interval, *((0.0, end) for end in ENDS)])
    yield over([(start, 1.0) for start in STARTS[1:]])
    yield over([(start, end) for start in STARTS[1:] for end in ENDS[1:]])


def guidance_table(rows: Rows, settings: Sequence[Setting]) -> tuple[list[str], list[list]]:
    table = []
    for one in settings:
        base, near, right = Setting("multistep", one.steps), rows.of(one, "psnr"), rows.of(one, "right")
        compared = [cell(near), cell(near - rows.of(base, "psnr"), True)]
        judged = [f"{right.mean():.3f}", cell(right - rows.of(base, "right"), True, 3)]
        counts = [int(rows.of(one, "guided")[0]), round(rows.seconds(one), 3)]
        table.append([str(one), *counts, *compared, *judged])
    return ["setting", "guided", "s / picture", "PSNR", "minus throughout", "right", "minus throughout"], table


def reuse(rows: Rows, flow: FlowSettings) -> Iterator[list[Setting]]:
    plain = [Setting("multistep", steps, budget=budget) for budget in BUDGETS for steps in FEWER]
    yield plain + [
        Setting("multistep", steps, budget=budget, reuse=rule)
        for steps in BASES
        for budget in BUDGETS
        for rule in RULES
    ]


def reuse_table(rows: Rows, settings: Sequence[Setting]) -> tuple[list[str], list[list]]:
    """Beside each row what fewer steps give in the same seconds, and with as many passes of the core."""

    def passes(one: Setting) -> float:
        return float(rows.of(one, "passes").mean())

    table = []
    for one in settings:
        line = [str(one), round(passes(one), 1), round(rows.seconds(one), 3), cell(near := rows.of(one, "psnr"))]
        plain = [some for some in settings if some.reuse is None and some.budget == one.budget]
        for measured in (rows.seconds, passes):
            curves = [rows.of(some, "psnr") for some in plain]
            fewer = between([measured(some) for some in plain], curves, measured(one)) if one.reuse else None
            line += ["", ""] if fewer is None else [f"{fewer.mean():.2f}", cell(near - fewer, True)]
        table.append(line)
    names = ["setting", "core passes", "s / picture", "PSNR"]
    return [*names, "fewer steps, same s", "difference", "fewer steps, same passes", "difference "], table


def between(places: list[float], curves: list[np.ndarray], place: float) -> np.ndarray | None:
    """PSNR by picture at a place between those measured, linear in its logarithm; None where it is outside."""
    order = np.argsort(places)
    known = np.log(np.array(places)[order])
    if not known[0] <= math.log(place) <= known[-1]:
        return None
    after = int(np.searchsorted(known, math.log(place)).clip(1, len(known) - 1))
    share = (math.log(place) - known[after - 1]) / (known[after] - known[after - 1])
    return (1 - share) * curves[order[after - 1]] + share * curves[order[after]]


def cell(values: np.ndarray, signed: bool = False, digits: int = 2) -> str:
    """A mean with its interval."""
    form = f"{'+' if signed else ''}.{digits}f"
    interval = mean_interval(values)
    shown = "" if interval is None else f" ({interval[0]:{form}} to {interval[1]:{form}})"
    return f"{values.mean():{form}}{shown}"


PARTS: dict[str, tuple[Callable, Callable, str]] = {  # settings, table, and the solver of the reference
    "solvers": (solvers, solvers_table, "heun"),
    "guidance": (guidance, guidance_table, "multistep"),
    "reuse": (reuse, reuse_table, "multistep"),
}


def main(part: str, model: str, pictures: int, output: Path, stages: int) -> None:
    stages_of, table_of, careful = PARTS[part]
    pipe = rti.Pipeline.from_pretrained(model)
    about = {"part": part, "model": model, "weights": weights_of(pipe), "adapter": adapter_weights_of(pipe)}
    references = output.with_name(f"{Path(model).name}-{about['weights'][:12]}-{careful}{CAREFUL}.safetensors")
    about |= {"batch": BATCH, "seed": SEED, "careful": CAREFUL, "torch": torch.__version__}
    rows = Rows(output, about | {"threads": torch.get_num_threads()}, pictures)
    entries = scene_prompts(pictures, SEED, "train", pipe.backbone.conditioned_on).prompts
    flow, settings = pipe.backbone.flow, []
    for budget in BUDGETS:  # the first pictures of a process take longer
        draw(pipe, Setting("multistep", 2, budget=budget), entries[:BATCH])
    for number, stage in enumerate(stages_of(rows, flow)):
        if number == stages:
            break
        measure(pipe, rows, stage, entries, Setting(careful, CAREFUL), references)
        settings += [one for one in stage if one not in settings]
        columns, table = table_of(rows, settings)
        rows.write(columns=columns, table=table)
    show_table(f"{part}, {model}, {pictures} pictures, 95 % intervals", columns, table, width=200)
    say(f"written to {output}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("model", help="scenes or scenes-jit")
    parser.add_argument("--pictures", type=int, default=48, help=f"a multiple of {BATCH}")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--stages", type=int, default=3, help="stop after so many: guidance has 3, solvers 2, reuse 1")
    options = parser.parse_args()
    if options.pictures < BATCH or options.pictures % BATCH or options.stages < 1:
        parser.error(f"--pictures must be a multiple of {BATCH}, and --stages at least 1")
    registered = partial(patch.dict, adams=adams_bashforth)
    try:
        with registered(BY_VELOCITY), registered(SOLVERS):
            main(**vars(options))
    except rti.InputError as error:
        parser.error(str(error))
