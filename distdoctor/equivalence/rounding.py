"""Estimates how far rounding errors alone can move a gradient from the exact one.

The step is computed once in float64, which is exact for our purposes, and a few times
more with the result of every operation made wrong by as much as the precision under
test allows. What that does to each gradient is what rounding may do to it:

- An inner product or sum of d terms, computed with unit round-off u, has an error of at
  most `gamma(d, u)` of the sum of its terms' magnitudes, in whatever order it is summed
  (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1 and
  lemma 3.1). An elementwise operation is d = 1. So each result is multiplied by
  1 + s gamma(d, u), with s random in [-1, 1]: both results and terms, which are results
  of earlier operations.
- How such errors spread to the gradient, through all that follows, is measured and not
  bounded: this is Monte Carlo arithmetic (Parker, Monte Carlo Arithmetic, UCLA
  technical report CSD-970002, 1997). A bound in closed form multiplies norms from layer
  to layer, and becomes useless for more than a few.
- `CONFIDENCE` times the largest deviation that was seen is taken as the bound. For
  independent rounding errors, the probability to exceed their root mean square by a
  factor c is at most 2 exp(-c^2 / 2) (Hoeffding's inequality, as in Higham and Mary, A
  New Approach to Probabilistic Rounding Error Analysis, SIAM J. Sci. Comput. 41(5),
  2019, theorem 2.4): 3e-14 for c = 8.

The bound is never below gamma(d, u) of the gradient's largest entry, with d the largest
of the step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

CONFIDENCE = 8.0
"""How many times the largest deviation seen is taken for possible."""

TRIALS = 2
"""How often the step is computed with wrong results."""

_MOST = 0.25  # relative error of a single result: beyond, there is no first order


def unit_roundoff(dtype: torch.dtype) -> float:
    """Largest relative error of rounding to nearest.

    >>> unit_roundoff(torch.float32) == 2.0**-24
    True
    """
    return torch.finfo(dtype).eps / 2


def gamma(count: int, unit: float) -> float:
    """Bound of the relative error of `count` roundings in a row: n u / (1 - n u).

    Source: Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., lemma 3.1.

    >>> round(gamma(1000, 2.0**-24) * 1e5, 3)
    5.961
    """
    product = count * unit
    return product / (1 - product) if product < 1 else math.inf


class Counting(TorchDispatchMode):
    """Dispatch mode that counts summed terms and notes random operations.

    Attributes:
        depth: The largest number of terms that an operation sums.
        random: Names of operations that drew random numbers.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.depth = 1
        self.random: set[str] = set()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if torch.Tag.nondeterministic_seeded in func.tags and _draws(name, args):
            self.random.add(name)
        self.depth = max(self.depth, terms(name, args, result))
        return result


class Shaking(TorchDispatchMode):
    """Dispatch mode that perturbs results of operations as rounding would.

    Args:
        unit: Unit round-off that is simulated.
        seed: Seed of the errors.
        storage: Unit round-off of what goes into and comes out of products of matrices
            and the like, where sums are kept with `unit`, as under autocast.
    """

    def __init__(self, unit: float, seed: int, storage: float = 0.0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._unit, self._storage = unit, storage
        self._random = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = func.overloadpacket.__name__
        if self._storage and (name in _PRODUCTS or "convolution" in name):
            args = tree_map_only(Tensor, self._stored, args)
        result = func(*args, **(kwargs or {}))
        if func._schema.is_mutable or _is_view(func):
            return result  # other tensors share its memory
        if name in _EXACT:
            return result
        size = gamma(terms(name, args, result), self._unit) + self._storage
        size = min(size, _MOST)
        return tree_map_only(Tensor, lambda one: self._shaken(one, size), result)

    def _stored(self, tensor: Tensor) -> Tensor:
        """What weights and inputs are when they are cast."""
        return self._shaken(tensor.clone(), self._storage)

    def _shaken(self, tensor: Tensor, size: float) -> Tensor:
        if not tensor.is_floating_point() or tensor.is_sparse:
            return tensor
        error = torch.rand(tensor.shape, generator=self._random, dtype=tensor.dtype)
        error = error.to(tensor.device)
        return tensor.mul_(error.mul_(2 * size).add_(1 - size))


def terms(name: str, args: Sequence[Any], result: Any) -> int:
    """The number of terms of the longest sum that an operation computes.

    Products of matrices: their inner dimension. Convolutions: a kernel's size forwards,
    and all places of all samples backwards. Normalizations, softmax and attention: the
    last dimension. Else, how many elements go in for each that comes out.

    >>> terms("mm", (torch.ones(2, 7), torch.ones(7, 3)), torch.ones(2, 3))
    7
    >>> terms("sum", (torch.ones(6, 4),), torch.ones(4))
    6
    """
    tensors = [one for one in tree_flatten(args)[0] if isinstance(one, Tensor)]
    if not tensors:
        return 1
    if name in _PRODUCTS:
        inner = tensors[-2 if len(tensors) > 1 else 0].shape[-1]
        return max(1, inner) + (len(tensors) > 2)  # and what is added to it
    largest = max(one.numel() for one in tensors)
    if "convolution" in name:
        weights = tensors[2] if "backward" in name else tensors[1]
        inner = weights.numel() // max(1, weights.shape[0])
        outer = tensors[0].numel() // max(1, tensors[0].shape[1])
        return int(max(inner, outer) if "backward" in name else inner) + 1
    if any(part in name for part in _ALONG_ROWS):
        widest = max((one.shape[-1] for one in tensors if one.dim()), default=1)
        rows = largest // max(1, widest) if "backward" in name else 1
        return max(widest, rows) + 1
    given = [one for one in tree_flatten(result)[0] if isinstance(one, Tensor)]
    smallest = min((one.numel() for one in given if one.numel()), default=1)
    return max(1, largest // max(1, smallest)) if name in _SUMS else 1


_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "mv", "dot", "_addmm_activation"}
_ALONG_ROWS = ("softmax", "norm", "attention", "rnn", "lstm", "gru")
_SUMS = {"sum", "mean", "nll_loss_forward", "nll_loss2d_forward", "mse_loss", "var"}
_SUMS |= {"embedding_dense_backward", "index_add", "cumsum", "prod", "logsumexp"}
_SUMS |= {"binary_cross_entropy", "smooth_l1_loss", "huber_loss", "avg_pool2d"}
_SUMS |= {"_adaptive_avg_pool2d", "linalg_vector_norm", "std", "upsample_nearest2d"}

_EXACT = {"zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "arange"}
_EXACT |= {"clone", "detach", "empty", "empty_like", "new_zeros", "new_ones", "ge"}
_EXACT |= {"new_empty", "new_empty_strided", "cat", "stack", "index", "gather", "relu"}
_EXACT |= {"threshold_backward", "max_pool2d_with_indices", "lift_fresh", "copy"}
_EXACT |= {"native_dropout", "bernoulli", "neg", "abs", "where", "masked_fill", "sign"}
_EXACT |= {"scalar_tensor", "rand", "randn", "constant_pad_nd", "new_full", "embedding"}
_EXACT |= {"scatter", "select_backward", "slice_backward", "flip", "roll", "eq", "ne"}


def _is_view(func: Any) -> bool:
    return any(one.alias_info is not None for one in func._schema.returns)


def _draws(name: str, args: Sequence[Any]) -> bool:
    """Whether an operation that may draw random numbers does."""
    if "attention" in name:  # its argument dropout_p is the only float before the scale
        return any(isinstance(one, float) and 0 < one < 1 for one in args)
    if name == "native_dropout":
        return bool(args[1] > 0 and args[2] is not False)
    return True
