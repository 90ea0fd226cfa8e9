"""`rti web`: a page to turn the dial on."""

from __future__ import annotations

import sys

import typer

from rti.cli.options import MODEL_HELP, Runtime, command, number_option
from rti.cli.output import show_json
from rti.shipped import DEFAULT


@command
def web(
    runtime: Runtime,
    model: str = typer.Argument(DEFAULT, help=MODEL_HELP),
    host: str = typer.Option("127.0.0.1", help="Address to serve on; 0.0.0.0 lets other machines in."),
    port: int = number_option(None, help="Port. Default: the first free one from 7860 on.", most=65535),
    json: bool = typer.Option(False, "--json", help="Print the address as one JSON line once the page is there."),
) -> None:
    """A page in your browser: dense and region pictures from the same noise, with the regions of the latter.

    It answers this machine alone unless --host says otherwise, and asks no
    other machine for anything. Ctrl-C ends it.
    """
    print(f"rti web: loading {model}, then drawing once to warm up ...", file=sys.stderr, flush=True)

    from rti.web.page import build_page, launch
    from rti.web.studio import Studio

    studio = Studio(runtime.load(model))
    studio.warm_up()
    page = build_page(studio)
    address = launch(page, host, port)
    print(f"rti web: {address}  (Ctrl-C ends it)", flush=True)
    if json:
        show_json({"url": address})
    page.block_thread()
