"""Options that several commands share: alone, and several as one parameter."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

import typer

from rti.errors import InputError

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


def unfold(command: Callable[..., None]) -> Callable[..., None]:
    """A command in which a parameter that is a dataclass of options stands for the options, one for each field.

    The command line shows them after the command's own; the command gets them back as the dataclass.
    """
    parameters, shared, groups = [], [], {}
    hints = get_type_hints(command)
    for name, parameter in inspect.signature(command).parameters.items():
        if is_dataclass(hints[name]):
            groups[name] = hints[name]
            shared += _options_of(hints[name])
        else:
            parameters.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def unfolded(**values: Any) -> None:
        together = {
            name: group(**{field.name: values.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        command(**together, **values)

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
