"""`rti info` and `rti flops`: what a model is, and what a budget costs."""

from __future__ import annotations

import typer

from rti.cli.models import MODEL_HELP
from rti.cli.options import budget_option
from rti.cli.output import show_json, show_table, span
from rti.errors import InputError

MODEL = typer.Argument(help=MODEL_HELP)
CORE = typer.Option(None, help="First and last block of the core, such as 3,13. Default: the paper's.")
REDUCTION = typer.Option(None, help="A token reduction by name, untrained. Default: the model's, or region.")
SETTING = typer.Option(None, "--set", help="A setting of the reduction, such as --set extra_groups=3.")
JSON = typer.Option(False, "--json", help="Print one JSON line at the end.")


def info(
    model: str = MODEL,
    budget: str = budget_option("0.25", help="The budget for which to list tokens per block: 256, 0.25, 25%."),
    core: str = CORE,
    reduction: str = REDUCTION,
    setting: list[str] = SETTING,
    json: bool = JSON,
) -> None:
    """Parameters, trainable parameters, grid and core of a model, and which blocks run on how many tokens."""
    from rti import cost
    from rti.method.budgets import parse_budget, resolve_budget
    from rti.resolve import describe

    backbone, module, config = describe(model, span(core), reduction, setting)
    regions = resolve_budget(parse_budget(budget), backbone.patches)
    parameters = cost.parameter_count(backbone)
    trainable = cost.trainable_count(backbone, module, config)
    tokens = cost.tokens_per_block(backbone, module, regions)
    blocks = cost.blocks_run(backbone, module)
    first, last = config.core
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
        "sampler": backbone.flow.sampler,
        "steps": backbone.flow.steps,
        "guidance": backbone.flow.guidance_scale,
        "budget": regions,
        "tokens_per_block": tokens,
        "blocks_run": blocks,
    }
    share = f"{100 * values['trainable_share']:.1f} %"
    rows = [
        ("parameters", f"{parameters / 1e6:.1f} M"),
        ("trainable (LoRA and interface)", f"{trainable / 1e6:.1f} M ({share} of all)"),
        ("picture", "{} x {} pixels".format(*backbone.image_size)),
        ("grid", "{} x {}".format(*backbone.grid) + f" = {backbone.patches} patches of {backbone.patch_size} pixels"),
        ("core", f"blocks {first} to {last} of {backbone.depth}"),
        ("reduction", ", ".join(f"{key} {value}" for key, value in config.to_dict().items() if key != "core")),
        ("sampler", f"{backbone.flow.sampler}, {backbone.flow.steps} steps, guidance {backbone.flow.guidance_scale}"),
    ]
    show_table(f"{model} ({backbone.family})", ("", ""), rows)
    show_table(f"Image tokens at budget {regions}", ("blocks", "tokens"), _runs(blocks, tokens))
    if json:
        show_json(values)


def _runs(blocks: list[int], tokens: list[int]) -> list[tuple[str, int]]:
    """Neighbouring blocks with the same number of tokens, as one row."""
    rows: list[tuple[int, int, int]] = []
    for block, count in zip(blocks, tokens, strict=True):
        if rows and rows[-1][1:] == (block - 1, count):
            rows[-1] = (rows[-1][0], block, count)
        else:
            rows.append((block, block, count))
    return [(f"{first}" if first == last else f"{first} to {last}", count) for first, last, count in rows]


def flops(
    model: str = MODEL,
    budgets: str = budget_option(None, help="Budgets, such as 64,256,0.5. Default: those the model is trained for."),
    text_budget: str = typer.Option(None, help="Text tokens in the trunk, such as 32 or 0.25. Default: all."),
    core: str = CORE,
    reduction: str = REDUCTION,
    setting: list[str] = SETTING,
    json: bool = JSON,
) -> None:
    """Analytic cost of a forward pass at each budget, in percent of the dense one.

    Counts the trunk's linear layers and attention over image and side tokens (the paper's figure "Cost of one forward
    pass against the budget"), and beside it the plain count of image tokens.
    """
    from rti import cost
    from rti.method.budgets import parse_budget, resolve_budget
    from rti.presets import find_preset
    from rti.resolve import describe

    backbone, module, _ = describe(model, span(core), reduction, setting)
    preset = find_preset(model)
    if budgets is None:
        budgets = ",".join(map(str, preset.budgets)) if preset else "0.0625,0.125,0.25,0.5"
    dense, text = cost.dense_flops(backbone), None
    if text_budget is not None:
        from rti.method.text_regions import resolve_text_budget

        if backbone.conditioned_on != "text":
            raise InputError(f"text budget {text_budget} given, but {model} draws from labels and has no text")
        text = resolve_text_budget(parse_budget(text_budget), backbone.config.prompt_length)
    rows = []
    for typed in budgets.split(","):
        regions = resolve_budget(parse_budget(typed), backbone.patches)
        tokens = cost.tokens_per_block(backbone, module, regions)
        used = cost.reduced_flops(backbone, module, regions, text)
        rows.append(
            {
                "budget": regions,
                "percent_of_dense": round(100 * used / dense, 1),
                "speedup": round(dense / used, 3),
                "gflops": round(used / 1e9, 1),
                "percent_of_image_tokens": round(100 * sum(tokens) / (backbone.patches * backbone.depth), 1),
            }
        )
    titles = ("budget", "% of dense", "analytic speed-up", "GFLOP", "% of image tokens")
    show_table(
        f"{model}, one forward pass of one picture; dense {dense / 1e9:.1f} GFLOP"
        + ("" if text is None else f"; {text} text tokens"),
        titles,
        [[*r.values()] for r in rows],
    )
    if json:
        show_json(
            {
                "model": model,
                "core": list(module.config.core),
                "text_budget": text,
                "dense_gflops": round(dense / 1e9, 1),
                "rows": rows,
            }
        )
