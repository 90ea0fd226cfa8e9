"""What to draw: the prompts of each benchmark, and where it expects their pictures.

prompts    a prompt, a set of them, and the layouts
sources    GenEval, PartiPrompts, MJHQ-30K, a text file, class labels, the scenes world
files      the benchmarks' own files: fetched with a checksum, or read from a path; none is part of rti
"""

from rti.lab.pictures.prompts.prompts import Prompt, PromptSet
from rti.lab.pictures.prompts.sources import SOURCES, open_prompts, scene_prompts

__all__ = ["SOURCES", "Prompt", "PromptSet", "open_prompts", "scene_prompts"]
