"""How far two float32 results of the same mathematics may be apart: a share of their size, and not of what one machine
happened to print.

Another CPU, another batch or another number of threads adds the same products in another order. Each operation rounds
by at most half an eps of what it works on, to either side. After the hundred or so that lead to a value the errors have
walked sqrt(100) / 2 = 5 eps, and the furthest of thousands of values some three times as far. ROUNDINGS is twice that.
"""

import torch

EPSILON = torch.finfo(torch.float32).eps
ROUNDINGS = 32


def bound(*values: torch.Tensor, gain: float = 1.0) -> float:
    """What rounding may change in results as large as the largest of these values. `gain` is by how much the formula
    enlarges the rounding of what it is made of: guidance at scale s is s a - (s - 1) b, so 2 s - 1."""
    return gain * ROUNDINGS * EPSILON * max(some.abs().max().item() for some in values)


def assert_close(
    actual: torch.Tensor,
    expected: torch.Tensor,
    *parts: torch.Tensor,
    gain: float = 1.0,
    apart: float = 0.0,
) -> None:
    """`actual` is a float32 result and `expected` another, or the float64 one. `parts` are what they are a sum of, as
    that may be larger than the sum. `apart` is how far `expected` itself is known to be from the truth."""
    assert actual.dtype == torch.float32
    assert expected.isfinite().all()
    tolerance = bound(expected, *parts, gain=gain) + apart
    torch.testing.assert_close(actual.double(), expected.double(), atol=tolerance, rtol=0)
