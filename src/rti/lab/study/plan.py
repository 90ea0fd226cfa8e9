"""What a study is: its rows, and the commands that train, score and time them.

Every job is a command of `rti` that anyone can run by hand; the study only says which, and keeps what they leave.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from rti.errors import InputError
from rti.files import read_json
from rti.method.reductions import REDUCTIONS

GROUPS = ("main", "component", "order", "core")
KINDS = ("train", "loss", "pictures", "time")  # of jobs
FOLDER = "{study}"  # stands for the study's folder in commands: it may be copied and moved


def _is_whole(value: Any, least: int = 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _are_whole(values: Any, least: int = 1) -> bool:
    return isinstance(values, tuple) and all(_is_whole(value, least) for value in values)


def _by_budget(values: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(values, dict) and all(_is_whole(budget) and fits(value) for budget, value in values.items())


# What the settings of a study and of its rows may be: the names, in words, and the test.
_ALLOWED: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    ("model data name title reduction group", "a text", lambda one: isinstance(one, str) and one != ""),
    ("settings train", "an object", lambda one: isinstance(one, dict)),
    ("compile", "true or false", lambda one: isinstance(one, bool)),
    ("budgets", "whole numbers of at least 1", lambda one: _are_whole(one) and one != ()),
    ("unseen dense_steps", "whole numbers of at least 1", _are_whole),
    ("seeds", "whole numbers, at least one of them", lambda one: _are_whole(one, 0) and one != ()),
    ("sample_steps dense_images loss_examples passes time_batch", "a whole number, 1 or more", _is_whole),
    ("seed", "a whole number, 0 or more", lambda one: _is_whole(one, 0)),
    ("images", "numbers of pictures by budget", lambda one: _by_budget(one, _is_whole)),
    ("steps_at", "lists of steps by budget", lambda one: _by_budget(one, _are_whole)),
)


def _check(one: Row | Study, where: str) -> None:
    """Refuse a setting of another kind than the study needs."""
    for names, allowed, fits in _ALLOWED:
        for name in names.split():
            if hasattr(one, name) and not fits(getattr(one, name)):
                raise InputError(f"{name} of {where} must be {allowed}, got {str(getattr(one, name))[:60]!r}")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One method, or one of its variants, as the study compares it. A study's first row is ours."""

    name: str
    title: str
    reduction: str = "region"
    group: str = "main"
    settings: dict[str, Any] = field(default_factory=dict)  # of `rti train`, such as cuts and cuts_from
    seeds: tuple[int, ...] = (0,)
    images: dict[int, int] = field(default_factory=dict)  # scored at a budget, for each seed; others: loss only
    steps_at: dict[int, tuple[int, ...]] = field(default_factory=dict)  # sampling steps also tried, by budget

    def __post_init__(self):
        _check(self, f"row {str(self.name)[:60]!r}")
        if not set(self.name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") or len(self.name) > 64:  # part of files'
            raise InputError(
                f"row name {self.name!r} is not usable; allowed: up to 64 small letters, digits and hyphens"
            )
        for what, allowed in {"group": GROUPS, "reduction": tuple(REDUCTIONS)}.items():
            if getattr(self, what) not in allowed:
                given = f"unknown {what} {getattr(self, what)!r} of row {self.name}"
                raise InputError(f"{given}; allowed: {', '.join(allowed)}")

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
    budgets: tuple[int, ...] = (16, 32, 64, 128)
    unseen: tuple[int, ...] = ()  # budgets that no row is trained at
    train: dict[str, Any] = field(default_factory=dict)  # settings of `rti train` for all rows
    sample_steps: int = 25
    dense_images: int = 1200
    dense_steps: tuple[int, ...] = ()  # fewer sampling steps, to compare with fewer tokens
    loss_examples: int = 512
    compile: bool = False  # the blocks, in training and scoring; not in timing
    passes: int = 5  # of the timing
    time_batch: int = 1  # pictures at a time in the timing: one says how soon a picture is there, many the throughput
    seed: int = 7

    def __post_init__(self):
        _check(self, "a study")
        names = [row.name for row in self.rows]
        if not names or len({*names, "dense"}) <= len(names):
            raise InputError(f"row names must be there and differ, and none is 'dense'; got {', '.join(names)}")

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
        return [f"{key}={_typed(value)}" for key, value in (self.train | row.settings).items() if key in own]

    def as_json(self) -> dict[str, Any]:
        return json.loads(json.dumps(asdict(self)))


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

    @property
    def alone(self) -> bool:
        """It times something, so nothing may run beside it."""
        return self.kind == "time"

    def words(self, folder: Path) -> list[str]:
        """The command as it is typed."""
        return [word.replace(FOLDER, str(folder)) for word in self.command]


def read_study(path: Path) -> Study:
    """A study from its JSON file."""
    values = read_json(path)
    rows = values.get("rows") if "model" in values else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path} is no study; expected an object with model and rows, each an object")
    rows = tuple(_make(Row, row, f"row {row.get('name')!r} of {path}") for row in rows)
    return _make(Study, values | {"rows": rows}, str(path))


