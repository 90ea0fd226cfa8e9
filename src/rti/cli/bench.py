"""`rti bench`: how fast a model is at each budget, beside what the arithmetic says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rti.cli.models import (
    DEVICE_HELP,
    DTYPE_HELP,
    GUIDANCE_BUDGET_HELP,
    MODEL_HELP,
    load_pipeline,
)
from rti.cli.options import budget_option, guidance_option, number_option, steps_option
from rti.cli.output import say, show_json, show_table, span
from rti.errors import InputError
from rti.presets import default_core, preset_of
from rti.shipped import shipped

if TYPE_CHECKING:
    from rti.backbones import Backbone
    from rti.elastic import ElasticModel


def bench(
    model: str = typer.Argument(help=MODEL_HELP),
    budgets: str = budget_option(None, help="Budgets, one row each, such as 512,256,0.125. Default: the trained ones."),
    text_budget: str = typer.Option(
        None, help="Text tokens in the trunk: 32, or several such as full,32, each with every budget. Default: full."
    ),
    guidance_budget: str = typer.Option(None, help=GUIDANCE_BUDGET_HELP),
    adapter: str = typer.Option(None, help="Folder or hub repository of an adapter for the model."),
    reductions: str = typer.Option(
        None, help="Untrained reductions to time, also in place of an adapter that ships. Default: region."
    ),
    setting: list[str] = typer.Option(None, "--set", help="A reduction's setting, such as --set cuts=merge."),
    core: str = typer.Option(None, help="Without an adapter: first and last block of the core. Default: the preset's."),
    init: str = typer.Option(None, help="'random': random weights instead of a checkpoint; times do not mind."),
    batch: int = number_option(1, help="Pictures at a time; guidance doubles them."),
    steps: int = steps_option(None, help="Time whole pictures of so many steps. Default: one guided forward pass."),
    guidance: float = guidance_option(),
    passes: int = number_option(3, help="How often each row is timed, in turn with all others; the median counts."),
    warmup: int = number_option(1, help="Passes before those.", least=0),
    compile: bool = typer.Option(
        False, "--compile", help="Compile the blocks, of dense too; dense as it was is timed beside."
    ),
    int8: bool = typer.Option(
        False,
        "--int8",
        help="The blocks' linear layers in int8, of dense too; dense as it was is timed beside.",
    ),
    reference: bool = typer.Option(False, "--reference", help="Also time dense with its attention written out."),
    dtype: str = typer.Option("float32", help=DTYPE_HELP),
    device: str = typer.Option("auto", help=DEVICE_HELP),
    threads: int = number_option(None, help="Threads on a CPU. Default: torch's own choice.", most=1024),
    plot: Path = typer.Option(None, help="Draw measured and analytic cost against the budget into this file."),
    json: bool = typer.Option(False, "--json", help="Print one JSON line at the end."),
) -> None:
    """Time dense and each budget in turn, and compare with the analytic count.

    Absolute times drift with the machine; the ratios of one run do not. All
    that a reduction adds is timed with it, and its LoRA is folded in. For
    example, at true size without any download:

    rti bench minit2i-b16 --init random --budgets 512,256,128,64
    """
    import torch

    from rti.lab.bench.benchmark import run_benchmark, twin
    from rti.method.budgets import parse_budget

    if plot is not None:
        from rti.images import check_output

        check_output(plot)
    if threads is not None:
        torch.set_num_threads(threads)
    texts = [None if text == "full" else parse_budget(text) for text in (text_budget or "full").split(",")]
    dense, models, default = _load(model, adapter, reductions, setting or [], span(core), init, dtype, device, texts)
    plain = twin(dense) if compile or int8 else None
    for module in (dense, *(one.backbone for one in models.values())):
        if int8:
            from rti.int8 import quantise

            quantise(module)
        if compile:
            module.compile_repeated_blocks()
    result = run_benchmark(
        dense,
        models,
        [parse_budget(text) for text in (budgets or default).split(",")],
        texts,
        None if guidance_budget is None else parse_budget(guidance_budget),
        batch=batch,
        steps=steps,
        guidance=guidance,
        passes=passes,
        warmup=warmup,
        reference=reference,
        plain=plain,
    )
    rows = result.as_rows()
    values = {
        "benchmark": model,
        "batch": batch,
        "steps": steps,
        "guidance": dense.flow.guidance_scale if guidance is None else guidance,
        "dtype": dtype,
        "device": str(dense.device),
        "threads": torch.get_num_threads(),
        "compile": compile,
        "int8": int8,
        "passes": passes,
        "torch": torch.__version__,
        "gemm_gflops": round(result.gemm / 1e9, 1),
        "dense_gflops": round(result.dense_rate / 1e9, 1),
        "dense_share_of_gemm": round(result.dense_rate / result.gemm, 3),
        "rows": rows,
    }
    _show(values)
    if plot is not None:
        from rti.lab.plots import cost_figure

        say(cost_figure(values, plot))
    if json:
        show_json(values)


def _load(
    model: str,
    adapter: str | None,
    reductions: str | None,
    settings: list[str],
    core: tuple[int, int] | None,
    init: str | None,
    dtype: str,
    device: str,
    texts: list[Any],
) -> tuple[Backbone, dict[str, ElasticModel], str]:
    """The frozen backbone alone, the models to compare with it, on the same weights, and the budgets to try."""
    from rti.elastic import attach
    from rti.lab.bench.benchmark import twin
    from rti.resolve import untrained_config

    pipe = load_pipeline(model, adapter, dtype, device, **({"init": init} if init else {}))
    ships = adapter is None and pipe.elastic is not None and shipped(model) is not None
    usual = None
    if ships and reductions:  # its own adapter is not what was asked for
        usual = pipe.elastic.config.core
        pipe.model = pipe.elastic.detach()
    if pipe.elastic is not None:
        given = [name for name, value in (("--reductions", reductions), ("--set", settings), ("--core", core)) if value]
        if given:
            instead = ", or name the --reductions to time in its place" if ships else ""
            why = f"{model} has an adapter, which says so itself; leave it out{instead}"
            raise InputError(f"{given[0]} given, but {why}")
        trained = pipe.elastic
        with trained.dense() as backbone:
            dense = twin(backbone)
        return dense, {trained.config.name: trained.fuse(keep=False)}, "0.5,0.25,0.125,0.0625"

    preset = preset_of(model)
    dense, models = pipe.backbone, {}
    usual = usual or (preset.core if preset else default_core(dense.depth))
    for name in (reductions or "region").split(","):
        text_regions = any(text is not None for text in texts)
        config = untrained_config(name, settings, core, usual=usual, text_regions=text_regions)
        models[name] = attach(twin(dense), config).fuse(keep=False).eval()
    return dense, models, ",".join(map(str, preset.budgets)) if preset else "0.5,0.25,0.125,0.0625"


def _show(values: dict[str, Any]) -> None:
    what = f"{values['steps']} steps" if values["steps"] else "one guided forward pass"
    title = f"{values['benchmark']}: {what}, batch {values['batch']}, {values['dtype']}, {values['device']}, "
    title += (
        f"{values['threads']} threads, median of {values['passes']}"
        + (", compiled" if values["compile"] else "")
        + (", int8" if values["int8"] else "")
    )
    several = len({row["model"] for row in values["rows"] if row["budget"] != "dense"}) > 1
    cells = []
    for row in values["rows"]:
        name = row["model"] if row["budget"] == "dense" else str(row["budget"])
        name = f"{row['model']} {name}" if several and row["budget"] != "dense" else name
        cells.append(
            [
                name,
                row["text_budget"] or "full",
                row["seconds"],
                row["images_per_second"],
                f"{row['speedup']:.2f}x",
                f"{row['analytic_speedup']:.2f}x",
                f"{100 * row['efficiency']:.0f} %",
                "" if row["peak_memory_gigabytes"] is None else f"{row['peak_memory_gigabytes']:.2f}",
            ]
        )
    titles = ("budget", "text", "seconds", "images/s", "faster", "analytic", "of it", "peak GB")
    show_table(title, titles, cells)
    rows = [row for row in values["rows"] if row["parts"]]
    names = [name for name, row in zip([cell[0] for cell in cells], values["rows"], strict=True) if row["parts"]]
    parts = list(dict.fromkeys(part for row in rows for part in row["parts"]))
    shares = [[part, *(_share(row, part) for row in rows)] for part in sorted(parts, key=_in_order)]
    show_table("Where the time goes, % of a run (interface: all around the core)", ("", *names), shares)
    say(
        f"dense runs at {values['dense_gflops']} GFLOP/s, {100 * values['dense_share_of_gemm']:.0f} % of a plain "
        f"linear layer's {values['gemm_gflops']}"
    )


# The order of a forward pass; what a reduction calls its own parts comes before what it adds in all.
_ORDER = ("text, once a prompt", "embed", "trunk", "prelude", "partition", "read", "core", "write")
_LAST = ("interface", "coda", "head", "run")


def _in_order(part: str) -> tuple[int, int]:
    if part in _LAST:
        return 2, _LAST.index(part)
    return (0, _ORDER.index(part)) if part in _ORDER else (1, 0)


def _share(row: dict[str, Any], part: str) -> str:
    return f"{100 * row['parts'][part] / row['parts']['run']:.1f}" if part in row["parts"] else ""
