"""What `scripts/sooner.py` compares: reuse of earlier steps, and a solver of its own."""

import math
import sys
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))

from sooner import between
from sooner_draws import adams_bashforth
from sooner_reuse import KINDS, Counted, Reuse, reused

import rti
from close import assert_close
from test_sampling import solve
from tiny import CORE, make_backbone, make_inputs, randomise_trainable

STEPS, PICTURES = 7, 3


@pytest.fixture
def model(family) -> rti.ElasticModel:
    config = rti.RegionConfig(core=CORE, **rti.RegionConfig.untrained_defaults())  # it cuts from the estimate
    return randomise_trainable(rti.attach(make_backbone(family), config)).eval()


def draw(model, rule: Reuse | None, dense: bool, which=slice(None)) -> tuple[torch.Tensor, Counted]:
    noise, _, condition = make_inputs(model.backbone, PICTURES)
    noise, condition = noise[which], condition[which]
    with model.dense() if dense else nullcontext():
        given = (model, dense, len(noise))
        counted = Counted(*given) if rule is None else reused(model, dense, rule, len(noise), STEPS)
        how = {"steps": STEPS, "solver": "multistep", "budget": None if dense else 16}
        return rti.sample(counted, noise, condition, **how), counted


@pytest.mark.parametrize("dense", [True, False])
def test_where_nothing_is_reused_the_pictures_are_the_plain_ones(model, dense):
    """With the count beside them, and with a threshold of zero."""
    noise, _, condition = make_inputs(model.backbone, PICTURES)
    with model.dense() if dense else nullcontext(model) as plain:
        budget = {} if dense else {"budget": 16}
        wanted = rti.sample(plain, noise, condition, steps=STEPS, solver="multistep", **budget)
    found, counted = draw(model, None, dense)
    assert torch.equal(found, wanted)
    assert counted.rows == PICTURES * (counted.calls + counted.guided)
    for kind in KINDS:
        found, same = draw(model, Reuse(kind, tau=0.0), dense)
        assert torch.equal(found, wanted), kind
        assert same.rows == counted.rows


@pytest.mark.parametrize("cap", [1, 3])
def test_without_a_threshold_the_cap_alone_says_what_is_computed(cap):
    """The first step, each after `cap` others, and the last; a rate of change is known from the second step on."""
    for kind in ("core", "velocity"):
        model = rti.attach(make_backbone("minit2i"), rti.RegionConfig(core=CORE)).eval()
        first = 0 if kind == "core" else 1
        computed = {0, *range(first, STEPS, cap + 1), STEPS - 1}
        with patch.object(model.backbone, "run", wraps=model.backbone.run) as run:
            _, counted = draw(model, Reuse(kind, math.inf, cap), kind != "core")
        assert counted.rows == 2 * PICTURES * len(computed), kind
        if kind == "core":
            assert sum(call.args[1:] == (CORE[0], CORE[1] + 1) for call in run.call_args_list) == len(computed)


@pytest.mark.parametrize(("kind", "tau"), [("core", 0.4), ("difference", 0.6)])
def test_every_picture_decides_for_itself(model, kind, tau):
    """Some compute more steps than others, and alone each is as in the batch."""
    alone = [draw(model, Reuse(kind, tau), False, slice(one, one + 1)) for one in range(PICTURES)]
    together, counted = draw(model, Reuse(kind, tau), False)
    rows = [one.rows for _, one in alone]
    assert counted.rows == sum(rows) < PICTURES * (counted.calls + counted.guided)
    assert len(set(rows)) > 1
    gain = 2 * model.backbone.flow.guidance_scale - 1
    assert_close(torch.cat([picture for picture, _ in alone]), together, gain=gain)


def test_adams_bashforth_is_of_second_order():
    errors = [abs(solve(adams_bashforth, -1.5, steps) - math.exp(-1.5)) for steps in (64, 128, 256)]
    assert math.isclose(errors[0] / errors[1], 4, rel_tol=0.05)
    assert math.isclose(errors[1] / errors[2], 4, rel_tol=0.05)


def test_what_lies_between_is_linear_in_the_logarithm():
    curves = [np.array([10.0, 0.0]), np.array([30.0, 4.0]), np.array([20.0, 2.0])]
    assert between([1, 16, 4], curves, 2).tolist() == [15.0, 1.0]
    assert between([1, 16, 4], curves, 16).tolist() == [30.0, 4.0]
    assert between([1, 16, 4], curves, 17) is None
