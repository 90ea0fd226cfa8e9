# ruff: noqa: F401  these names are what others take from here
"""The scenes world: pictures with captions in GenEval's six tasks, and an exact detector of what a picture shows.

world   scenes: objects, caption, requirements; what is held out from training
layout  where the objects stand
shapes  their outlines
render  pictures, and training batches by (seed, index)
classes the same world by class, for models that take labels
source  the world as training data
detect  which objects a picture shows; rti.lab.judge decides whether they are the right ones
"""

from rti.lab.scenes.classes import CLASSES, class_example, class_of, class_prompts, class_scene
from rti.lab.scenes.detect import detect
from rti.lab.scenes.render import batch, render
from rti.lab.scenes.world import TASKS, Scene, prompts
from rti.text.vocabulary import COLOURS, SHAPES, decode, encode
