"""`rti encode`: the text encoder's states of all captions of a data set, computed once."""

from __future__ import annotations

from pathlib import Path

import typer

from rti.cli.models import DEVICE_HELP, MODEL_HELP
from rti.cli.output import show_error, show_json, show_table
from rti.errors import InputError

LENGTH = 256  # MiniT2I's


def encode(
    data: str = typer.Option(..., help="A folder of pictures, .tar shards, hf:NAME, or several as A@0.5,B@2."),
    output: Path = typer.Option(..., "--output", "-o", help="Folder of the cache; what is there already is kept."),
    text_encoder: str = typer.Option(None, help="Folder or hub name of the T5. Default: what the model names."),
    model: str = typer.Option(None, "--model", "-m", help=f"Use its text encoder and length. {MODEL_HELP}"),
    length: int = typer.Option(None, help=f"Tokens per caption. Default: the model's, or {LENGTH}."),
    batch: int = typer.Option(16, help="Captions at a time."),
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
    for name, value in (("length", length), ("batch", batch)):
        if value is not None and value < 1:
            raise InputError(f"{name} {value} is not usable; allowed: 1 or more")

    import torch
    from tqdm.auto import tqdm

    from rti.data import open_data
    from rti.text.cache import SHARD, CacheSettings, CacheWriter, TextCache, check_folder, encode_captions, fingerprint
    from rti.text.encoder import load_text_encoder
    from rti.training.signals import on_stop_signal

    CacheSettings("", "", 1, dtype)  # refuses what is no dtype
    check_folder(output)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(f"device {device!r} is not usable here: {str(error).splitlines()[0]}") from None
    source = open_data(data, 64, kind="text")  # pictures are not looked at, so their size does not matter
    captions = list(tqdm(source.captions(), desc="reading captions", unit="", leave=False, delay=1))
    if not captions:
        raise InputError(f"{source.describe()}: none of them has a caption")
    if model is not None:
        named, own = _of_model(model)
        if length not in (None, own):
            raise InputError(f"length {length} does not fit {model}, whose prompts have {own} tokens")
        text_encoder, length = text_encoder or str(named), own

    encoder = load_text_encoder(text_encoder, torch.float32, device)
    settings = CacheSettings(text_encoder, fingerprint(encoder), length or LENGTH, dtype)
    stopping: list[int] = []
    # The signals outermost: the last shard is still to be written when they have stopped the work.
    with on_stop_signal(lambda number, _: stopping.append(number)), CacheWriter(output, settings) as writer:
        missing, encoded = writer.missing(captions), 0
        with tqdm(total=len(missing), desc="encoding", unit=" captions", delay=1) as bar:
            for done in encode_captions(missing, encoder, writer, batch):
                bar.update(done)
                encoded += done
                if stopping:
                    break

    cache = TextCache.open(output)
    size = sum((output / SHARD.format(number)).stat().st_size for number in cache.shards)
    distinct = len(set(captions))
    values = {"captions": len(captions), "distinct": distinct, "already_there": distinct - len(missing)}
    values |= {"encoded": encoded, "shards": len(cache.shards), "megabytes": round(size / 1e6, 3)}
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
