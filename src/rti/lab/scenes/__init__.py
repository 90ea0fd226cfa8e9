"""The scenes world: pictures with captions in GenEval's six tasks, and an exact judge of what a picture shows.

words      what captions may say, and their ids
world      scenes: objects, caption, requirements; what is held out from training
layout     where the objects stand
shapes     their outlines
render     pictures, and training batches by (seed, index)
classes    the same world by class, for models that take labels
shards     the world as tar files
components connected components of masks
detect     which objects a picture shows
judge      GenEval's decision rule
intervals  bootstrap
score      accuracy per task and overall, with intervals
"""

from rti.lab.judge import Verdict, judge, relative_positions
from rti.lab.scenes.classes import CLASSES, class_example, class_of, class_prompts, class_scene
from rti.lab.scenes.detect import Detection, detect
from rti.lab.scenes.render import Batch, batch, render
from rti.lab.scenes.score import Difference, SceneScore, paired_difference, score, score_of_verdicts
from rti.lab.scenes.world import (
    HELD_OUT_PAIRS,
    HELD_OUT_TRIPLES,
    TASKS,
    Requirement,
    Scene,
    Thing,
    held_out_combinations,
    prompts,
    sample_scenes,
)
from rti.text.vocabulary import (
    CAPTION_LENGTH,
    COLOURS,
    RELATIONS,
    SHAPES,
    TEXTURES,
    VOCABULARY,
    decode,
    encode,
    vocabulary_line,
)

__all__ = [
    "CAPTION_LENGTH",
    "CLASSES",
    "COLOURS",
    "HELD_OUT_PAIRS",
    "HELD_OUT_TRIPLES",
    "RELATIONS",
    "SHAPES",
    "TASKS",
    "TEXTURES",
    "VOCABULARY",
    "Batch",
    "Detection",
    "Difference",
    "Requirement",
    "Scene",
    "SceneScore",
    "Thing",
    "Verdict",
    "batch",
    "class_example",
    "class_of",
    "class_prompts",
    "class_scene",
    "decode",
    "detect",
    "encode",
    "held_out_combinations",
    "judge",
    "paired_difference",
    "prompts",
    "relative_positions",
    "render",
    "sample_scenes",
    "score",
    "score_of_verdicts",
    "vocabulary_line",
]
