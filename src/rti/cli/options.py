"""Options that several commands share, alone and several as one parameter; and what makes a function a command."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, get_type_hints

import typer

from rti.cli.output import numbers, show_json
from rti.dials import Dials
from rti.errors import check_finite, check_whole
from rti.method.budgets import Budget, parse_budget, parse_budgets
from rti.presets import PRESETS
from rti.shipped import SHIPPED

if TYPE_CHECKING:
    from rti.pipeline import Pipeline

_SHIPPED = f"A model that ships with rti ({', '.join(SHIPPED)}), a" if SHIPPED else "A"
MODEL_HELP = f"{_SHIPPED} preset ({', '.join(PRESETS)}), or the folder of a checkpoint or of an adapter."
MODEL = typer.Argument(help=MODEL_HELP)
DEVICE_HELP = "cpu, cuda, cuda:1, mps, or auto."
LARGEST_SEED = 2**32 - 1  # what numpy, torch and rti.lab.pictures.generation all take


def number_option(default: int | None, *names: str, help: str, least: int = 1, most: int = 10**9) -> Any:
    """A whole number between bounds: beyond them it is a slip, which would end in an overflow or without memory."""

    def check(option: typer.CallbackParam, value: int | None) -> int | None:
        if value is not None:
            check_whole(option.name.replace("_", " "), value, most, least)
        return value

    return typer.Option(default, *names, help=help, callback=check)


def steps_option(default: int | None, help: str = "Sampling steps. Default: the model's own.") -> Any:
    return number_option(default, help=help, most=100_000)


def _check_guidance(value: float | None) -> float | None:
    if value is not None:
        check_finite("guidance scale", value)
    return value


GUIDANCE = typer.Option(None, help="Guidance scale. Default: the model's own.", callback=_check_guidance)


def seed_option(default: int, help: str) -> Any:
    return number_option(default, help=help, least=0, most=LARGEST_SEED)


def budget_option(default: str | None, help: str) -> Any:
    """One budget or several: both spellings, in every command."""
    return typer.Option(default, "--budget", "--budgets", help=help)


def usual_budgets(text: str | None, pipe: Pipeline) -> list[Budget]:
    """The rows that were asked for; else dense, and a quarter of the patches where there is an adapter."""
    return parse_budgets(text or ("dense" if pipe.elastic is None else "dense,0.25"))


TEXT_BUDGET = typer.Option(
    None, help="Text tokens in the trunk, such as 32 or 0.25; the adapter must have text regions. Default: all."
)


@dataclass(frozen=True)
class Loading:
    """Where a model's parts come from, and where it runs: `loading.load(model)` is its pipeline."""

    adapter: str = typer.Option(
        None, help="Folder or hub repository of an adapter for the model; or untrained, a fresh one."
    )
    size: str = typer.Option(None, help="Size of the model where its files do not tell: b16, l16, ...")
    text_encoder: str = typer.Option(None, help="Folder or hub name of the T5. Default: what the checkpoint names.")
    device: str = typer.Option("auto", help=DEVICE_HELP)
    dtype: str = typer.Option(
        "float32", help="Weights as float32, bfloat16, float16; the sampling state is always float32."
    )

    def load(self, model: str, init: str | None = None) -> Pipeline:
        """The LoRA is not folded in. With init="random" the weights are random ones."""
        from rti.pipeline import Pipeline
        from rti.precision import place

        device, dtype = place(self.device, self.dtype)
        options = {"size": self.size, "text_encoder": self.text_encoder} | ({"init": init} if init else {})
        return Pipeline.from_pretrained(model, adapter=self.adapter, dtype=dtype, device=device, fuse=False, **options)


@dataclass(frozen=True)
class Runtime(Loading):
    """The same, with what makes it faster."""

    compile: bool = typer.Option(
        False, "--compile", help="Compile the blocks first, which takes a minute: for many pictures."
    )

    def load(self, model: str, init: str | None = None) -> Pipeline:
        pipe = super().load(model, init)
        if self.compile:
            pipe.backbone.compile_repeated_blocks()
        return pipe


@dataclass(frozen=True)
class Sampling:
    """How pictures are drawn."""

    text_budget: str = TEXT_BUDGET
    steps: int = steps_option(None)
    guidance: float = GUIDANCE
    guidance_passes: int = number_option(
        None, most=2, help="Passes of a guided step, 1 or 2. Default: 1 where the adapter guides itself, else 2."
    )
    solver: str = typer.Option(None, help="euler, heun or multistep. Default: the model's own.")
    shift: float = typer.Option(None, help="Above 1, more of the steps are spent on noise. Default: 1, even steps.")
    finish: str = typer.Option(
        None, help="The picture: the last clean estimate, or the solver's last state, as released. [default: estimate]"
    )

    guidance_interval: str = typer.Option(
        None,
        help="Times between which steps are guided, such as 0,0.8; others cost half. Default: the model's.",
    )

    def dials(self) -> Dials:
        """What was turned."""
        interval, text = numbers(self.guidance_interval, "guidance interval"), parse_budget(self.text_budget)
        solving = (self.steps, self.solver, self.shift, self.finish, interval, self.guidance_passes)
        return Dials(*solving, text_budget=text)


def command(function: Callable[..., Any], more: Iterable[inspect.Parameter] = ()) -> Callable[..., None]:
    """A command of a function: options may stand together in a dataclass, and what it gives back `--json` prints.

    A parameter that is a dataclass of options stands for the options, one for each field: the command line shows them
    after the function's own, the function gets them back as the dataclass. A function that returns a dict has the
    option --json, and ends like any interrupted command, with 130, where it says to have been `stopped`. `more` options
    go to the function's `**rest`.
    """
    parameters, shared, groups = [], list(more), {}
    hints = get_type_hints(function)
    for name, parameter in inspect.signature(function).parameters.items():
        if is_dataclass(hints[name]):
            group = groups[name] = hints[name]
            types = get_type_hints(group)
            shared += [_keyword(field.name, field.default, types[field.name]) for field in fields(group)]
        elif parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            parameters.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))
    if gives := hints.get("return") not in (None, type(None)):
        asked = typer.Option(False, "--json", help="Print one JSON line at the end.")
        shared.append(_keyword("json", asked, bool))

    @functools.wraps(function)
    def unfolded(**values: Any) -> None:
        json = gives and values.pop("json")
        together = {
            name: group(**{field.name: values.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        found = function(**together, **values)
        if json and found is not None:
            show_json(found)
        if found and found.get("stopped"):
            raise typer.Exit(130)

    unfolded.__signature__ = inspect.Signature(parameters + shared)
    unfolded.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters + shared}
    return unfolded


def _keyword(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
