"""`rti info` and `rti flops`: what a model is, and what a budget costs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any

import typer

from rti.cli.options import MODEL, budget_option, command
from rti.cli.output import show_table, show_values, span
from rti.errors import InputError
from rti.method.budgets import parse_budget, resolve_budget
from rti.presets import find_preset


@dataclass(frozen=True)
class Described:
    """A model that is looked at and not run: perhaps with another core, or another reduction."""

    core: str = typer.Option(None, help="First and last block of the core, such as 3,13. Default: the paper's.")
    reduction: str = typer.Option(None, help="A token reduction by name, untrained. Default: the model's, or region.")
    setting: list[str] = typer.Option(None, "--set", help="A setting of the reduction: --set extra_groups=3.")

    def load(self, model: str) -> tuple[Any, Any, Any]:
        """Its backbone, reduction and config."""
        from rti.resolve import describe

        return describe(model, span(self.core), self.reduction, self.setting)


@command
def info(
    described: Described,
    model: str = MODEL,
    budget: str = budget_option("0.25", help="The budget for which to list tokens per block: 256, 0.25, 25%."),
) -> dict[str, Any]:
    """Parameters, trainable parameters, grid and core of a model, and which blocks run on how many tokens."""
    from rti import cost

    backbone, module, config = described.load(model)
    flow, (first, last) = backbone.flow, config.core
    parameters, trainable = cost.parameter_count(backbone), cost.trainable_count(backbone, module, config)
    regions = resolve_budget(parse_budget(budget), backbone.patches)
    values = {
        "model": model,
        "family": backbone.family,
        "parameters": parameters,
        "trainable": trainable,
        "trainable_share": trainable / (parameters + trainable),
        "image_size": list(backbone.image_size),
        "patch_size": backbone.patch_size,
        "grid": list(backbone.grid),
        "patches": backbone.patches,
        "depth": backbone.depth,
        "core": [first, last],
        "reduction": config.to_dict(),
        "sampler": flow.sampler,
        "steps": flow.steps,
        "guidance": flow.guidance_scale,
        "budget": regions,
        "tokens_per_block": cost.tokens_per_block(backbone, module, regions),
        "blocks_run": cost.blocks_run(backbone, module),
    }
    show_values(f"{model} ({backbone.family})", {name: values[name] for name in list(values)[2:-3]})
    spans = _spans(values["blocks_run"], values["tokens_per_block"])
    show_table(f"Image tokens at budget {regions}", ("blocks", "tokens"), spans)
    return values


def _spans(blocks: list[int], tokens: list[int]) -> list[tuple[str, int]]:
    """Neighbouring blocks with the same number of tokens, as one row."""
    rows = []
    runs = enumerate(zip(blocks, tokens, strict=True))
    for (_, count), run in groupby(runs, key=lambda place: (place[1][0] - place[0], place[1][1])):
        some = [block for _, (block, _) in run]
        rows.append((f"{some[0]}" if len(some) == 1 else f"{some[0]} to {some[-1]}", count))
    return rows


@command
def flops(
    described: Described,
    model: str = MODEL,
    budgets: str = budget_option(None, help="Budgets, such as 64,256,0.5. Default: those the model is trained for."),
    text_budget: str = typer.Option(None, help="Text tokens in the trunk, such as 32 or 0.25. Default: all."),
) -> dict[str, Any]:
    """Analytic cost of a forward pass at each budget, in percent of the dense one.

    Counts the trunk's linear layers and attention over image and side tokens (the paper's figure "Cost of one forward
    pass against the budget"), and beside it the plain count of image tokens.
    """
    from rti import cost

    backbone, module, config = described.load(model)
    preset = find_preset(model)
    if budgets is None:
        budgets = ",".join(map(str, preset.budgets)) if preset else "0.0625,0.125,0.25,0.5"
    dense, text = cost.dense_flops(backbone), None
    if text_budget is not None:
        if backbone.conditioned_on != "text":
            raise InputError(f"text budget {text_budget} given, but {model} draws from labels and has no text")
        text = resolve_budget(parse_budget(text_budget), backbone.config.prompt_length, "text budget")
    rows = []
    for typed in budgets.split(","):
        regions = resolve_budget(parse_budget(typed), backbone.patches)
        tokens = cost.tokens_per_block(backbone, module, regions)
        used = cost.reduced_flops(backbone, module, regions, text)
        row = {"budget": regions, "percent_of_dense": round(100 * used / dense, 1), "speedup": round(dense / used, 3)}
        row["gflops"] = round(used / 1e9, 1)
        row["percent_of_image_tokens"] = round(100 * sum(tokens) / (backbone.patches * backbone.depth), 1)
        rows.append(row)
    gflops = round(dense / 1e9, 1)
    title = f"{model}, one forward pass of one picture; dense {gflops} GFLOP"
    title += "" if text is None else f"; {text} text tokens"
    titles = ("budget", "% of dense", "analytic speed-up", "GFLOP", "% of image tokens")
    show_table(title, titles, [[*row.values()] for row in rows])
    return {"model": model, "core": list(config.core), "text_budget": text, "dense_gflops": gflops, "rows": rows}
