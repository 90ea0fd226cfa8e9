"""`rti scenes`: the procedural world as shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from rti.cli.options import command, number_option, seed_option
from rti.cli.output import show_values


@command
def scenes(
    count: int = number_option(..., "--count", "--images", help="How many pictures."),
    output: Path = typer.Option(..., "--output", "-o", help="Folder for the shards: new, or that of a run to resume."),
    size: int = number_option(
        64, help="Side of the pictures in pixels: what divides 64, or a multiple of it.", most=16384
    ),
    seed: int = seed_option(0, help="Seed of the world."),
    split: str = typer.Option("train", help="train, held-out (its captions ask for what train never shows), or all."),
    shard_size: int = number_option(5000, help="Pictures in a shard."),
    labels: bool = typer.Option(False, "--labels", help="One object a picture, with its class instead of a caption."),
) -> dict[str, Any]:
    """Write the scenes world as webdataset shards: pictures (png), captions (txt) or classes (cls), and scenes (json).

    The same arguments give the same pictures, those that training on --data scenes sees. To resume, run the same
    command again: shards that are there are whole, and stay.
    """
    from rti.lab.scenes.shards import write_shards
    from rti.lab.scenes.source import ScenesSource

    source = ScenesSource(size, seed, count, split, kind="labels" if labels else "text")
    written = write_shards(output, source, shard_size)
    sizes = [shard.stat().st_size for shard in output.glob("*.tar")]
    values = {"count": count, "written": written, "skipped": len(sizes) - written, "bytes": sum(sizes)}
    show_values(f"{output}: pictures, and shards", values)
    return values | dict(output=str(output), size=size, seed=seed, split=split, shard_size=shard_size, labels=labels)
