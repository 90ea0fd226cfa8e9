"""Measuring quality: how often a model draws what it was asked for, at each budget.

scenes     SceneEval, on the scenes world with its exact judge
sheet      its pictures with captions and verdicts, to look at
"""

from rti.evaluation.scenes import SceneResult, evaluate_scenes

__all__ = ["SceneResult", "evaluate_scenes"]
