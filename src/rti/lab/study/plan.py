"""What a study is: its rows, and the commands that train, score and time them.

Every job is a command of `rti` that anyone can run by hand; the study only says which, and keeps what they leave.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NewType, get_args, get_origin, get_type_hints

from rti.errors import InputError, check_choice, check_switch, check_whole
from rti.files import read_json
from rti.method.reductions import REDUCTIONS
from rti.training.config import AdaptConfig

GROUPS = ("main", "component", "order", "core", "making")
MAKERS = ("train", "adapt")
KINDS = ("train", "loss", "pictures", "time")  # of jobs
FOLDER = "{study}"  # stands for the study's folder in commands: it may be copied and moved
Count = NewType("Count", int)  # of at least 1; other whole numbers are of at least 0


@dataclass(frozen=True, kw_only=True)
class Row:
    """One method, or one of its variants, as the study compares it. A study's first row is ours."""

    name: str
    title: str
    reduction: str = "region"
    group: str = "main"
    by: str = "train"  # the command that makes its adapter: rti train, on data, or rti adapt, from prompts alone
    settings: dict[str, Any] = field(default_factory=dict)  # of that command, such as cuts and cuts_from
    seeds: tuple[int, ...] = (0,)
    images: dict[Count, Count] = field(default_factory=dict)  # scored at a budget, for each seed; others: loss only
    steps_at: dict[Count, tuple[Count, ...]] = field(default_factory=dict)  # sampling steps also tried, by budget

    def __post_init__(self):
        if not re.fullmatch("[a-z0-9-]{1,64}", self.name):  # it is part of the names of files
            raise InputError(
                f"row name {self.name!r} is not usable; allowed: up to 64 small letters, digits and hyphens"
            )
        check_choice(f"the group of row {self.name}", self.group, GROUPS)
        check_choice(f"the reduction of row {self.name}", self.reduction, REDUCTIONS)
        check_choice(f"the command by of row {self.name}", self.by, MAKERS)
        if self.by == "adapt" and self.reduction != "region":
            raise InputError(f"row {self.name} is made by rti adapt, which makes regions, not {self.reduction}")

    @property
    def is_elastic(self) -> bool:
        """Whether a budget changes anything for the row's method."""
        return REDUCTIONS[self.reduction][1].elastic


@dataclass(frozen=True, kw_only=True)
class Study:
    """Rows under the same conditions: the same backbone, data, steps, budgets, prompts and noise."""

    model: str
    rows: tuple[Row, ...]
    data: str = "scenes"
    budgets: tuple[Count, ...] = (16, 32, 64, 128)
    unseen: tuple[Count, ...] = ()  # budgets that no row is trained at
    train: dict[str, Any] = field(default_factory=dict)  # settings of `rti train` for all its rows
    sample_steps: Count = 25
    dense_images: Count = 1200
    dense_steps: tuple[Count, ...] = ()  # fewer sampling steps, to compare with fewer tokens
    loss_examples: Count = 512
    compile: bool = False  # the blocks, in training and scoring; not in timing
    passes: Count = 5  # of the timing
    time_batch: Count = 1  # pictures at a time in the timing: one says how soon a picture is there, many the throughput
    seed: int = 7

    def __post_init__(self):
        names = [row.name for row in self.rows]
        if len({*names, "dense"}) <= len(names):
            raise InputError(f"row names must differ, and none is 'dense'; got {', '.join(names)}")

    @property
    def every_steps(self) -> list[int]:
        """The numbers of sampling steps that dense is drawn with, the study's own first."""
        return list(dict.fromkeys((self.sample_steps, *self.dense_steps)))

    def budgets_of(self, row: Row) -> list[int]:
        """The budgets of a row; a method without a budget has a single one, which changes nothing."""
        return sorted({*self.budgets, *self.unseen}) if row.is_elastic else [max(self.budgets)]

    def reduction_settings(self, row: Row) -> list[str]:
        """Those settings of a row's training that its reduction has, such as cuts=merge."""
        own = {one.name for one in fields(REDUCTIONS[row.reduction][0])}
        usual = AdaptConfig.reduction_defaults if row.by == "adapt" else {}
        return [f"{key}={_typed(value)}" for key, value in (usual | self.making(row)).items() if key in own]

    def making(self, row: Row) -> dict[str, Any]:
        """The settings that a row's adapter is made with."""
        return (self.train if row.by == "train" else {}) | row.settings


