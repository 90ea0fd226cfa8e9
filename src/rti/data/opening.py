"""From what a user writes after --data to a source."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.metadata import entry_points

from rti.data.braces import split_commas
from rti.data.fetch import is_remote
from rti.data.folder import CaptionFolder, ClassFolder, folder_kind, pictures_in, walk
from rti.data.hub import PREFIX, open_hub
from rti.data.mixture import Mixture
from rti.data.photographs import open_photographs
from rti.data.shards import open_shards
from rti.data.source import KINDS, Size, Source
from rti.errors import InputError, check_whole

FORMS = (
    "scenes, scenes:TASK, photographs:FOLDER[:held-out], a folder of pictures, "
    ".tar shards (file, folder, {000..009} pattern, http(s)://, hf://, s3:// or gs://), "
    "hf:NAME[:split], or several of these as A@WEIGHT,B@WEIGHT"
)


def open_data(spec: str, size: Size, flip: bool = False, seed: int = 0, kind: str | None = None) -> Source:
    """Open "scenes", a path, an address, "hf:NAME[:split]", or several with weights: "a.tar@0.06,b/@0.016".

    "scenes:counting" is one task of the world alone: with weights, a mix of tasks other than the even one.

    size  pictures are scaled and cropped to it, a side or (height, width)
    flip  mirrored pictures as well
    seed  of scenes, mixtures and many remote shards; the shuffling of other sources is the affair of `Order`
    kind  "text" or "labels" if the model needs that; without it, whatever is found
    """
    check_whole("seed", seed, 2**64 - 1, least=0)
    if not isinstance(flip, bool):
        raise InputError(f"flip must be true or false, got {flip!r}")
    if kind is not None and (not isinstance(kind, str) or kind not in KINDS):
        raise InputError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    if not isinstance(spec, str):
        raise InputError(f"data {spec!r} is no text; allowed are {FORMS}")
    # A path that exists is taken as it is, commas and all.
    parts = [(spec, None)] if os.path.exists(spec) else [_weighted(part.strip()) for part in split_commas(spec)]
    for part, weight in parts:
        if len(parts) > 1 and weight is None:
            raise InputError(f"each of several sources needs a weight, as A@0.5,B@2; {part!r} in {spec!r} has none")
        if not part:
            raise InputError(f"no data in {spec!r}; allowed are {FORMS}")
    sources = [_open(part, size, flip, seed, kind) for part, _ in parts]
    for (part, _), source in zip(parts, sources, strict=True):
        if kind not in (None, source.kind):
            raise InputError(f"{part} is data with {source.kind}, but {kind} is needed")
    return sources[0] if len(sources) == 1 else Mixture(sources, [weight for _, weight in parts], seed)


def _weighted(part: str) -> tuple[str, float | None]:
    """An @ that is not followed by a number belongs to the name (a user in an address, a revision)."""
    name, at, weight = part.rpartition("@")
    try:
        return (name, float(weight)) if at else (part, None)
    except ValueError:
        return part, None


def _open(part: str, size: Size, flip: bool, seed: int, kind: str | None) -> Source:
    name, _, rest = part.partition(":")
    world = _world(name)
    if world is not None:
        return world(rest, size, flip, seed, kind)
    if part.startswith(PREFIX) and not is_remote(part):
        return open_hub(part, size, flip, kind)
    if os.path.isdir(part):
        shards, pictures = sum(path.endswith(".tar") for path in walk(part)), len(pictures_in(part))
        if shards and pictures:
            raise InputError(f"{part} mixes {shards} .tar shards with {pictures} pictures; give one kind of them")
        if not shards:
            return (CaptionFolder if (kind or folder_kind(part)) == "text" else ClassFolder)(part, size, flip)
    elif not is_remote(part) and not part.endswith(".tar"):
        state = "is not a .tar file" if os.path.exists(part) else "does not exist"
        raise InputError(f"{part} {state}; allowed are {FORMS}")
    return open_shards(part, size, flip, kind, seed)


def _world(name: str) -> Callable[..., Source] | None:
    """What opens NAME:REST: a source that is no file, of ours or of an installed package (entry point "rti.worlds").

    Called with (rest, size, flip, seed, kind). The scenes world comes this way: the laboratory is built on top of this.
    """
    if name == "photographs":
        return open_photographs
    found = [point for point in entry_points(group="rti.worlds") if point.name == name]
    return found[0].load() if found else None
