"""What a study is: its rows, and the commands that train, score and time them.

Every job is a command of `rti` that anyone can run by hand; the study only says which, and keeps what they print.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from rti.errors import InputError

GROUPS = ("main", "component", "order", "core")
KINDS = ("train", "loss", "pictures", "time")  # of jobs


def _is_whole(value: Any, least: int = 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _are_whole(values: Any, least: int = 1) -> bool:
    return isinstance(values, tuple) and all(_is_whole(value, least) for value in values)


def _by_budget(values: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(values, dict) and all(_is_whole(budget) and fits(value) for budget, value in values.items())


# What the settings of a study and of its rows may be: the names, in words, and the test.
_ALLOWED: tuple[tuple[tuple[str, ...], str, Callable[[Any], bool]], ...] = (
    (
        ("model", "data", "name", "title", "reduction", "group"),
        "a text",
        lambda one: isinstance(one, str) and one != "",
    ),
    (("settings", "train"), "an object", lambda one: isinstance(one, dict)),
    (("compile",), "true or false", lambda one: isinstance(one, bool)),
    (("budgets",), "whole numbers of at least 1", lambda one: _are_whole(one) and one != ()),
    (("unseen", "dense_steps"), "whole numbers of at least 1", _are_whole),
    (("seeds",), "whole numbers, at least one of them", lambda one: _are_whole(one, 0) and one != ()),
    (("sample_steps", "dense_images", "loss_examples", "passes", "time_batch"), "a whole number, 1 or more", _is_whole),
    (("seed",), "a whole number, 0 or more", lambda one: _is_whole(one, 0)),
    (("images",), "numbers of pictures by budget", lambda one: _by_budget(one, _is_whole)),
    (("steps_at",), "lists of steps by budget", lambda one: _by_budget(one, _are_whole)),
)


def _check(one: Row | Study, where: str) -> None:
    """Refuse a setting of another kind than the study needs."""
    for names, allowed, fits in _ALLOWED:
        for name in names:
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
        if self.group not in GROUPS:
            raise InputError(f"group {self.group!r} of row {self.name} is unknown; allowed: {', '.join(GROUPS)}")


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
        twice = sorted({name for name in names if names.count(name) > 1} | ({"dense"} & set(names)))
        if not names or twice:
            raise InputError(f"row names must be there and differ, and none is 'dense'; got {', '.join(names)}")


@dataclass(frozen=True)
class Job:
    """A command of `rti`; its last line of output, one JSON object, is its result."""

    name: str
    command: tuple[str, ...]
    needs: tuple[str, ...] = ()
    alone: bool = False  # it times something, so nothing may run beside it
    makes: Path | None = None  # what others need of it, beside its result

    @property
    def kind(self) -> str:
        return self.name.partition("-")[0]


def read_study(path: Path) -> Study:
    """A study from its JSON file."""
    from rti.files import read_json

    values = read_json(path)
    rows = values.get("rows") if "model" in values else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path} is no study; expected an object with model and rows, each an object")
    rows = tuple(_make(Row, row, f"row {row.get('name')!r} of {path}") for row in values["rows"])
    return _make(Study, values | {"rows": rows}, str(path))


def _make(kind: type, values: dict[str, Any], where: str) -> Any:
    known = {one.name: one for one in fields(kind)}
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise InputError(f"unknown settings of {where}: {', '.join(unknown)}; allowed: {', '.join(known)}")
    missing = [name for name in ("name", "title", "model") if name in known and name not in values]
    if missing:
        raise InputError(f"{where} lacks {', '.join(missing)}")
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    for name in ("images", "steps_at"):  # JSON knows only words as keys
        if isinstance(values.get(name), dict):
            values[name] = {_number(budget): _tuple(value) for budget, value in values[name].items()}
    return kind(**values)


def _number(text: str) -> int | str:
    """A key of JSON as a number, where it is one."""
    return int(text) if text.isdecimal() and len(text) < 20 else text


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def as_json(study: Study) -> dict[str, Any]:
    return json.loads(json.dumps(asdict(study)))


def is_elastic(row: Row) -> bool:
    """Whether a budget changes anything for the row's method."""
    from rti.method.reductions import REDUCTIONS

    if row.reduction not in REDUCTIONS:
        raise InputError(f"unknown reduction {row.reduction!r} of row {row.name}; allowed: {', '.join(REDUCTIONS)}")
    return REDUCTIONS[row.reduction][1].elastic


def budgets_of(study: Study, row: Row) -> tuple[int, ...]:
    """The budgets of a row; a method without a budget has a single one, which changes nothing."""
    every = tuple(sorted({*study.budgets, *study.unseen}))
    return every if is_elastic(row) else (max(study.budgets),)


