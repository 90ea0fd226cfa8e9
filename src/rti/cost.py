"""What a forward pass costs: tokens per block, analytic FLOPs, and parameter counts, all without running anything."""

from __future__ import annotations

from torch import nn

from rti.backbones.base import Backbone
from rti.method.config import ReductionConfig
from rti.method.reductions import Reduction


def blocks_run(backbone: Backbone, reduction: Reduction) -> list[int]:
    """The blocks of the trunk in the order they run: each once, unless the reduction runs some of the core again."""
    first, last = reduction.config.core
    return [*range(first), *reduction.core_blocks(), *range(last + 1, backbone.depth)]


def tokens_per_block(backbone: Backbone, reduction: Reduction, budget: int) -> list[int]:
    """Image tokens in each of `blocks_run`."""
    first, last = reduction.config.core
    outside = backbone.patches
    return [outside] * first + reduction.core_tokens(budget) + [outside] * (backbone.depth - 1 - last)


def reduced_flops(backbone: Backbone, reduction: Reduction, budget: int, text_tokens: int | None = None) -> float:
    """The paper's count for one picture: linear layers and attention of the trunk, side tokens as many as there are.

    `text_tokens` says how many the text has where it is shortened.
    """
    runs = zip(blocks_run(backbone, reduction), tokens_per_block(backbone, reduction, budget), strict=True)
    return sum(backbone.block_flops(block, tokens, text_tokens) for block, tokens in runs)


def dense_flops(backbone: Backbone) -> float:
    """The same of the backbone alone."""
    return sum(backbone.block_flops(block, backbone.patches) for block in range(backbone.depth))


def parameter_count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def trainable_count(backbone: Backbone, reduction: Reduction, config: ReductionConfig) -> int:
    """What `rti.attach` would train: LoRA's two factors on each target, and the reduction. Without importing PEFT."""
    lora = 0
    for name, module in backbone.named_modules():
        if isinstance(module, nn.Linear) and f".{name}".endswith(tuple(f".{end}" for end in backbone.lora_targets)):
            lora += config.lora_rank * (module.in_features + module.out_features)
    return lora + parameter_count(reduction)
