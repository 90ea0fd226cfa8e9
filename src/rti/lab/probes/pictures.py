"""How unevenly detail lies in real photographs: the pixel-level Lorenz curve, without any model."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

from rti.errors import InputError
from rti.images import to_tensor
from rti.lab.probes import measures
from rti.lab.probes.photograph import load_photograph
from rti.lab.probes.records import write_data
from rti.lab.probes.redundancy import lorenz_summary, points_of

LARGEST = 16_384  # pixels of a side
ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp")


def probe_lorenz(folder: Path, output: Path, size: int = 512, patch: int = 16, progress: bool = True) -> dict[str, Any]:
    """The Lorenz curve of detail of every picture under a folder, and their mean. Writes lorenz.json.

    Pictures that cannot be read are left out, with a warning that counts them.
    """
    from tqdm.auto import tqdm

    if not 1 <= patch <= size <= LARGEST:
        raise InputError(f"patch {patch} and size {size} are not usable; allowed: 1 <= patch <= size <= {LARGEST}")
    if not os.path.isdir(folder):
        raise InputError(f"{folder} is no folder of pictures")
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in ENDINGS and path.is_file())
    if not paths:
        raise InputError(f"{folder} holds no picture; allowed endings: {', '.join(ENDINGS)}")
    if not os.path.isdir(output) and os.path.lexists(output):
        raise InputError(f"cannot write to {output}: it is no folder")
    pictures, curves, broken = [], [], []
    for path in tqdm(paths, unit="picture", desc="lorenz", disable=not progress):
        try:
            picture, grid = load_photograph(path, size, patch)
        except InputError as error:
            broken.append(str(error))
            continue
        curve = points_of(measures.lorenz(measures.detail(to_tensor(picture), patch)))
        curves.append(curve[0].tolist())
        name = path.relative_to(folder).as_posix()
        pictures.append({"picture": name, "grid": list(grid), **_shares(curves[-1])})
    if not pictures:
        raise InputError(f"none of the {len(paths)} pictures of {folder} can be read; the first: {broken[0]}")
    if broken:
        warnings.warn(f"{len(broken)} of {len(paths)} pictures left out; the first: {broken[0]}", stacklevel=2)
    values = {"probe": "lorenz", "size": size, "patch": patch, "lorenz": lorenz_summary(curves), "pictures": pictures}
    return write_data(output / "lorenz.json", values)


def _shares(curve: list[float]) -> dict[str, float]:
    summary = lorenz_summary([curve])
    return {name: summary[name] for name in ("in_top_15_percent", "in_top_half", "patches_for_half")}
