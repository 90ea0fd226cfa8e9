"""Options that several commands share, alone and several as one parameter; and what makes a function a command."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, get_type_hints

import typer

from rti.cli.models import COMPILE_HELP, DEVICE_HELP, DTYPE_HELP, TEXT_BUDGET_HELP, load_pipeline
from rti.cli.output import show_json
from rti.errors import InputError

if TYPE_CHECKING:
    from rti.pipeline import Pipeline

LARGEST_SEED = 2**32 - 1  # what numpy, torch and rti.lab.pictures.generation all take


def number_option(default: int | None, *names: str, help: str, least: int = 1, most: int = 10**9) -> Any:
    """A whole number between bounds: beyond them it is a slip, which would end in an overflow or without memory."""

    def check(option: typer.CallbackParam, value: int | None) -> int | None:
        if value is not None and not least <= value <= most:
            raise InputError(f"{option.name.replace('_', ' ')} must be from {least} to {most}, got {value}")
        return value

    return typer.Option(default, *names, help=help, callback=check)


def steps_option(default: int | None, help: str = "Sampling steps. Default: the model's own.") -> Any:
    return number_option(default, help=help, most=100_000)


def guidance_option(help: str = "Guidance scale. Default: the model's own.") -> Any:
    def check(value: float | None) -> float | None:
        if value is not None and not math.isfinite(value):
            raise InputError(f"guidance scale {value} is not usable; allowed: a finite number, 1 for none")
        return value

    return typer.Option(None, help=help, callback=check)


def seed_option(default: int, help: str) -> Any:
    return number_option(default, help=help, least=0, most=LARGEST_SEED)


def budget_option(default: str | None, help: str) -> Any:
    """One budget or several: both spellings, in every command."""
    return typer.Option(default, "--budget", "--budgets", help=help)


TEXT_BUDGET = typer.Option(None, help=TEXT_BUDGET_HELP)


@dataclass(frozen=True)
class Loading:
    """Where a model's parts come from, and where it runs: `loading.load(model)` is its pipeline."""

    adapter: str = typer.Option(None, help="Folder or hub repository of an adapter for the model.")
    size: str = typer.Option(None, help="Size of the model where its files do not tell: b16, l16, ...")
    text_encoder: str = typer.Option(None, help="Folder or hub name of the T5. Default: what the checkpoint names.")
    device: str = typer.Option("auto", help=DEVICE_HELP)
    dtype: str = typer.Option("float32", help=DTYPE_HELP)

    def load(self, model: str, **options: Any) -> Pipeline:
        options = {"size": self.size, "text_encoder": self.text_encoder} | options
        return load_pipeline(model, self.adapter, self.dtype, self.device, **options)


@dataclass(frozen=True)
class Runtime(Loading):
    """The same, with what makes it faster."""

    compile: bool = typer.Option(False, "--compile", help=COMPILE_HELP)

    def load(self, model: str, **options: Any) -> Pipeline:
        return super().load(model, compile=self.compile, **options)


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
            groups[name] = hints[name]
            shared += _options_of(hints[name])
        elif parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            parameters.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))
    if gives := hints.get("return") not in (None, type(None)):
        asked = typer.Option(False, "--json", help="Print one JSON line at the end.")
        shared.append(inspect.Parameter("json", inspect.Parameter.KEYWORD_ONLY, default=asked, annotation=bool))

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


def _options_of(group: type) -> list[inspect.Parameter]:
    hints = get_type_hints(group)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in fields(group)
    ]
