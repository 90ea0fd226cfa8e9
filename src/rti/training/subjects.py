"""What the teacher of `rti adapt` draws: prompts or labels, some of which are only measured on."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rti.backbones.base import Backbone
from rti.errors import InputError
from rti.text.encoder import TextEncoder
from rti.text.prompts import prompts_of_file, spread_labels, template_prompts, word_prompts
from rti.text.words import WordEncoder
from rti.training.config import AdaptConfig

HELD_OUT = 8  # prompts that are only measured on


@dataclass
class Subjects:
    """What the teacher draws, and what is only measured on."""

    used: list[Any]
    held_out: list[Any]

    def digest(self) -> str:
        """Which they are: a run goes on with the same."""
        return hashlib.sha256(json.dumps([self.used, self.held_out]).encode()).hexdigest()[:16]

    @classmethod
    def of(cls, config: AdaptConfig, backbone: Backbone, encoder: TextEncoder | None, given: Any) -> Subjects:
        if given is not None:
            given = given.tolist() if hasattr(given, "tolist") else given
            labels = backbone.conditioned_on != "text"
            if not isinstance(given, (list, tuple)) or not given or not all(_usable(one, labels) for one in given):
                wanted = "labels, whole numbers" if labels else "prompts, none of them empty"
                raise InputError(f"prompts {given!r:.60} are not usable; allowed: a list of {wanted}")
            given = list(given)
        if backbone.conditioned_on != "text":
            if config.prompts is not None:
                raise InputError(f"{config.prompts} given, but {type(backbone).__name__} draws from labels")
            classes = backbone.config.num_classes
            every = [int(label) for label in given or config.labels or spread_labels(classes, classes)]
            backbone.condition(labels=every)  # refuses what is none
            return cls(every, [every[index % len(every)] for index in range(HELD_OUT)])  # of other noise
        if config.labels:
            raise InputError(f"labels {config.labels} given, but {type(backbone).__name__} draws from prompts")
        if given is not None or config.prompts is not None:
            every = prompts_of_file(Path(config.prompts)) if given is None else given
        else:
            every = word_prompts(2000) if isinstance(encoder, WordEncoder) else template_prompts()
        every = list(dict.fromkeys(every))
        if isinstance(encoder, WordEncoder):
            encoder(every, backbone.config.prompt_length)  # refuses words it does not know
        kept = min(HELD_OUT, len(every) // 4)
        return cls(every[: len(every) - kept], every[len(every) - kept :] or every)


def _usable(given: Any, labels: bool) -> bool:
    return type(given) is int if labels else isinstance(given, str) and bool(given.strip())
