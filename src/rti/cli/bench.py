"""`rti bench`: how fast a model is at each budget, beside what the arithmetic says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rti.cli.options import GUIDANCE, MODEL, Runtime, budget_option, command, number_option, steps_option
from rti.cli.output import say, show_table, span
from rti.errors import InputError
from rti.presets import preset_of
from rti.shipped import shipped

if TYPE_CHECKING:
    from rti.backbones import Backbone
    from rti.dials import Preset
    from rti.elastic import ElasticModel
    from rti.pipeline import Pipeline

BUDGETS = "0.5,0.25,0.125,0.0625"  # where no preset names the trained ones


@command
def bench(
    runtime: Runtime,
    model: str = MODEL,
    budgets: str = budget_option(None, help="Budgets, one row each, such as 512,256,0.125. Default: the trained ones."),
    text_budget: str = typer.Option(
        None, help="Text tokens in the trunk: 32, or several such as full,32, each with every budget. Default: full."
    ),
    reductions: str = typer.Option(
        None, help="Untrained reductions to time, also in place of an adapter that ships. Default: region."
    ),
    setting: list[str] = typer.Option(None, "--set", help="A reduction's setting, such as --set cuts=merge."),
    core: str = typer.Option(None, help="Without an adapter: first and last block of the core. Default: the preset's."),
    init: str = typer.Option(None, help="'random': random weights instead of a checkpoint; times do not mind."),
    batch: int = number_option(1, help="Pictures at a time; guidance doubles them."),
    steps: int = steps_option(None, help="Time whole pictures of so many steps. Default: one guided forward pass."),
    pictures: bool = typer.Option(
        False, "--pictures", help="Time whole pictures: as the model was released, dense, and by each preset."
    ),
    guidance: float = GUIDANCE,
    passes: int = number_option(
        None, help="How often each row is timed, in turn with all others; the median counts. [default: 3; pictures: 1]"
    ),
    warmup: int = number_option(1, help="Passes before those.", least=0),
    threads: int = number_option(None, help="Threads on a CPU. Default: torch's own choice.", most=1024),
    plot: Path = typer.Option(None, help="Draw measured and analytic cost against the budget into this file."),
) -> dict[str, Any]:
    """Time dense and each budget in turn, and compare with the analytic count.

    Absolute times drift with the machine; the ratios of one run do not. All
    that a reduction adds is timed with it, and its LoRA is folded in. With
    --compile, which dense gets too, dense as it was is timed beside. An adapter
    that guides itself in one pass is timed so and with two.
    For example, at true size without any download:

    rti bench minit2i-b16 --init random --budgets 512,256,128,64

    --pictures times end to end, and holds each picture against the product of
    its parts: evaluations times the seconds of one, timed beside it. The
    released way is all of its steps with attention written out. That takes
    minutes a picture on a CPU:

    rti bench minit2i-b16 --init random --pictures
    """
    import torch

    from rti.images import check_output
    from rti.lab.bench.benchmark import run_benchmark, twin
    from rti.lab.bench.pictures import time_pictures
    from rti.loading import usual_core
    from rti.method.budgets import parse_budget, parse_budgets

    if pictures:
        of_passes = {"--budgets": budgets, "--text-budget": text_budget, "--reductions": reductions, "--set": setting}
        _refuse_beside_pictures(of_passes | {"--steps": steps, "--plot": plot})
    if plot is not None:
        check_output(plot)
    if threads is not None:
        torch.set_num_threads(threads)
    texts = [None if text == "full" else parse_budget(text) for text in (text_budget or "full").split(",")]
    pipe = replace(runtime, compile=False).load(model, init)
    preset = preset_of(model, runtime.size)
    options = {"--reductions": reductions, "--set": setting, "--core": span(core)}
    ships = runtime.adapter is None and shipped(model) is not None
    usual = usual_core(pipe.backbone)
    presets = _presets(pipe) if pictures else {}
    texts_cut = [*texts, *(one.dials.text_budget for one in presets.values())]
    dense, models = _models(pipe, model, ships, options, usual, any(text is not None for text in texts_cut))
    plain = twin(dense) if runtime.compile else None
    for module in (dense, *(one.backbone for one in models.values())) if runtime.compile else ():
        module.compile_repeated_blocks()
    guidance = dense.flow.guidance_scale if guidance is None else guidance
    passes = passes or (1 if pictures else 3)
    how, more = dict(batch=batch, guidance=guidance), dict(passes=passes, warmup=warmup, plain=plain)
    if pictures:
        rows = time_pictures(dense, next(iter(models.values())), presets, **how, **more)
    else:
        trained = ",".join(map(str, preset.budgets)) if preset and pipe.elastic is None else BUDGETS
        how |= dict(steps=steps)
        rows = run_benchmark(dense, models, parse_budgets(budgets or trained), texts, **how, **more)
    values = {"benchmark": model} | how
    values |= dict(dtype=runtime.dtype, device=str(dense.device), threads=torch.get_num_threads())
    values |= dict(compile=runtime.compile, passes=passes, torch=torch.__version__, rows=rows)
    (_show_pictures if pictures else _show)(values)
    if plot is not None:
        from rti.lab.plots import cost_figure

        say(cost_figure(values, plot))
    return values


def _refuse_beside_pictures(options: dict[str, Any]) -> None:
    if given := next((name for name, value in options.items() if value), None):
        allowed = "--batch, --guidance, --passes, --warmup, --threads, --core, --compile"
        raise InputError(
            f"{given} given with --pictures, whose settings are the presets'; allowed beside it: {allowed}"
        )


def _presets(pipe: Pipeline) -> dict[str, Preset]:
    """Those of the model; without an adapter it is timed with text regions, where it reads a text."""
    from rti.dials import usual_presets

    return usual_presets(True, pipe.backbone.conditioned_on == "text") if pipe.elastic is None else pipe.presets


def _models(
    pipe: Pipeline, model: str, ships: bool, options: dict[str, Any], core: tuple[int, int], text_regions: bool
) -> tuple[Backbone, dict[str, ElasticModel]]:
    """The frozen backbone alone, and the models to compare with it, on the same weights."""
    from rti.elastic import attach
    from rti.lab.bench.benchmark import twin
    from rti.resolve import untrained_config

    if ships and options["--reductions"] and pipe.elastic is not None:  # its own adapter is not what was asked for
        core = pipe.elastic.config.core
        pipe.model = pipe.elastic.detach()
    if pipe.elastic is not None:
        if given := next((name for name, value in options.items() if value), None):
            instead = ", or name the --reductions to time in its place" if ships else ""
            raise InputError(f"{given} given, but {model} has an adapter, which says so itself; leave it out{instead}")
        with pipe.elastic.dense() as backbone:
            dense = twin(backbone)
        return dense, {pipe.elastic.config.name: pipe.elastic.fuse(keep=False)}

    models, typed = {}, (options["--set"] or [], options["--core"])
    for name in (options["--reductions"] or "region").split(","):
        config = untrained_config(name, *typed, usual=core, text_regions=text_regions)
        models[name] = attach(twin(pipe.backbone), config).fuse(keep=False).eval()
    return pipe.backbone, models


# The order of a forward pass; what a reduction calls its own parts comes before what it adds in all.
_FIRST = ("text, once a prompt", "embed", "trunk", "prelude", "partition", "read", "core", "write")
_LAST = ("interface", "coda", "head", "run")


def _show(values: dict[str, Any]) -> None:
    rows, cells, names = values["rows"], [], []
    several = len({row["model"] for row in rows if row["budget"] != "dense"}) > 1
    for row in rows:
        name = row["model"] if row["budget"] == "dense" or several else ""
        names.append(f"{name} {row['budget']}".strip() if row["budget"] != "dense" else name)
        names[-1] += ", one pass" if row["guidance_passes"] == 1 else ""
        speeds = [f"{row[field]:.2f}x" for field in ("speedup", "analytic_speedup")]
        memory = [f"{row['peak_memory_gigabytes']:.2f}"] if row["peak_memory_gigabytes"] else []  # of a GPU
        numbers = [row["text_budget"] or "full", row["seconds"], row["images_per_second"], *speeds]
        cells.append([names[-1], *numbers, f"{100 * row['efficiency']:.0f} %", *memory])
    title = _title(values, f"{values['steps']} steps" if values["steps"] else "one guided forward pass")
    heads = ("budget", "text", "seconds", "images/s", "faster", "analytic", "of it", "peak GB")
    show_table(title, heads[: len(cells[0])], cells)

    timed = [(name, row["parts"]) for name, row in zip(names, rows, strict=True) if row["parts"]]
    known = dict.fromkeys(part for _, parts in timed for part in parts if part not in _FIRST + _LAST)
    shares = []
    for part in (*_FIRST, *known, *_LAST):
        cells = [f"{100 * parts[part] / parts['run']:.1f}" if part in parts else "" for _, parts in timed]
        shares += [[part, *cells]] if any(cells) else []
    columns = ("", *(name for name, _ in timed))
    show_table("Where the time goes, % of a run (interface: all around the core)", columns, shares)


def _show_pictures(values: dict[str, Any]) -> None:
    cells = []
    for row in values["rows"]:
        asked = row["evaluations"]
        settings = f"{row['steps']} {row['solver']}", row["budget"], row["text_budget"] or "full"
        guided = f"{asked.get('guided', 0)}/{sum(asked.values())}"
        numbers = row["seconds"], f"{row['speedup']:.2f}x", f"{row['of_parts']:.2f}"
        cells.append([row["setting"], *settings, guided, *numbers])
    heads = ("", "steps", "budget", "text", "guided", "seconds", "faster", "of parts")
    show_table(_title(values, "whole pictures"), heads, cells)


def _title(values: dict[str, Any], what: str) -> str:
    how = f"{values['threads']} threads, median of {values['passes']}"
    how += ", compiled" if values["compile"] else ""
    return f"{values['benchmark']}: {what}, batch {values['batch']}, {values['dtype']}, {values['device']}, {how}"
