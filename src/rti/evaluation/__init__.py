"""Measuring quality: how often a model draws what it was asked for, at each budget.

earlier    verdicts of evaluations before this one
loss       the velocity loss on unseen data, paired over budgets
scenes     SceneEval, on the scenes world with its exact judge
sheet      its pictures with captions and verdicts, to look at
unfinished what an interrupted evaluation has drawn
"""

from rti.evaluation.earlier import Earlier
from rti.evaluation.loss import LossResult, evaluate_loss
from rti.evaluation.scenes import SceneResult, evaluate_scenes
from rti.evaluation.unfinished import Unfinished

__all__ = ["Earlier", "LossResult", "SceneResult", "Unfinished", "evaluate_loss", "evaluate_scenes"]
