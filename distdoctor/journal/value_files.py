"""Files of tensors that a rank had before a step: `values-RANK-STEP.npz`, and JSON.

They are written inside of the job, by the library alone and numpy, and read by
`values_reader`.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from distdoctor.journal.layout import REFERENCE_FOLDER
from distdoctor.journal.private_files import make_private_folder, write_private
from distdoctor.model.step_values import Values

NAME = re.compile(r"values-(\d{1,6})-(\d{1,4})\.npz", re.ASCII)
"""Of such a file: rank and step."""

WEIGHT, GRADIENT, GIVEN, OUTPUT = "weight", "gradient", "given", "output"
BEHIND_BACKWARD = "behind"
"""First words of names of arrays in it, before a slash.

Behind it stands the tensor's name; for outputs, the number of the module and that of
the tensor among what it gave.
"""

TOLD = "told"
"""Name of the array of bytes in which the rest stands, as JSON."""


def write_values(
    folder: Path,
    rank: int,
    step: int,
    arrays: Mapping[str, Values],
    told: Mapping[str, Any],
) -> int:
    """Write what a rank has before a step.

    Args:
        folder: The record folder.
        rank: The global rank.
        step: Number of the step, from 1.
        arrays: Tensors; names begin with such a word and a slash.
        told: What else is known; see `values_reader.ToldValues`.

    Returns:
        Bytes that were written.

    Raises:
        OSError: There is no space, or the file is there already.
    """
    where = make_private_folder(folder / REFERENCE_FOLDER, below=1)
    buffer = io.BytesIO()
    text = np.frombuffer(json.dumps(told).encode(), dtype=np.uint8)
    np.savez(buffer, **{TOLD: text}, **arrays)  # type: ignore[arg-type]
    data = buffer.getvalue()
    write_private(where / f"values-{rank}-{step}.npz", data, below=2)
    return len(data)
