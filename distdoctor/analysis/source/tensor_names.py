"""Names of what torch, and Python, do with tensors, by what that does with values."""

from __future__ import annotations

ALIASES = frozenset({"data", "T", "mT", "H", "mH", "real", "imag"})

VIEWS = frozenset(
    {"view", "view_as", "reshape", "reshape_as", "flatten", "unflatten", "squeeze"}
    | {"unsqueeze", "transpose", "permute", "t", "narrow", "select", "diagonal"}
    | {"detach", "expand", "expand_as", "contiguous", "requires_grad_", "swapaxes"}
    | {"movedim", "unfold", "ravel", "as_strided", "resolve_conj", "swapdims"}
    # As it may be there, or of that dtype, already:
    | {"to", "cuda", "cpu", "type", "type_as", "numpy", "pin_memory"}
    | {"float", "double", "half", "bfloat16", "int", "long", "bool"}
)
PARTS = frozenset({"chunk", "split", "unbind", "tensor_split", "split_with_sizes"})

DTYPES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "bfloat16": "bfloat16",
    "int": "int32",
    "long": "int64",
    "bool": "bool",
}

READING = frozenset(
    {"item", "tolist", "clone", "sum", "mean", "max", "min", "norm", "std", "var"}
    | {"abs", "argmax", "argmin", "amax", "amin", "median", "prod", "cumsum", "all"}
    | {"any", "add", "sub", "mul", "div", "true_divide", "pow", "sqrt", "rsqrt", "exp"}
    | {"log", "log2", "log10", "neg", "reciprocal", "square", "sigmoid", "tanh", "relu"}
    | {"softmax", "log_softmax", "logsumexp", "matmul", "mm", "bmm", "mv", "dot"}
    | {"eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "nonzero"}
    | {"unique", "sort", "argsort", "topk", "round", "floor", "ceil", "clamp", "clip"}
    | {"masked_select", "index_select", "gather", "repeat", "repeat_interleave"}
    | {"flip", "roll", "tril", "triu", "where", "cumprod", "count_nonzero", "equal"}
    | {"allclose", "float_power", "addmm", "outer", "softplus", "logical_not"}
    | {"add_", "sub_", "mul_", "div_", "clamp_", "clip_", "sqrt_", "pow_", "neg_"}
)
"""Methods of a tensor that compute with its values."""

WITH_ARGUMENT = frozenset(
    {"add_", "sub_", "mul_", "div_", "copy_", "matmul", "mm", "bmm", "dot", "mul"}
    | {"lerp_", "addcmul_", "addcdiv_", "addmm_", "index_copy_", "index_add_"}
)
"""Methods that compute with tensors they are given; no container has such names."""

OF_TORCH = frozenset({"torch", "F", "nn"})

NOT_READING = frozenset(
    {"is_tensor", "numel", "empty_like", "zeros_like", "ones_like", "rand_like"}
    | {"randn_like", "full_like", "broadcast_tensors", "result_type", "is_complex"}
    | {"is_floating_point", "atleast_1d", "atleast_2d", "broadcast_to", "grad"}
    | {"from_numpy", "as_tensor", "Parameter", "device", "dtype", "is_storage"}
)
NO_COMPUTING = frozenset(
    {"distributed", "autograd", "cuda", "utils", "jit", "multiprocessing", "library"}
)
"""Modules of torch that take tensors for other ends."""

READING_BUILTINS = frozenset(
    {"float", "int", "bool", "print", "str", "repr", "format", "abs", "round", "pow"}
)
OF_LISTS = frozenset({"sum", "max", "min"})
SAME_LISTS = frozenset({"list", "tuple", "reversed"})
EATERS = OF_LISTS | SAME_LISTS | {"dict", "stack", "cat", "concat", "join", "sorted"}
"""What goes through a generator to its end."""