@dataclass(frozen=True)
class Job:
    """A command of `rti`, and what it is of: a row with a training seed, a row, or dense."""

    kind: str
    run: str
    command: tuple[str, ...]
    needs: tuple[str, ...] = ()
    makes: str | None = None  # what others, or the report, need of it beside the line it prints
    budgets: tuple[int | str, ...] = ()  # of pictures
    steps: int | None = None  # of pictures

    @property
    def name(self) -> str:
        steps = () if self.steps is None else (self.steps, "steps")
        return "-".join(map(str, (self.kind, self.run, *self.budgets, *steps)))

    def words(self, folder: Path) -> list[str]:
        """The command as it is typed."""
        return [word.replace(FOLDER, str(folder)) for word in self.command]

    def made(self, folder: Path) -> Path:
        return Path((self.makes or "").replace(FOLDER, str(folder)))


JSON = {str: (str, "a text"), tuple: (list, "a list"), dict: (dict, "an object"), Row: (dict, "an object")}


def read_study(path: Path) -> Study:
    """A study from its JSON file."""
    return _make(Study, read_json(path), f"the study {path}")


def _make(kind: type, values: dict[str, Any], where: str) -> Any:
    """A study or a row of the values of its fields, each as the field's type."""
    hints = get_type_hints(kind)
    if unknown := sorted(set(values) - set(hints)):
        raise InputError(f"unknown settings of {where}: {', '.join(unknown)}; allowed: {', '.join(hints)}")
    needed = {one.name for one in fields(kind) if one.default is MISSING and one.default_factory is MISSING}
    if missing := sorted(needed - set(values)):
        raise InputError(f"{where} lacks {', '.join(missing)}")
    made = {name: _read(value, hints[name], f"{name} of {where}") for name, value in values.items()}
    if empty := [name for name in ("rows", "budgets", "seeds") if made.get(name) == ()]:
        raise InputError(f"{empty[0]} of {where} must be at least one, got none")
    return kind(**made)


def _read(value: Any, hint: Any, what: str) -> Any:
    """A value of a JSON file, which has lists for tuples and only words as keys, as the type of a field."""
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind in JSON and (type(value) is not JSON[kind][0] or value == ""):
        raise InputError(f"{what} must be {JSON[kind][1]}, got {value!r:.60}")
    if kind in (int, Count):
        check_whole(what, value, least=int(kind is Count))
    elif kind is bool:
        check_switch(what, value)
    elif kind is tuple:
        return tuple(_read(one, inner[0], what) for one in value)
    elif kind is dict:
        keys = [int(key) if inner[0] is Count and key.isdecimal() and len(key) < 20 else key for key in value]
        return {
            _read(key, inner[0], what): _read(one, inner[1], what)
            for key, one in zip(keys, value.values(), strict=True)
        }
    elif kind is Row:
        return _make(Row, value, f"row {str(value.get('name'))[:60]!r}")
    return value


def plan(study: Study) -> list[Job]:
    """All jobs of a study, those that others need first: the dense pictures that all rows are compared with lead."""
    dense = [_pictures(study, "dense", ("dense",), study.dense_images, steps) for steps in study.every_steps]
    jobs = dense[:1]
    for row in study.rows:
        for seed in row.seeds:
            jobs += _train_and_score(study, row, seed)
        jobs.append(_time(study, row))
    return list({job.name: job for job in (*jobs, *dense)}.values())