def _make(kind: type, values: dict[str, Any], where: str) -> Any:
    known = fields(kind)
    names = [one.name for one in known]
    if unknown := sorted(set(values) - set(names)):
        raise InputError(f"unknown settings of {where}: {', '.join(unknown)}; allowed: {', '.join(names)}")
    needed = [one.name for one in known if one.default is MISSING and one.default_factory is MISSING]
    if missing := [name for name in needed if name not in values]:
        raise InputError(f"{where} lacks {', '.join(missing)}")
    for name in ("images", "steps_at"):  # JSON knows only words as keys
        if isinstance(values.get(name), dict):
            values = values | {name: {_number(key): _tuple(value) for key, value in values[name].items()}}
    return kind(**{name: _tuple(value) for name, value in values.items()})


def _number(text: str) -> int | str:
    """A key of JSON as a number, where it is one."""
    return int(text) if text.isdecimal() and len(text) < 20 else text


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def plan(study: Study) -> list[Job]:
    """All jobs of a study, those that others need first: the dense pictures that all rows are compared with lead."""
    dense = [_pictures(study, "dense", ("dense",), study.dense_images, steps) for steps in study.every_steps]
    jobs = dense[:1]
    for row in study.rows:
        for seed in row.seeds:
            run = f"{row.name}-{seed}"
            jobs += [_train(study, row, seed, run), _loss(study, run, study.budgets_of(row))]
            jobs += [_pictures(study, run, *some) for some in _drawn(study, row)]
        jobs.append(_time(study, row))
    return list({job.name: job for job in (*jobs, *dense)}.values())


def choose(jobs: Sequence[Job], kinds: Sequence[str]) -> list[Job]:
    """The jobs of some kinds, and those they need."""
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise InputError(f"unknown kinds of jobs {', '.join(unknown)}; allowed: {', '.join(KINDS)}")
    needed = {need for job in jobs if job.kind in kinds for need in job.needs}
    return [job for job in jobs if job.kind in kinds or job.name in needed]


def _drawn(study: Study, row: Row) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """Budgets, number and sampling steps of the pictures: budgets of which as many are wanted are drawn together."""
    budgets = study.budgets_of(row)
    for images in sorted({count for budget, count in row.images.items() if budget in budgets}):
        yield tuple(budget for budget in budgets if row.images.get(budget) == images), images, study.sample_steps
    for budget, several in row.steps_at.items():
        for steps in several:
            yield (budget,), row.images.get(budget, study.dense_images), steps


def _train(study: Study, row: Row, seed: int, run: str) -> Job:
    command = ["train", study.model, "--output", f"{FOLDER}/runs/{run}", "--data", study.data]
    command += ["--reduction", row.reduction]
    settings = {"budgets": study.budgets} | study.train | row.settings | {"seed": seed}
    command += [f"--{key.replace('_', '-')}={_typed(value)}" for key, value in settings.items()]
    return Job("train", run, (*command, *_ending(study)), makes=_adapter(run))


def _loss(study: Study, run: str, budgets: Sequence[int]) -> Job:
    makes = f"{FOLDER}/losses/{run}.json"
    command = ["eval", "loss", study.model, "--adapter", _adapter(run), "--data", study.data]
    command += ["--budget", _typed(("dense", *budgets)), "--examples", str(study.loss_examples)]
    command += ["--seed", str(study.seed), "--output", makes, *_ending(study)]
    return Job("loss", run, tuple(command), (f"train-{run}",), makes)


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
