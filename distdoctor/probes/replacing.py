"""Puts a function in the place of one of torch's, wherever torch holds it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any


def replace_everywhere(
    function: Callable[..., Any], around: Callable[..., Any]
) -> None:
    """Put `around(function, …)` in the place of a function, in all of torch.

    Several modules of torch import these functions by name (DeviceMesh does).
    """

    @functools.wraps(function)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        return around(function, *args, **kwargs)

    for name, module in list(sys.modules.items()):
        if name.startswith("torch.distributed") and module is not None:
            for key, value in list(vars(module).items()):
                if value is function:
                    setattr(module, key, replacement)
