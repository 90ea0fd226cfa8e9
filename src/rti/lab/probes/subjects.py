"""What to probe a model with: prompts of its own world, of the templates or of a file, or labels."""

from __future__ import annotations

from pathlib import Path

from rti.errors import InputError, check_whole
from rti.lab import scenes
from rti.pipeline import Pipeline
from rti.text.prompts import prompts_of_file, spread_labels, template_prompts
from rti.text.words import WordEncoder


def subjects_of(pipe: Pipeline, count: int, seed: int = 7, file: Path | None = None) -> list[str] | list[int]:
    """Prompts for a model that reads text, of a file, or labels for one that does not.

    The model that ships knows the words of the scenes world alone, so it is asked for scenes.
    """
    check_whole("prompts", count)
    backbone = pipe.backbone
    if backbone.conditioned_on != "text":
        if file is not None:
            raise InputError(f"{file} given, but {type(backbone).__name__} draws from labels, not from prompts")
        return spread_labels(count, backbone.config.num_classes)
    if file is not None:
        prompts = prompts_of_file(Path(file))
        if count > len(prompts):
            raise InputError(f"{count} prompts asked for, {file} holds {len(prompts)}; a prompt is a line of it")
        return prompts[:count]
    if isinstance(pipe.text_encoder, WordEncoder):
        return [scene.caption for scene in scenes.prompts(count, seed)]
    return template_prompts(count, seed)
