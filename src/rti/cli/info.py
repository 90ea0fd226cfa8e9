"""`rti info`: what a model is, and what a budget costs."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import typer

from rti.cli.options import MODEL, budget_option, command
from rti.cli.output import show_table, show_values, span
from rti.errors import InputError
from rti.method.budgets import parse_budget, resolve_budget


@command
def info(
    model: str = MODEL,
    budgets: str = budget_option("0.25", help="Budgets whose tokens and cost to list, such as 64,256,0.5."),
    text_budget: str = typer.Option(None, help="Text tokens in the trunk, such as 32 or 0.25. Default: all."),
    core: str = typer.Option(None, help="First and last block of the core, such as 3,13. Default: the paper's."),
    reduction: str = typer.Option(None, help="A token reduction by name, untrained. Default: the model's, or region."),
    setting: list[str] = typer.Option(None, "--set", help="A setting of the reduction: --set extra_groups=3."),
) -> dict[str, Any]:
    """Parameters, trainable parameters, grid and core of a model; which blocks run on how many tokens, at what cost.

    The cost is analytic: it counts the trunk's linear layers and attention over image and side tokens of a forward
    pass (the paper's figure "Cost of one forward pass against the budget"), and beside it the plain image tokens.
    """
    from rti import cost
    from rti.resolve import describe

    backbone, module, config = describe(model, span(core), reduction, setting)
    flow, dense, text = backbone.flow, cost.dense_flops(backbone), None
    if text_budget is not None:
        if backbone.conditioned_on != "text":
            raise InputError(f"text budget {text_budget} given, but {model} draws from labels and has no text")
        text = resolve_budget(parse_budget(text_budget), backbone.config.prompt_length, "text budget")
    rows, tokens = [], []
    for typed in budgets.split(","):
        regions = resolve_budget(parse_budget(typed), backbone.patches)
        tokens.append(cost.tokens_per_block(backbone, module, regions))
        used = cost.reduced_flops(backbone, module, regions, text)
        row = {"budget": regions, "percent_of_dense": round(100 * used / dense, 1), "speedup": round(dense / used, 3)}
        row["gflops"] = round(used / 1e9, 1)
        row["percent_of_image_tokens"] = round(100 * sum(tokens[-1]) / (backbone.patches * backbone.depth), 1)
        rows.append(row)
    parameters, trainable = cost.parameter_count(backbone), cost.trainable_count(backbone, module, config)
    values = {
        "parameters": parameters,
        "trainable": trainable,
        "trainable_share": trainable / (parameters + trainable),
        "image_size": list(backbone.image_size),
        "patch_size": backbone.patch_size,
        "grid": list(backbone.grid),
        "patches": backbone.patches,
        "depth": backbone.depth,
        "core": list(config.core),
        "reduction": config.to_dict(),
        "sampler": flow.sampler,
        "steps": flow.steps,
        "guidance": flow.guidance_scale,
        "dense_gflops": round(dense / 1e9, 1),
    }
    show_values(f"{model} ({backbone.family})", values)
    blocks = cost.blocks_run(backbone, module)
    columns = ("blocks", *(f"R = {row['budget']}" for row in rows))
    show_table("Image tokens", columns, _spans(blocks, list(zip(*tokens, strict=True))))
    titles = ("budget", "% of dense", "analytic speed-up", "GFLOP", "% of image tokens")
    title = "Cost of one forward pass of one picture" + ("" if text is None else f", {text} text tokens")
    show_table(title, titles, [[*row.values()] for row in rows])
    values |= {"budget": rows[0]["budget"], "tokens_per_block": tokens[0], "blocks_run": blocks}
    return {"model": model, "family": backbone.family} | values | {"text_budget": text, "rows": rows}


def _spans(blocks: list[int], tokens: list[tuple[int, ...]]) -> list[tuple[str | int, ...]]:
    """Neighbouring blocks with the same numbers of tokens, one for each budget, as one row."""
    rows = []
    runs = enumerate(zip(blocks, tokens, strict=True))
    for (_, counts), run in groupby(runs, key=lambda place: (place[1][0] - place[0], place[1][1])):
        some = [block for _, (block, _) in run]
        rows.append((f"{some[0]}" if len(some) == 1 else f"{some[0]} to {some[-1]}", *counts))
    return rows
