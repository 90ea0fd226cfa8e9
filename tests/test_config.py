"""Configuration: frozen, picky, and the same after a trip through JSON."""

import json
from dataclasses import FrozenInstanceError, fields, replace
from itertools import product

import pytest

from references import assert_refused
from rti.method.config import CUT_NAMES, CUT_SOURCES, INTERFACES, ORDER_NAMES, POSITIONS, RegionConfig
from rti.method.order import ORDERS
from rti.method.partition import RULES
from rti.method.reductions import REDUCTIONS, config_from_dict


def test_the_names_are_those_of_the_orders_and_the_rules():
    """They are written twice, so that a configuration needs no torch."""
    assert tuple(ORDERS) == ORDER_NAMES
    assert tuple(RULES) == CUT_NAMES


def test_the_defaults_are_the_papers():
    config = RegionConfig(core=(3, 13))
    assert (config.order, config.cuts, config.cuts_from) == ("hilbert", "gaps", "features")
    assert (config.lora_rank, config.lora_alpha) == (32, 32)


def test_a_configuration_is_frozen():
    config = RegionConfig(core=(3, 13))
    for field in fields(config):
        with pytest.raises(FrozenInstanceError):
            setattr(config, field.name, getattr(config, field.name))
    assert hash(config) == hash(RegionConfig(core=(3, 13)))


@pytest.mark.parametrize("cuts", CUT_NAMES)
def test_the_size_prior_is_a_half_for_the_estimate_and_none_for_features(cuts):
    assert RegionConfig(core=(0, 1), cuts=cuts, cuts_from="estimate").size_prior == 0.5
    assert RegionConfig(core=(0, 1), cuts=cuts, cuts_from="features").size_prior == 0.0
    assert RegionConfig(core=(0, 1), cuts=cuts, cuts_from="estimate", size_prior=0).size_prior == 0
    assert RegionConfig(core=(0, 1), cuts=cuts, cuts_from="features", size_prior=0.25).size_prior == 0.25


@pytest.mark.parametrize("core", [(0, 0), (3, 13), [3, 13]])
def test_a_core_is_a_first_and_a_last_block(core):
    assert RegionConfig(core=core).core == tuple(core)


NONSENSE = {
    "core": ((), (3,), (3, 4, 5), (4, 3), (-1, 3), (0.0, 3), (0, 3.5), ("0", 3), (False, 3), (0, None), "03", 3, None),
    "order": ("Hilbert", "peano", "", None, 3, ["hilbert"]),
    "cuts": ("gap", "Merge", "", None, 3, ("gaps",)),
    "cuts_from": ("feature", "image", "", None, True, ["features"]),
    "size_prior": (-0.5, float("nan"), float("inf"), "0.5", "x", True, [0.5], 1j),
    "lora_rank": (0, -1, 1.5, 32.0, "32", None, True),
    "lora_alpha": (0, -1, 1.5, 32.0, "32", None, True),
    "text_regions": (0, 1, "true", None, 16),
    "interface": ("learn", "Mean", "", None, True),
    "position": ("center", "", None, 0),
    "size_embedding": (0, 1, "no", None),
    "sized_write": (0, 1, "no", None),
    "sized_attention": (0, 1, "no", None),
    "one_pass": ((), (3,), (1, 2, 3), (0.5, 2), (7, 1.5), (1, float("inf")), "1.5..7", 3, True),
}
ALLOWED = {
    "core": ("0 <= first <= last",),
    "order": ORDER_NAMES,
    "cuts": CUT_NAMES,
    "cuts_from": CUT_SOURCES,
    "size_prior": ("at least 0",),
    "lora_rank": ("from 1 to 16384",),
    "lora_alpha": ("from 1 to 16384",),
    "text_regions": ("true or false",),
    "interface": INTERFACES,
    "position": POSITIONS,
    "size_embedding": ("true or false",),
    "sized_write": ("true or false",),
    "sized_attention": ("true or false",),
    "one_pass": ("from 1 up",),
}


def test_every_field_is_put_to_the_test_below():
    assert set(NONSENSE) == set(ALLOWED) == {field.name for field in fields(RegionConfig)}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in NONSENSE.items() for value in values], ids=repr
)
def test_nonsense_is_refused(field, value):
    given = {"core": (0, 1)} | {field: value}
    assert_refused(lambda: RegionConfig(**given), field, repr(value), *ALLOWED[field])
    assert_refused(lambda: replace(RegionConfig(core=(0, 1)), **{field: value}), field, repr(value))


def test_a_core_must_lie_in_the_trunk():
    config = RegionConfig(core=(3, 13))
    config.check_fits(14)
    assert_refused(lambda: config.check_fits(13), "(3, 13)", "0 to 12")


@pytest.mark.parametrize(("order", "cuts", "cuts_from"), product(ORDER_NAMES, CUT_NAMES, CUT_SOURCES))
@pytest.mark.parametrize("size_prior", [None, 0.25])
def test_a_configuration_survives_json(order, cuts, cuts_from, size_prior):
    """JSON knows no tuples: the core comes back as a list."""
    config = RegionConfig((2, 5), 8, 16, True, (1.5, 7.0), order, cuts, cuts_from, size_prior)
    values = json.loads(json.dumps(config.to_dict()))
    assert values["core"] == [2, 5]
    assert values["reduction"] == "region"
    again = config_from_dict(values)
    assert type(again) is RegionConfig
    assert again == config
    assert hash(again) == hash(config)
    assert values["reduction"] == "region"  # what was given is left alone


def test_fields_that_are_not_given_take_their_defaults():
    assert config_from_dict({"core": [3, 13]}) == RegionConfig(core=(3, 13))


def test_unknown_fields_are_refused():
    values = RegionConfig(core=(3, 13)).to_dict() | {"tokens": 64, "bits": 3}
    assert_refused(lambda: config_from_dict(values), "bits, tokens", "core", "size_prior")


def test_a_missing_core_is_refused():
    """As it is missing in the configuration of some other model."""
    assert_refused(lambda: config_from_dict({"order": "hilbert"}), "core")


def test_nonsense_is_refused_also_from_a_file():
    values = RegionConfig(core=(3, 13)).to_dict() | {"cuts": "gap"}
    assert_refused(lambda: config_from_dict(values), "'gap'", "gaps")


@pytest.mark.parametrize("name", ["pool", "", None, 3])
def test_an_unknown_reduction_is_refused(name):
    assert_refused(lambda: config_from_dict({"reduction": name, "core": [3, 13]}), repr(name), *REDUCTIONS)