def plan(study: Study, folder: Path) -> list[Job]:
    """All jobs of a study, those that others need first: the dense pictures that all rows are compared with lead."""
    dense = [_pictures(study, folder, "dense", None, (), *one) for one in _dense_pictures(study)]
    jobs = dense[:1]
    for row in study.rows:
        budgets = budgets_of(study, row)
        for seed in row.seeds:
            run, train = f"{row.name}-{seed}", f"train-{row.name}-{seed}"
            jobs.append(_train(study, row, seed, folder, train))
            adapter = str(folder / "runs" / run / "adapter")
            jobs.append(_loss(study, folder, run, adapter, budgets, train))
            for images in sorted({count for budget, count in row.images.items() if budget in budgets}):
                some = tuple(budget for budget in budgets if row.images.get(budget) == images)
                jobs.append(_pictures(study, folder, run, adapter, some, images, study.sample_steps, train))
            for budget, several in row.steps_at.items():
                for steps in several:
                    count = row.images.get(budget, study.dense_images)
                    jobs.append(_pictures(study, folder, run, adapter, (budget,), count, steps, train))
        jobs.append(_time(study, row))
    return list({job.name: job for job in (*jobs, *dense)}.values())


def choose(jobs: Sequence[Job], kinds: Sequence[str]) -> list[Job]:
    """The jobs of some kinds, and those they need."""
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise InputError(f"unknown kinds of jobs {', '.join(unknown)}; allowed: {', '.join(KINDS)}")
    wanted = [job for job in jobs if job.kind in kinds]
    needed = {need for job in wanted for need in job.needs}
    return [job for job in jobs if job in wanted or job.name in needed]


def _dense_pictures(study: Study) -> list[tuple[int, int]]:
    return [(study.dense_images, steps) for steps in dict.fromkeys((study.sample_steps, *study.dense_steps))]


def _train(study: Study, row: Row, seed: int, folder: Path, name: str) -> Job:
    settings = {"budgets": study.budgets} | study.train | row.settings | {"seed": seed}
    command = ["train", study.model, "--output", str(folder / "runs" / f"{row.name}-{seed}"), "--data", study.data]
    command += ["--reduction", row.reduction]
    for key, value in settings.items():
        command.append(f"--{key.replace('_', '-')}={_typed(value)}")
    adapter = folder / "runs" / f"{row.name}-{seed}" / "adapter"
    return Job(name, (*command, *_compile(study), "--json"), makes=adapter)


def _loss(study: Study, folder: Path, run: str, adapter: str, budgets: tuple[int, ...], train: str) -> Job:
    command = ["eval", "loss", study.model, "--adapter", adapter, "--data", study.data]
    command += ["--budget", _typed(("dense", *budgets)), "--examples", str(study.loss_examples)]
    command += ["--seed", str(study.seed), "--output", str(folder / "losses" / f"{run}.json")]
    command += [*_compile(study), "--json"]
    return Job(f"loss-{run}", tuple(command), (train,))


def _pictures(
    study: Study,
    folder: Path,
    run: str,
    adapter: str | None,
    budgets: tuple[int, ...],
    images: int,
    steps: int,
    train: str | None = None,
) -> Job:
    typed = "dense" if adapter is None else _typed(budgets)
    name = f"pictures-{run}-{typed.replace(',', '-')}-{steps}-steps"
    command = ["eval", "scenes", study.model, *(["--adapter", adapter] if adapter else []), "--budget", typed]
    command += ["--images", str(images), "--seed", str(study.seed), "--steps", str(steps)]
    command += ["--output", str(folder / "pictures" / name.removeprefix("pictures-"))]
    command += [*_compile(study), "--json"]
    return Job(name, tuple(command), (train,) if train else ())


def _compile(study: Study) -> list[str]:
    return ["--compile"] if study.compile else []


def _time(study: Study, row: Row) -> Job:
    """Speed does not depend on what was learned, so it is timed without: it needs no training, and waits for none."""
    command = ["bench", study.model, "--reductions", row.reduction]
    for setting in reduction_settings(study, row):
        command += ["--set", setting]
    budgets = [budget for budget in budgets_of(study, row) if budget in study.budgets]
    command += ["--budgets", _typed(budgets), "--batch", str(study.time_batch), "--passes", str(study.passes), "--json"]
    return Job(f"time-{row.name}", tuple(command), alone=True)


def reduction_settings(study: Study, row: Row) -> list[str]:
    """Those settings of a row's training that its reduction has, such as cuts=merge."""
    from rti.method.reductions import REDUCTIONS

    own = {one.name for one in fields(REDUCTIONS[row.reduction][0])}
    return [f"{key}={_typed(value)}" for key, value in (study.train | row.settings).items() if key in own]


def _typed(value: Any) -> str:
    """A value as it is given on the command line."""
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
