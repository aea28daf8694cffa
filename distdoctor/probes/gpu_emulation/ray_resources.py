"""Has Ray count the GPUs for which the CPU stands in.

Ray looks for GPUs by itself, and a job that wants one for each worker waits for ever
where there are none.

Source: Ray 2.60, _private/resource_and_label_spec.py (`_load_env_resources`).
"""

from __future__ import annotations

import functools
import json
import os
from types import ModuleType
from typing import Any

from distdoctor.journal.environment import RANKS_VARIABLE

_VARIABLE = "RAY_OVERRIDE_RESOURCES"


def watch(module: ModuleType) -> None:
    """Replace `ray.init`, which starts a Ray with what the machine has."""
    made = module.__dict__["init"]

    @functools.wraps(made)
    def init(*args: Any, **kwargs: Any) -> Any:
        if _VARIABLE in os.environ or kwargs.get("num_gpus") is not None:
            return made(*args, **kwargs)
        count = os.environ.get(RANKS_VARIABLE, "")
        told = {"GPU": int(count) if count.isdigit() else 1}
        os.environ[_VARIABLE] = json.dumps(told)
        try:
            return made(*args, **kwargs)
        finally:
            os.environ.pop(_VARIABLE, None)

    module.__dict__["init"] = init
