"""Shuffling, mixtures and the procedural world: pure functions of (seed, index)."""

import pickle
from collections import Counter

import numpy as np
import pytest
import torch

from rti.data import BrokenExample, Drawn, Example, Mixture, Shuffle, Source, Tolerant, open_data
from rti.errors import InputError
from rti.lab.scenes.source import ScenesSource
from rti.seeds import scramble


class Numbers(Source):
    """Example number i has caption "NAME i"; the numbers in `broken` are broken."""

    kind = "text"

    def __init__(self, name, length, broken=()):
        self.name, self.length, self.broken = name, length, set(broken)

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.check_index(index)
        if index in self.broken:
            raise BrokenExample(f"{self.name} {index} is broken")
        return Example(torch.zeros(3, 1, 1), f"{self.name} {index}", None)

    def describe(self):
        return f"numbers {self.name}"


class Classes(Numbers):
    kind = "labels"


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 16, 17, 100, 1025])
def test_order_visits_each_index_once_per_epoch(length):
    order = Shuffle(length, seed=3)
    for epoch in range(4):
        assert sorted(order.index(epoch * length + place) for place in range(length)) == list(range(length))


def test_order_differs_between_epochs_and_seeds():
    def epoch(seed, number):
        return tuple(Shuffle(100, seed).index(number * 100 + place) for place in range(100))

    orders = {epoch(seed, number) for seed in range(-1, 3) for number in range(3)}
    assert len(orders) == 12 and tuple(range(100)) not in orders
    assert epoch(1, 2) == epoch(1, 2)


def test_order_is_fixed_for_good():
    """Runs resumed with a later version must see the same order; these numbers may never change."""
    assert [Shuffle(10, 0).index(position) for position in range(10)] == [7, 8, 2, 6, 9, 3, 0, 4, 5, 1]
    mixture = Mixture([Numbers("a", 5), Numbers("b", 3)], [2, 1], 1)
    assert [mixture[index].caption for index in range(8)] == ["a 3", "b 1", "b 2", "a 1", "b 0", "b 0", "a 0", "a 2"]


@pytest.mark.parametrize("length", [3, 5, 12])
def test_order_is_fair(length):
    """Over many epochs every (place, index) is about equally frequent: chi-square within 5 sigma."""
    order, epochs = Shuffle(length, 11), 3000
    counts = np.zeros((length, length))
    for position in range(epochs * length):
        counts[position % length, order.index(position)] += 1
    expected = epochs / length
    freedom = (length - 1) ** 2
    assert ((counts - expected) ** 2 / expected).sum() < freedom + 5 * (2 * freedom) ** 0.5


def test_neighbours_are_scattered():
    """No trace of the original order: successive indices correlate as random ones do (sigma 0.01)."""
    indices = [Shuffle(10_000, 0).index(position) for position in range(10_000)]
    assert abs(np.corrcoef(indices[:-1], indices[1:])[0, 1]) < 0.05
    assert abs(np.corrcoef(indices, range(10_000))[0, 1]) < 0.05


def test_order_of_huge_and_endless_sources():
    huge = Shuffle(1 << 50, 0)
    assert len({huge.index(position) for position in range(1000)}) == 1000
    assert Shuffle(None, 0).index(12345) == 12345
    assert Shuffle.of(ScenesSource(16), 0).index(7) == 7
    assert Shuffle.of(Numbers("a", 9), 0).length == 9


@pytest.mark.parametrize("make", [lambda: Shuffle(0), lambda: Shuffle(-3), lambda: Shuffle(5).index(-1)])
def test_wrong_orders(make):
    with pytest.raises(InputError, match="at least"):
        make()


def test_scramble_is_splitmix():
    """The first outputs of SplitMix64 from seed 0, as published; arrays agree with ints."""
    assert scramble(0) == 0xE220A8397B1DCDAF
    assert scramble(0x9E3779B97F4A7C15) == 0x6E789E6AA1B965F4
    values = [0, 1, 2**63, 2**64 - 1]
    assert scramble(np.array(values, dtype=np.uint64)).tolist() == [scramble(value) for value in values]


def test_mixture_proportions():
    """MiniT2I's weights, which do not sum to one."""
    mixture = Mixture([Numbers("a", 500), Numbers("b", 70), Numbers("c", 1000)], [0.06, 0.016, 0.04], seed=5)
    draws = 20_000
    counts = Counter(mixture.pick(index)[0] for index in range(draws))
    for number, weight in enumerate((0.06, 0.016, 0.04)):
        share = weight / 0.116
        assert abs(counts[number] / draws - share) < 5 * (share * (1 - share) / draws) ** 0.5


def test_mixture_walks_each_source_without_repetition():
    lengths = {"a": 50, "b": 7}
    mixture = Mixture([Numbers(name, length) for name, length in lengths.items()], [3, 1])
    seen = {"a": [], "b": []}
    for index in range(600):
        name, number = mixture[index].caption.split()
        seen[name].append(int(number))
    for name, length in lengths.items():
        epochs = [seen[name][start : start + length] for start in range(0, len(seen[name]), length)]
        assert all(sorted(epoch) == list(range(length)) for epoch in epochs[:-1])
        assert len(epochs) > 3 and epochs[0] != epochs[1] and epochs[0] != sorted(epochs[0])


