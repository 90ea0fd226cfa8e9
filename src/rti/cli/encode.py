"""`rti encode`: the text encoder's states of all captions of a data set, computed once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from rti.cli.models import DEVICE_HELP, MODEL_HELP
from rti.cli.options import command, number_option
from rti.cli.output import show_error, show_values
from rti.errors import InputError, check_choice

LENGTH = 256  # MiniT2I's


@command
def encode(
    data: str = typer.Option(..., help="A folder of pictures, .tar shards, hf:NAME, or several as A@0.5,B@2."),
    output: Path = typer.Option(..., "--output", "-o", help="Folder of the cache; what is there already is kept."),
    text_encoder: str = typer.Option(None, help="Folder or hub name of the T5. Default: what the model names."),
    model: str = typer.Option(None, "--model", "-m", help=f"Use its text encoder and length. {MODEL_HELP}"),
    length: int = number_option(None, help=f"Tokens per caption. Default: the model's, or {LENGTH}."),
    batch: int = number_option(16, help="Captions at a time."),
    dtype: str = typer.Option("bfloat16", help="Keep states as bfloat16, float16 or float32."),
    device: str = typer.Option("auto", help=DEVICE_HELP),
) -> dict[str, Any]:
    """Encode every caption of a data set once, so that training need not run the text encoder.

    rti encode --data photos/ --model minit2i-b16 --output states/

    The same caption is encoded once. At Ctrl-C what was done is kept: to resume, run the same command again. After
    adding pictures to the data, do so too: only new captions are encoded. Weights of data parts (A@0.5) do not matter.
    """
    from tqdm.auto import tqdm

    from rti.data import open_data
    from rti.precision import place
    from rti.resolve import describe
    from rti.text.cache import DTYPES, CacheWriter, check_folder
    from rti.text.encoder import load_text_encoder, text_encoder_of
    from rti.training.signals import on_stop_signal

    check_choice("dtype", dtype, DTYPES)
    check_folder(output)
    device, precision = place(device)
    if model is not None:
        backbone, _, _ = describe(model)
        named, own = text_encoder_of(backbone), getattr(backbone.config, "prompt_length", None)
        if backbone.conditioned_on != "text" or named is None:
            raise InputError(f"{model} takes class labels, no captions; there is nothing to encode for it")
        if length not in (None, own):
            raise InputError(f"length {length} does not fit {model}, whose prompts have {own} tokens")
        text_encoder, length = text_encoder or str(named), own
    elif text_encoder is None:
        raise InputError("no text encoder given; give --model or --text-encoder, for example --model minit2i-b16")
    source = open_data(data, 64, kind="text")  # pictures are not looked at, so their size does not matter
    captions = list(tqdm(source.captions(), desc="reading captions", unit="", leave=False, delay=1))
    if not captions:
        raise InputError(f"{source.describe()}: none of them has a caption")

    encoder, stopping = load_text_encoder(text_encoder, precision, device), []
    # The signals outermost: the last shard is still to be written when they have stopped the work.
    with (
        on_stop_signal(lambda number, _: stopping.append(number)),
        CacheWriter(output, encoder, text_encoder, length or LENGTH, dtype) as writer,
    ):
        missing, encoded = writer.missing(captions), 0
        batches = -(-len(missing) // batch)
        for done in tqdm(writer.encode(missing, batch), desc="encoding", total=batches, unit=" batches", delay=1):
            encoded += done
            if stopping:
                break

    sizes, distinct = [path.stat().st_size for path in output.glob("states-*.safetensors")], len(set(captions))
    values = {"captions": len(captions), "distinct": distinct, "already_there": distinct - len(missing)}
    values |= {"encoded": encoded, "shards": len(sizes), "megabytes": round(sum(sizes) / 1e6, 3)}
    show_values(f"rti encode {data}", values)
    if encoded < len(missing):
        show_error(f"interrupted with {len(missing) - encoded} captions to go; run the same command again to go on")
        raise typer.Exit(130)
    settings = {key: writer.cache.settings[key] for key in ("width", "length", "dtype")}
    return {"output": str(output), "encoder": text_encoder} | settings | values
