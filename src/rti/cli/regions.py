"""`rti regions`: the paper's Figure 1 for any photograph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from rti.cli.options import budget_option, command, number_option
from rti.cli.output import show_values
from rti.method.config import CUT_NAMES, ORDER_NAMES


@command
def regions(
    image: Path = typer.Argument(help="A picture: png, jpg, webp, ..."),
    budget: str = budget_option("0.25", help="How many regions: 256, 0.25 or 25% of the patches."),
    cuts: str = typer.Option("merge", help=f"The rule that places the cuts: {', '.join(CUT_NAMES)}."),
    order: str = typer.Option("hilbert", help=f"The walk over the patches: {', '.join(ORDER_NAMES)}."),
    patch: int = number_option(16, help="Side of a patch in pixels.", most=16384),
    size: int = number_option(512, help="The longer side of the picture is scaled to this.", most=16384),
    output: Path = typer.Option("regions.png", "--output", "-o", help="Where to write the drawing."),
) -> dict[str, Any]:
    """Draw the regions of a photograph beside the uniform grid. Features are the patches' pixels: no model needed."""
    import torch

    from rti.images import check_output, contact_sheet, draw_regions, save_image
    from rti.lab.probes.photograph import cut_photograph, load_photograph
    from rti.method.budgets import parse_budget, resolve_budget

    check_output(output)
    picture, grid = load_photograph(image, size, patch)
    patches = grid[0] * grid[1]
    count = resolve_budget(parse_budget(budget), patches)
    found, told = cut_photograph(picture, grid, patch, count, cuts, order)
    drawn = [draw_regions(picture, ids, grid) for ids in (torch.arange(patches), found)]
    labels = (f"uniform grid: {patches} tokens", f"{count} region tokens ({cuts} on the {order.title()} order)")
    path = save_image(contact_sheet([drawn], column_labels=labels), output)
    values = {"image": str(image), "grid": list(grid), "patches": patches, "budget": count}
    values |= {"cuts": cuts, "order": order} | told | {"output": str(path)}
    show_values(f"{image}: variance of the pixels that regions retain", values)
    return values