def choose(study: Study, only: str | None = None, kinds: str | None = None) -> list[Job]:
    """The jobs of some rows and kinds, as typed, and those they need."""
    rows = _among("row", only, [row.name for row in study.rows])
    kinds = _among("kind of jobs", kinds, KINDS)
    jobs = plan(replace(study, rows=tuple(row for row in study.rows if row.name in rows)))
    needed = {need for job in jobs if job.kind in kinds for need in job.needs}
    return [job for job in jobs if job.kind in kinds or job.name in needed]


def _among(what: str, typed: str | None, allowed: Sequence[str]) -> Sequence[str]:
    """Some of the allowed names, or all."""
    names = allowed if typed is None else typed.split(",")
    for name in names:
        check_choice(what, name, allowed)
    return names


def _train_and_score(study: Study, row: Row, seed: int) -> Iterator[Job]:
    """A row's training with a seed, the losses of its adapter, and its pictures."""
    run, budgets = f"{row.name}-{seed}", study.budgets_of(row)
    command = [row.by, study.model, "--output", f"{FOLDER}/runs/{run}"]
    if row.by == "train":
        command += ["--data", study.data, "--reduction", row.reduction]
    settings = {"budgets": study.budgets} | study.making(row) | {"seed": seed}
    command += [f"--{key.replace('_', '-')}={_typed(value)}" for key, value in settings.items()]
    yield Job("train", run, (*command, *_ending(study)), makes=_adapter(run))

    losses = f"{FOLDER}/losses/{run}.json"
    command = ["eval", "loss", study.model, "--adapter", _adapter(run), "--data", study.data]
    command += ["--budget", _typed(("dense", *budgets)), "--examples", str(study.loss_examples)]
    command += ["--seed", str(study.seed), "--output", losses, *_ending(study)]
    yield Job("loss", run, tuple(command), (f"train-{run}",), losses)

    for images in sorted({count for budget, count in row.images.items() if budget in budgets}):
        together = tuple(budget for budget in budgets if row.images.get(budget) == images)  # as many of each are wanted
        yield _pictures(study, run, together, images, study.sample_steps)
    for budget, several in row.steps_at.items():
        for steps in several:
            yield _pictures(study, run, (budget,), row.images.get(budget, study.dense_images), steps)


def _pictures(study: Study, run: str, budgets: tuple[int | str, ...], images: int, steps: int) -> Job:
    adapter, needs = ([], ()) if run == "dense" else (["--adapter", _adapter(run)], (f"train-{run}",))
    job = Job("pictures", run, (), budgets=budgets, steps=steps)
    output = f"{FOLDER}/pictures/{job.name.removeprefix('pictures-')}"
    command = ["eval", "scenes", study.model, *adapter, "--budget", _typed(budgets), "--images", str(images)]
    command += ["--seed", str(study.seed), "--steps", str(steps), "--output", output, *_ending(study)]
    return Job("pictures", run, tuple(command), needs, f"{output}/results.json", budgets, steps)


def _time(study: Study, row: Row) -> Job:
    """Speed does not depend on what was learned, so it is timed without: it needs no training, and waits for none."""
    settings = [word for setting in study.reduction_settings(row) for word in ("--set", setting)]
    budgets = [budget for budget in study.budgets_of(row) if budget in study.budgets]
    command = ["bench", study.model, "--reductions", row.reduction, *settings, "--budgets", _typed(budgets)]
    command += ["--batch", str(study.time_batch), "--passes", str(study.passes), "--json"]
    return Job("time", row.name, tuple(command))


def _adapter(run: str) -> str:
    return f"{FOLDER}/runs/{run}/adapter"


def _ending(study: Study) -> list[str]:
    return ["--compile", "--json"] if study.compile else ["--json"]


def _typed(value: Any) -> str:
    """A value as it is given on the command line."""
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
