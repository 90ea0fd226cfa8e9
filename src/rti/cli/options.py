"""Options that several commands share, as one parameter."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints


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
