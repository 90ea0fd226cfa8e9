"""Between the first and the last step of a sampling loop the host never waits for the device.

The device here is torch's "meta": its tensors have a shape and no values, so whatever reads one fails, as does any
operation whose result's shape would depend on values. What is copied between it and the host is refused on sight.
"""

from collections import Counter

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import rti
import rti.method.partition as partition
from rti.method.merge import merge_tree
from rti.method.reductions import REDUCTIONS
from rti.solvers import BY_CLEAN_IMAGE, BY_VELOCITY
from tiny import CORE, make_backbone, make_inputs

# They start nothing on a device.
VIEWS = "alias as_strided detach diagonal expand permute select slice split split_with_sizes squeeze t transpose unbind"
VIEWS = {*VIEWS.split(), "_unsafe_view", "unsqueeze", "unfold", "view", "lift_fresh"}


class NoWaiting(TorchDispatchMode):
    """Counts the operations that start something on the device, and raises on those the host would wait for."""

    READS = {"_local_scalar_dense", "equal", "is_nonzero", "item", "masked_select", "nonzero", "unique_dim", "_unique2"}

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = function.overloadpacket.__name__
        result = function(*args, **kwargs)
        tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, torch.Tensor)]
        there = any(tensor.is_meta for tensor in tensors)
        mixed = there and not all(tensor.is_meta for tensor in tensors)
        masked = name in ("index", "index_put", "index_put_") and any(
            isinstance(index, torch.Tensor) and index.dtype == torch.bool for index in args[1]
        )
        if mixed or (there and (masked or name in self.READS)):
            raise AssertionError(f"waits: {function} of {[(*tensor.shape, tensor.device.type) for tensor in tensors]}")
        if there and name not in VIEWS:
            self.counts[name] += 1
        return result

    @property
    def total(self) -> int:
        return self.counts.total()


class NothingMade(TorchFunctionMode):
    """Raises on tensors made on the device of the host's numbers, which "meta" does not show as a copy."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        made = function in (torch.tensor, torch.Tensor.new_tensor)
        if function in (torch.as_tensor, torch.asarray):
            made = not isinstance(args[0], torch.Tensor)
        if made and result.is_meta:
            raise AssertionError(f"waits: {function.__name__} of {args}")
        return result


@pytest.fixture(autouse=True)
def merging_is_looked_into(monkeypatch):
    def merge_ranked(features, budget, size_prior):
        return merge_tree(features, size_prior, budget).ranked()

    monkeypatch.setattr(partition, "merge_ranked", merge_ranked)


def model_on_the_device(family: str, config) -> rti.ElasticModel:
    return rti.attach(make_backbone(family), config).eval().to("meta")


def watch(monkeypatch, solver: str) -> NoWaiting:
    """Around a solver, which is the loop; what is prepared before it may take its time."""
    watching = NoWaiting()
    table = next(table for table in (BY_VELOCITY, BY_CLEAN_IMAGE) if solver in table)
    plain = table[solver]

    def watched(*arguments):
        with watching, NothingMade():
            return plain(*arguments)

    monkeypatch.setitem(table, solver, watched)
    return watching


def sample(model, family: str, **options) -> torch.Tensor:
    x, _, condition = make_inputs(make_backbone(family))
    on_device = condition.to("meta")
    return rti.sample(model, x.to("meta"), on_device, steps=4, guidance_scale=3.0, **options)


CUTS = [(cuts, source) for cuts in ("gaps", "merge", "fixed") for source in ("features", "estimate")]


@pytest.mark.parametrize("solver", ["euler", "heun", "multistep"])
@pytest.mark.parametrize(("cuts", "source"), CUTS)
def test_no_rule_of_cuts_makes_the_host_wait(family, cuts, source, solver, monkeypatch):
    model = model_on_the_device(family, rti.RegionConfig(core=CORE, lora_rank=2, cuts=cuts, cuts_from=source))
    watching = watch(monkeypatch, solver)
    pictures = sample(model, family, budget=9, solver=solver, guidance_interval=(0.1, 0.8))
    assert pictures.is_meta
    assert watching.total > 400


@pytest.mark.parametrize(("cuts", "source"), CUTS)
def test_nor_do_text_regions(cuts, source, monkeypatch):
    config = rti.RegionConfig(core=CORE, lora_rank=2, cuts=cuts, cuts_from=source, text_regions=True)
    watch(monkeypatch, "euler")
    assert sample(model_on_the_device("minit2i", config), "minit2i", budget=9, text_budget=3).is_meta


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("solver", ["euler", "heun"])
def test_nor_does_any_reduction(family, name, solver, monkeypatch):
    model = model_on_the_device(family, REDUCTIONS[name][0](core=CORE, lora_rank=2))
    watching = watch(monkeypatch, solver)
    sample(model, family, budget=[64, 9, 33, 1], solver=solver)
    assert watching.total > 400


@pytest.mark.parametrize(
    "options",
    [
        dict(interface="mean"),
        dict(position="centre"),
        dict(sized_write=True, sized_attention=True),
        dict(one_pass=(1.5, 7.0)),
    ],
    ids=lambda options: next(iter(options)),
)
def test_nor_does_any_form_of_the_interface(family, options, monkeypatch):
    model = model_on_the_device(family, rti.RegionConfig(core=CORE, lora_rank=2, **options))
    watch(monkeypatch, "euler")
    assert sample(model, family, budget=9).is_meta


WAITS = {
    "reads": lambda there, here: there.sum().item(),
    "decides": lambda there, here: bool((there > 0).any()),
    "finds": lambda there, here: there.nonzero(),
    "picks by a mask": lambda there, here: there[there > 0],
    "sets by a mask": lambda there, here: there.index_put_((there > 0,), there[:1]),
    "makes of a number": lambda there, here: there.new_tensor(1.0),
    "makes of a list": lambda there, here: torch.tensor([1.0], device="meta"),
    "brings": lambda there, here: here.to("meta"),
    "copies": lambda there, here: there.copy_(here),
    "makes of an array": lambda there, here: torch.as_tensor(1.0, device="meta"),
}


@pytest.mark.parametrize("kind", WAITS)
def test_what_would_wait_is_noticed(kind):
    with NoWaiting(), NothingMade(), pytest.raises((AssertionError, RuntimeError, NotImplementedError)):
        WAITS[kind](torch.ones(4, device="meta"), torch.ones(4))


# How many operations there are.


@pytest.mark.parametrize("size_prior", [0.0, 0.5])
def test_merging_at_the_size_of_b16_takes_at_most_three_hundred_operations(size_prior):
    features = torch.empty(1, 1024, 768, device="meta")
    with NoWaiting() as watching:
        partition.partition(features, 256, "merge", size_prior)
    assert 200 < watching.total <= 300
    with NoWaiting() as watching:
        partition.partition(features, 256, "gaps")
    assert watching.total <= 12


@torch.no_grad()
def test_both_branches_of_guidance_share_one_partition(family, monkeypatch):
    config = rti.RegionConfig(core=CORE, lora_rank=2, cuts="merge", cuts_from="estimate")
    model, seen = model_on_the_device(family, config), []
    plain = partition.RULES["merge"]

    def watched(features, *rest):
        seen.append(len(features))
        return plain(features, *rest)

    monkeypatch.setitem(partition.RULES, "merge", watched)
    sample(model, family, budget=9, solver="euler")
    assert seen == [2] * 3  # the first step has no estimate
