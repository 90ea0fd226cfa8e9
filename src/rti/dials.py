"""Presets: all that decides how long a picture takes, turned together by `rti tune`, kept in an adapter's folder."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from rti.errors import InputError, check_choice, check_finite, check_whole, is_finite
from rti.files import read_json, write_whole
from rti.method.budgets import is_dense

FILE = "presets.json"
SLACK = 1.05  # by which a picture may take longer than was asked for: times vary


@dataclass(frozen=True)
class Dials:
    """How a picture is drawn, by the names of a pipeline's arguments; None is as the model samples by itself."""

    num_inference_steps: int | None = None
    solver: Any = None
    shift: float | None = None
    finish: str | None = None
    guidance_interval: tuple[float, float] | None = None
    guidance_passes: int | None = None
    budget: Any = None  # None: the frozen backbone alone
    text_budget: Any = None

    def given(self) -> dict[str, Any]:
        """Those that are turned."""
        found = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: value for name, value in found if value is not None}

    def over(self, preset: Dials) -> Dials:
        """The preset's, but where these are turned. The frozen backbone has no text budget, whatever the preset has."""
        if self.budget is not None and is_dense(self.budget):
            preset = replace(preset, text_budget=None)
        return replace(preset, **self.given())

    @classmethod
    def read(cls, values: Any) -> Dials:
        """Those of a file. The sampler says what is wrong with a value that only it can judge."""
        names = [field.name for field in fields(cls)]
        if not isinstance(values, dict) or not values.keys() <= {*names}:
            raise InputError(f"dials {values!r:.80} are not usable; allowed: {', '.join(names)}")
        dials = cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})
        for name, kind in (("solver", str), ("finish", str), ("guidance_interval", tuple)):
            if not isinstance(getattr(dials, name), kind | None):
                raise InputError(f"{name} {getattr(dials, name)!r} is not usable; allowed: {kind.__name__}, or none")
        for name in ("num_inference_steps", "guidance_passes"):
            if getattr(dials, name) is not None:
                check_whole(name, getattr(dials, name))
        for name in ("shift", "budget", "text_budget"):
            if getattr(dials, name) is not None:
                check_finite(name, getattr(dials, name), above=0)
        return dials


@dataclass(frozen=True)
class Preset:
    """Dials, and what was measured with them: seconds of a picture, beside those of a dense step on that machine."""

    dials: Dials
    seconds: float | None = None
    pace: float | None = None
    measured: Mapping[str, Any] | None = None  # how good the pictures are, by what, on how many

    def seconds_at(self, pace: float) -> float:
        """Of a picture on a machine where a dense step takes `pace` seconds."""
        return self.seconds * pace / self.pace


# Beside those of an adapter. They are a start and were not found by measurement: that is what rti tune is for.
_USUAL = {
    "careful": Dials(25, "multistep", budget=0.5),
    "balanced": Dials(16, "multistep", budget=0.25, text_budget=0.5),
    "fast": Dials(12, "multistep", budget=0.25, text_budget=0.5),
}


def usual_presets(reduced: bool, text_regions: bool) -> dict[str, Preset]:
    """For a model with an adapter or without; only one with text regions has a text budget."""
    without = {} if text_regions else {"text_budget": None}
    without |= {} if reduced else {"budget": None, "text_budget": None}
    return {name: Preset(replace(dials, **without)) for name, dials in _USUAL.items()}


def read_presets(path: Path) -> dict[str, Preset]:
    """Those of a file of `rti tune`, the slowest first."""
    rows, found = read_json(path).get("presets"), {}
    for name, row in rows.items() if isinstance(rows, dict) else ():
        try:
            values = dict(row)
            dials, seconds, pace = Dials.read(values.get("dials")), values.get("seconds"), values.get("pace")
        except (InputError, TypeError, ValueError) as error:
            raise InputError(f"{path}: the preset {name} is not usable: {error}") from None
        timed = all(is_finite(value) and value > 0 for value in (seconds, pace))
        found[name] = Preset(dials, *((seconds, pace) if timed else (None, None)), values.get("measured"))
    if not found:
        raise InputError(f"{path} holds no presets; expected a file of rti tune")
    return dict(sorted(found.items(), key=lambda one: -(one[1].seconds or math.inf)))


def write_presets(path: Path, presets: Mapping[str, Preset]) -> None:
    """Write them beside those that the file has by other names."""
    presets = (read_presets(path) if path.is_file() else {}) | dict(presets)
    rows = {name: {**vars(preset), "dials": preset.dials.given()} for name, preset in presets.items()}
    write_whole(path, json.dumps({"presets": rows}, indent=1) + "\n")


def choose(presets: Mapping[str, Preset], name: str) -> Preset:
    check_choice("preset", name, presets)
    return presets[name]


def within(presets: Mapping[str, Preset], seconds: float, pace: Callable[[], float]) -> Preset:
    """The slowest preset that draws a picture in so many seconds; `pace` measures a dense step here."""
    check_finite("seconds", seconds, above=0)
    known = [preset for preset in presets.values() if preset.seconds is not None]
    if not known:
        raise InputError("seconds given, but no preset of this model was measured; rti tune measures them")
    here = pace()
    fitting = [preset for preset in known if preset.seconds_at(here) <= SLACK * seconds]
    if not fitting:
        least = min(preset.seconds_at(here) for preset in known)
        raise InputError(f"seconds {seconds:g}, but no preset is as fast here; the fastest takes about {least:.2g}")
    return max(fitting, key=lambda preset: preset.seconds)


def measure_pace(draw: Callable[[int], Any]) -> float:
    """Seconds of a dense step; `draw` draws a picture of so many of them, and waits until it is there."""
    steps, times = 2, []
    draw(1)
    for _ in range(3):
        started = time.perf_counter()
        draw(steps)
        times.append(time.perf_counter() - started)
    return min(times) / steps
