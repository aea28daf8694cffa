"""Faults to plant in the reference jobs, and changes that are none."""

from __future__ import annotations

import amp_faults
import recomputation_faults
import token_faults
import trust_faults
from mutants import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *amp_faults.mutants(),
    *token_faults.mutants(),
    *trust_faults.mutants(),
    *recomputation_faults.mutants(),
)
"""All of them, by job."""
