"""From what a user writes after --data to a source."""

from __future__ import annotations

import itertools
import math
import os
import re
from importlib.metadata import entry_points

from rti.data.fetch import is_remote
from rti.data.folder import FolderSource, is_picture, walk
from rti.data.hub import open_hub
from rti.data.mixture import Mixture
from rti.data.photographs import PhotographSource
from rti.data.shards import WINDOW, RemoteShards, ShardSource
from rti.data.source import KINDS, Size, Source
from rti.errors import InputError, check_choice, check_switch, check_whole

FORMS = (
    "scenes, scenes:TASK, photographs:FOLDER[:held-out], a folder of pictures, "
    ".tar shards (file, folder, {000..009} pattern, http(s)://, hf://, "
    "s3:// or gs://), hf:NAME[:split], or several of these as A@WEIGHT,B@WEIGHT"
)
_MOST_NAMES = 1_000_000  # of one pattern; a typing error in a range must not fill the memory


def open_data(spec: str, size: Size, flip: bool = False, seed: int = 0, kind: str | None = None) -> Source:
    """Open "scenes", a path, an address, "hf:NAME[:split]", or several with weights: "a.tar@0.06,b/@0.016".

    "scenes:counting" is one task of the world alone: with weights, a mix of tasks other than the even one.

    size  pictures are scaled and cropped to it, a side or (height, width)
    flip  mirrored pictures as well
    seed  of scenes, mixtures and many remote shards; the shuffling of other sources is the affair of `Shuffle`
    kind  "text" or "labels" if the model needs that; without it, whatever is found
    """
    check_whole("seed", seed, 2**64 - 1, least=0)
    check_switch("flip", flip)
    if kind is not None:
        check_choice("kind", kind, KINDS)
    if not isinstance(spec, str):
        raise InputError(f"data {spec!r} is no text; allowed are {FORMS}")
    # A path that exists is taken as it is, commas and all; commas in braces belong to a pattern.
    whole = os.path.exists(spec)
    parts = [(spec, None)] if whole else [_weighted(part.strip()) for part in re.split(r",(?![^{]*\})", spec)]
    names, weights = zip(*parts, strict=True)
    if not all(names):
        raise InputError(f"no data in {spec!r}; allowed are {FORMS}")
    if len(parts) > 1 and None in weights:
        raise InputError(f"each of several sources needs a weight, as A@0.5,B@2; not all of {spec!r} have one")
    sources = [_open(name, size, flip, seed, kind) for name in names]
    for name, source in zip(names, sources, strict=True):
        if kind not in (None, source.kind):
            raise InputError(f"{name} is data with {source.kind}, but {kind} is needed")
    return sources[0] if len(sources) == 1 else Mixture(sources, weights, seed)


def _weighted(part: str) -> tuple[str, float | None]:
    """An @ that is not followed by a number belongs to the name (a user in an address, a revision)."""
    name, at, weight = part.rpartition("@")
    try:
        return (name, float(weight)) if at else (part, None)
    except ValueError:
        return part, None


def _open(part: str, size: Size, flip: bool, seed: int, kind: str | None) -> Source:
    # NAME:REST may be a source that is no file, of ours or of an installed package (entry point "rti.worlds"). The
    # scenes world comes this way: the laboratory is built on top of this.
    name, _, rest = part.partition(":")
    for world in entry_points(group="rti.worlds"):
        if world.name == name:
            return world.load()(rest, size, flip, seed, kind)
    if name == "photographs":  # half of the crops are mirrored in any case
        folder = rest.removesuffix(":held-out")
        return PhotographSource(folder, size, seed, "train" if folder == rest else "held-out")
    if name == "hf" and not is_remote(part):
        return open_hub(part, size, flip, kind)
    shards = _shards(part)
    if not shards:
        return FolderSource(part, size, flip, kind)
    if is_remote(part) and len(shards) > WINDOW:
        return RemoteShards(part, shards, size, flip, kind, seed)
    return ShardSource(part, shards, size, flip, kind)


def _shards(part: str) -> list[str]:
    """The shards that a path, a folder, a pattern or an address stands for, in order; none in a folder of pictures."""
    if os.path.isdir(part):
        files = list(walk(part))
        shards, pictures = [path for path in files if path.endswith(".tar")], sum(map(is_picture, files))
        if shards and pictures:
            raise InputError(f"{part} mixes {len(shards)} .tar shards with {pictures} pictures; give one kind of them")
        return [os.path.join(part, path) for path in shards]
    names = [part] if os.path.exists(part) else expand_braces(part)
    missing = [name for name in names if not (is_remote(part) or os.path.exists(name))]
    if missing:
        which = "" if names == [part] else f" ({len(missing)} of {len(names)} shards of {part})"
        raise InputError(f"{missing[0]} does not exist{which}; allowed are {FORMS}")
    if not is_remote(part) and not part.endswith(".tar"):
        raise InputError(f"{part} is not a .tar file; allowed are {FORMS}")
    return names


def expand_braces(pattern: str) -> list[str]:
    """Every name that `{000..009}.tar` or `{train,extra}.tar` stands for, in the shell's order; braces do not nest."""
    parts = re.split(r"\{([^{}]*(?:,|\.\.)[^{}]*)\}", pattern)  # every second one was in braces
    choices = [_choices(part) if place % 2 else [part] for place, part in enumerate(parts)]
    if math.prod(map(len, choices)) > _MOST_NAMES:
        raise InputError(f"{pattern} stands for more than {_MOST_NAMES:,} names")
    return ["".join(name) for name in itertools.product(*choices)]


def _choices(inside: str) -> list[str]:
    span = re.fullmatch(r"(\d+)\.\.(\d+)(?:\.\.(\d+))?", inside)
    if span is None:
        return inside.split(",")
    first, last, step = int(span[1]), int(span[2]), max(1, int(span[3] or 1))
    width = max(len(span[1]), len(span[2])) if "0" in (span[1][0], span[2][0]) else 0
    numbers = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
    return [str(number).zfill(width) for number in numbers[: _MOST_NAMES + 1]]
