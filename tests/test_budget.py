"""Budgets: numbers, shares, schedules, and words typed on the command line."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from references import PROPERTY, assert_refused
from rti.errors import InputError
from rti.method.budgets import is_dense, parse_budget, resolve_budget, resolve_schedule

NONSENSE = [
    *(0, -1, 257, 10**30, np.int64(0), np.int32(257)),
    *(0.0, -0.25, 1.5, 256.0, float("nan"), float("inf"), -float("inf"), np.float32(1.5), Fraction(5, 4)),
    *(True, False, np.True_, 1j, {}, object),
]
WORDS = ["x", "", "65 %%", "dens", "0", "257", "1.5", "-25%", "dense"]  # "dense" is no number of regions


@PROPERTY
@given(st.integers(1, 4096), st.data())
def test_a_whole_number_is_itself(patches, data):
    budget = data.draw(st.integers(1, patches))
    for number in (budget, np.int64(budget), np.int32(budget), np.uint16(budget)):
        resolved = resolve_budget(number, patches)
        assert resolved == budget
        assert type(resolved) is int


@PROPERTY
@given(st.integers(1, 4096), st.floats(0, 1, exclude_min=True))
def test_a_share_is_the_nearest_number_of_regions_but_at_least_one(patches, share):
    resolved = resolve_budget(share, patches)
    assert 1 <= resolved <= patches
    assert type(resolved) is int
    assert resolved == 1 or abs(resolved - share * patches) <= 0.5


@pytest.mark.parametrize(
    ("share", "regions"),
    [
        (0.25, 64),
        (1.0, 256),
        (0.5, 128),
        (1e-9, 1),
        (np.float32(0.25), 64),
        (np.float64(1.0), 256),
        (Fraction(1, 4), 64),
    ],
)
def test_a_share_may_be_of_any_kind_of_number(share, regions):
    resolved = resolve_budget(share, 256)
    assert resolved == regions
    assert type(resolved) is int


def test_one_is_a_single_region_and_one_point_zero_all_of_them():
    assert resolve_budget(1, 256) == 1
    assert resolve_budget(1.0, 256) == 256


def test_no_budget_is_all_patches():
    assert resolve_budget(None, 256) == 256


@pytest.mark.parametrize("budget", [*NONSENSE, [64], (64,)], ids=repr)
def test_nonsense_is_refused(budget):
    assert issubclass(InputError, ValueError)
    assert_refused(lambda: resolve_budget(budget, 256), repr(budget), "1 to 256", "(0, 1]")


@pytest.mark.parametrize("budget", WORDS)
def test_words_that_are_no_budget_are_refused(budget):
    assert_refused(lambda: resolve_budget(budget, 256), repr(budget), "allowed")
    assert_refused(lambda: resolve_schedule([64, budget], 2, 256), repr(budget), "allowed")


@pytest.mark.parametrize(("budget", "regions"), [("64", 64), ("0.25", 64), ("25%", 64), (" 100 % ", 256), ("1.0", 256)])
def test_words_mean_what_they_mean_on_the_command_line(budget, regions):
    assert resolve_budget(budget, 256) == regions
    assert not is_dense(budget)


def test_dense_is_the_word_or_no_budget():
    assert is_dense(None)
    assert is_dense(" Dense ")
    assert not any(is_dense(budget) for budget in (1, 1.0, [None], [], lambda step: None))
    assert_refused(lambda: is_dense("dens"), "'dens'", "dense")


def test_a_schedule_may_be_a_list_with_one_budget_for_each_step():
    assert resolve_schedule([64, 0.5, "25%"], 3, 256) == [64, 128, 64]
    for few in ([], (64,), [64] * 3):
        assert_refused(lambda few=few: resolve_schedule(few, 2, 256), f"{len(few)} budgets", "2 steps")


def test_a_schedule_may_be_one_budget_for_all_steps():
    assert resolve_schedule(64, 3, 256) == [64, 64, 64]
    assert resolve_schedule(0.5, 2, 256) == [128, 128]
    assert resolve_schedule(None, 2, 256) == [256, 256]
    assert resolve_schedule(64, 0, 256) == []


def test_a_schedule_may_be_a_function_that_is_asked_once_for_each_step():
    asked = []

    def budget(step):
        asked.append(step)
        return [64, 0.5, None, np.int64(7)][step]

    assert resolve_schedule(budget, 4, 256) == [64, 128, 256, 7]
    assert asked == [0, 1, 2, 3]


@pytest.mark.parametrize("budget", NONSENSE[:-1], ids=repr)
def test_a_schedule_with_nonsense_in_it_is_refused(budget):
    assert_refused(lambda: resolve_schedule(budget, 2, 256), repr(budget), "1 to 256")
    assert_refused(lambda: resolve_schedule(lambda step: [64, budget][step], 2, 256), repr(budget), "1 to 256")


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        *(("256", 256), (" 256 ", 256), ("1", 1), ("0.25", 0.25), (".5", 0.5), ("1.0", 1.0), ("2.5e-1", 0.25)),
        *(("25%", 0.25), ("12.5%", 0.125), ("100%", 1.0), ("25 %", 0.25), ("dense", None), (" Dense ", None)),
    ],
)
def test_a_typed_budget_is_understood(text, budget):
    parsed = parse_budget(text)
    assert parsed == budget
    assert type(parsed) is type(budget)  # "1" is one region, "1.0" all of them


@pytest.mark.parametrize("text", ["", " ", "x", "dens", "%", "25%%", "1/4", "2,5", "0x10", "--5", "none", "a\nb", "."])
def test_a_typed_budget_that_is_none_is_refused(text):
    assert_refused(lambda: parse_budget(text), repr(text), "0.25", "dense")


@pytest.mark.parametrize("text", ["0", "-5", "257", "0.0", "1.5", "nan", "inf", "-inf", "150%", "0%", "nan%", "1e3"])
def test_a_typed_number_out_of_range_is_refused_once_the_patches_are_known(text):
    assert_refused(lambda: resolve_budget(parse_budget(text), 256), "1 to 256", "(0, 1]")