def test_mixture_random_access_equals_reading_in_order():
    """Across the border of a block, read backwards by a fresh copy, and after pickling."""

    def make(seed=1):
        return Mixture([Numbers("a", 1000), Numbers("b", 300)], [2, 1], seed)

    forward = make()
    indices = [*range(50), *range(65_500, 65_600), 300_000]
    captions = [forward[index].caption for index in indices]
    backward = make()
    assert [backward[index].caption for index in reversed(indices)] == captions[::-1]
    assert [pickle.loads(pickle.dumps(forward))[index].caption for index in indices[-3:]] == captions[-3:]
    assert [make(2)[index].caption for index in indices] != captions
    ranks = Counter()
    for index in range(65_600):  # counted one by one, what pick() counts by blocks
        number, rank = forward.pick(index)
        assert rank == ranks[number]
        ranks[number] += 1


def test_mixture_shuffles_each_source_in_its_own_way():
    def walk(seed, name):
        mixture = Mixture([Numbers("a", 40), Numbers("b", 40)], [1, 1], seed)
        captions = [mixture[index].caption.split() for index in range(200)]
        return tuple(number for source, number in captions if source == name)[:40]

    assert len({walk(seed, name) for seed in (0, 1) for name in "ab"}) == 4


def test_wrong_mixtures():
    a, b = Numbers("a", 3), Numbers("b", 3)
    for weights in ([1], [1, 0], [1, -1], [1, float("nan")], [1, float("inf")]):
        with pytest.raises(InputError, match="weight"):
            Mixture([a, b], weights)
    with pytest.raises(InputError, match="one kind, text or labels, got numbers a"):
        Mixture([a, Classes("c", 3)], [1, 1])
    with pytest.raises(IndexError):
        Mixture([a], [1])[-1]


def test_tolerant_skips_and_counts():
    drawn = Tolerant(Numbers("a", 6, broken={1, 2, 5}))
    assert [(d.example.caption, d.index, d.skipped) for d in (drawn[index] for index in range(6))] == [
        ("a 0", 0, 0),
        ("a 3", 1, 2),
        ("a 3", 2, 1),
        ("a 3", 3, 0),
        ("a 4", 4, 0),
        ("a 0", 5, 1),
    ]
    assert isinstance(drawn[0], Drawn)
    with pytest.raises(IndexError):
        drawn[6]


def test_tolerant_stops_at_the_limit():
    source = Numbers("a", 500, broken=range(100, 203))
    assert Tolerant(source)[103].skipped == 100
    with pytest.raises(InputError, match=r"101 broken examples in a row in numbers a; the last: a 202 is broken"):
        Tolerant(source)[102]
    with pytest.raises(InputError, match="3 broken examples in a row in numbers a"):
        Tolerant(source, limit=2)[150]
    with pytest.raises(InputError, match="4 broken examples"):
        Tolerant(Numbers("b", 4, broken=range(4)))[0]


def test_tolerant_hides_no_other_error():
    class Faulty(Numbers):
        def __getitem__(self, index):
            raise KeyError("a mistake in the program")

    with pytest.raises(KeyError):
        Tolerant(Faulty("a", 3))[0]


def test_broken_examples_do_not_shift_the_weights_of_a_mixture():
    parts = [Numbers("a", 1000, broken=range(0, 1000, 2)), Numbers("b", 1000)]
    mixture = Mixture(parts, [1, 1])
    tolerant = Tolerant(mixture)
    for index in range(200):
        assert tolerant[index].example.caption[0] == "ab"[mixture.pick(index)[0]]
    with pytest.raises(InputError, match="101 broken examples in a row in numbers a"):
        [Tolerant(Mixture([Numbers("a", 1000, range(1000)), parts[1]], [1, 1]))[index] for index in range(50)]


def test_scenes_depend_on_seed_and_index_alone():
    source = open_data("scenes", 64, seed=4)
    first = [source[index] for index in (5, 0, 123_456_789_012)]
    again = [open_data("scenes", 64, seed=4)[index] for index in (5, 0, 123_456_789_012)]
    for one, two in zip(first, again, strict=True):
        assert torch.equal(one.image, two.image) and one.caption == two.caption and one.label is None
    assert first[0].image.shape == (3, 64, 64) and first[0].image.dtype == torch.float32
    assert first[0].image.abs().max() <= 1 and source.kind == "text"
    assert not torch.equal(first[0].image, first[1].image)
    assert not torch.equal(open_data("scenes", 64, seed=5)[5].image, first[0].image)


def test_scenes_of_one_task():
    counting = open_data("scenes:counting", 64, seed=4)
    captions = [counting[index].caption for index in range(20)]
    assert {caption.split()[0] for caption in captions} == {"two", "three", "four"}
    assert "counting only" in counting.describe()
    mixed = open_data("scenes@1,scenes:counting@2", 64, seed=4)
    counted = sum(mixed[index].caption.split()[0] in ("two", "three", "four") for index in range(300))
    assert 0.6 < counted / 300 < 0.84  # 1/3 * 1/6 + 2/3


def test_wrong_scenes():
    with pytest.raises(InputError, match="'sorting'; allowed: single_object, two_object, counting"):
        open_data("scenes:sorting", 64)
    with pytest.raises(InputError, match="without a task"):
        open_data("scenes:counting", 64, kind="labels")
    for size in (48, (64, 32), 65):
        with pytest.raises(InputError, match="scenes are square"):
            open_data("scenes", size)
    with pytest.raises(InputError, match="left and right"):
        open_data("scenes", 64, flip=True)
    with pytest.raises(InputError, match="seed must be a whole number from 0"):
        open_data("scenes", 64, seed=-1)
    with pytest.raises(IndexError):
        ScenesSource(16)[-1]
