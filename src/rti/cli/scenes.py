"""`rti scenes`: the procedural world as shards."""

from __future__ import annotations

from pathlib import Path

import typer

from rti.cli.options import number_option, seed_option
from rti.cli.output import show_json, show_table


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
    json: bool = typer.Option(False, "--json", help="Print one JSON line at the end."),
) -> None:
    """Write the scenes world as webdataset shards: pictures (png), captions (txt) or classes (cls), and scenes (json).

    The same arguments give the same bytes, and the pictures that training on --data scenes sees; they are not
    compressed, 15 kilobytes each at 64 pixels. To resume, run the same command again.
    """
    from dataclasses import asdict

    from tqdm.auto import tqdm

    from rti.lab.scenes.shards import ShardSettings, write_shards

    settings = ShardSettings(count, size, seed, split, shard_size, labels)
    with tqdm(total=count, unit="picture", delay=1) as bar:  # silent if nothing is to be done, or refused
        result = write_shards(output, settings, bar.update)
    values = {"output": str(output)} | asdict(settings) | result._asdict()
    rows = [
        ("pictures", count),
        ("shards written", result.written),
        ("shards that were there", result.skipped),
        ("megabytes", round(result.bytes / 1e6, 1)),
    ]
    show_table(str(output), ("", ""), [(name, f"{value:,}") for name, value in rows])
    if json:
        show_json(values)
