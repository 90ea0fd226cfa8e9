"""`rti encode`: the text encoder's states of all captions of a data set, computed once."""

from __future__ import annotations

from pathlib import Path

import typer

from rti.cli.models import DEVICE_HELP, MODEL_HELP
from rti.cli.options import number_option
from rti.cli.output import show_error, show_json, show_table
from rti.errors import InputError, check_choice

LENGTH = 256  # MiniT2I's


def encode(
    data: str = typer.Option(..., help="A folder of pictures, .tar shards, hf:NAME, or several as A@0.5,B@2."),
    output: Path = typer.Option(..., "--output", "-o", help="Folder of the cache; what is there already is kept."),
    text_encoder: str = typer.Option(None, help="Folder or hub name of the T5. Default: what the model names."),
    model: str = typer.Option(None, "--model", "-m", help=f"Use its text encoder and length. {MODEL_HELP}"),
    length: int = number_option(None, help=f"Tokens per caption. Default: the model's, or {LENGTH}."),
    batch: int = number_option(16, help="Captions at a time."),
    dtype: str = typer.Option("bfloat16", help="Keep states as bfloat16, float16 or float32."),
    device: str = typer.Option("auto", help=DEVICE_HELP),
    json: bool = typer.Option(False, "--json", help="Print one JSON line at the end."),
) -> None:
    """Encode every caption of a data set once, so that training need not run the text encoder.

    rti encode --data photos/ --model minit2i-b16 --output states/

    The same caption is encoded once. At Ctrl-C what was done is kept: to resume, run the same command again. After
    adding pictures to the data, do so too: only new captions are encoded. Weights of data parts (A@0.5) do not matter.
    """
    if model is None and text_encoder is None:
        raise InputError("no text encoder given; give --model or --text-encoder, for example --model minit2i-b16")

    from tqdm.auto import tqdm

    from rti.data import open_data
    from rti.precision import place
    from rti.text.cache import DTYPES, CacheWriter, TextCache, check_folder
    from rti.text.encoder import load_text_encoder
    from rti.training.state import on_stop_signal

    check_choice("dtype", dtype, DTYPES)
    check_folder(output)
    device, precision = place(device)
    source = open_data(data, 64, kind="text")  # pictures are not looked at, so their size does not matter
    captions = list(tqdm(source.captions(), desc="reading captions", unit="", leave=False, delay=1))
    if not captions:
        raise InputError(f"{source.describe()}: none of them has a caption")
    if model is not None:
        named, own = _of_model(model)
        if length not in (None, own):
            raise InputError(f"length {length} does not fit {model}, whose prompts have {own} tokens")
        text_encoder, length = text_encoder or str(named), own

    encoder = load_text_encoder(text_encoder, precision, device)
    stopping: list[int] = []
    # The signals outermost: the last shard is still to be written when they have stopped the work.
    with (
        on_stop_signal(lambda number, _: stopping.append(number)),
        CacheWriter(output, encoder, text_encoder, length or LENGTH, dtype) as writer,
    ):
        missing, encoded = writer.missing(captions), 0
        with tqdm(total=len(missing), desc="encoding", unit=" captions", delay=1) as bar:
            for done in writer.encode(missing, batch):
                bar.update(done)
                encoded += done
                if stopping:
                    break

    cache, shards = TextCache(output), list(output.glob("states-*.safetensors"))
    distinct, size = len(set(captions)), sum(path.stat().st_size for path in shards)
    values = {"captions": len(captions), "distinct": distinct, "already_there": distinct - len(missing)}
    values |= {"encoded": encoded, "shards": len(shards), "megabytes": round(size / 1e6, 3)}
    show_table(f"rti encode {data}", ("", ""), [(name.replace("_", " "), value) for name, value in values.items()])
    if json:
        told = {"output": str(output), "encoder": text_encoder, "width": cache.width, "length": cache.length}
        show_json(told | {"dtype": dtype} | values)
    if encoded < len(missing):
        show_error(f"interrupted with {len(missing) - encoded} captions to go; run the same command again to go on")
        raise typer.Exit(130)


def _of_model(model: str) -> tuple[Path | str, int]:
    """Where a model's text encoder is, and how long its prompts are."""
    from rti.resolve import describe
    from rti.text.encoder import text_encoder_of

    backbone, _, _ = describe(model)
    named = text_encoder_of(backbone)
    if backbone.conditioned_on != "text" or named is None:
        raise InputError(f"{model} takes class labels, no captions; there is nothing to encode for it")
    return named, backbone.config.prompt_length
