"""`rti web`: a page to turn the dial on."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from rti.cli.models import DEVICE_HELP, DTYPE_HELP, MODEL_HELP, load_pipeline
from rti.cli.options import number_option
from rti.shipped import DEFAULT


def web(
    model: str = typer.Argument(DEFAULT, help=MODEL_HELP),
    adapter: str = typer.Option(None, help="Folder or hub repository of an adapter for the model."),
    host: str = typer.Option("127.0.0.1", help="Address to serve on; 0.0.0.0 lets other machines in."),
    port: int = number_option(None, help="Port. Default: the first free one from 7860 on.", most=65535),
    study: Path = typer.Option(None, help="Folder of rti study, whose results become a third tab."),
    device: str = typer.Option("auto", help=DEVICE_HELP),
    dtype: str = typer.Option("float32", help=DTYPE_HELP),
    size: str = typer.Option(None, help="Size of the model where its files do not tell: b16, l16, ..."),
    text_encoder: str = typer.Option(None, help="Folder or hub name of the T5. Default: what the checkpoint names."),
    json: bool = typer.Option(False, "--json", help="Print the address as one JSON line once the page is there."),
) -> None:
    """A page in your browser: dense and region pictures from the same noise, and the regions of your photographs.

    It answers this machine alone unless --host says otherwise, and asks no
    other machine for anything. Ctrl-C ends it.
    """
    from rti.web.study import read_results

    results = read_results(study)
    print(f"rti web: loading {model}, then drawing once to warm up ...", file=sys.stderr, flush=True)

    from rti.web.page import build_page, first_prompt, launch
    from rti.web.studio import Studio

    studio = Studio(load_pipeline(model, adapter, dtype, device, size=size, text_encoder=text_encoder))
    studio.warm_up(0 if studio.by_label else first_prompt(studio))
    launch(build_page(studio, results), host, port, as_json=json)
