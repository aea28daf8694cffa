"""Records the variables of a rank's environment that configure libraries.

What is recorded goes by the beginning of its name: a record may be sent to somebody,
and the rest of an environment is nobody's affair.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping

from distdoctor.journal.secret_masking import mask_of, masked_value
from distdoctor.model.observations.environment import Variables
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER

_OF_LIBRARIES = (
    *("NCCL_", "RCCL_", "GLOO_", "UCX_", "FI_", "HOROVOD_", "TORCH_", "PYTORCH_"),
    *("TORCHDYNAMO_", "TORCHINDUCTOR_", "CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_"),
    *("HIP_", "HSA_", "ROCR_", "XLA_", "OMP_", "MKL_", "KMP_"),
    *("TF_CPP_", "TF_CUDNN_", "TF_DETERMINISTIC_", "TF_ENABLE_", "TF_GPU_", "TF_XLA_"),
)
"""How the names of variables begin that configure what trains, or what communicates."""

_MOST = 256  # variables
_LONGEST = 120  # characters of a value


def settings_of(environment: Mapping[str, str]) -> Iterator[str]:
    """Variables that configure libraries, as "NAME=value", in the order of names.

    >>> list(settings_of({"NCCL_ALGO": "Ring", "HOME": "/root"}))
    ['NCCL_ALGO=Ring']

    Args:
        environment: All variables of a process.
    """
    names = sorted(name for name in environment if name.startswith(_OF_LIBRARIES))
    for name in names[:_MOST]:
        value = environment[name]
        value = masked_value(name, value)
        if len(value) > _LONGEST:  # whether two are alike is told all the same
            value = mask_of(value)
        yield f"{name}={value.encode(errors='replace').decode()}"


class Environment:
    """Tells the variables once, when the rank joins."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all state: the process starts to play in another run."""
        self._is_told = False

    def tell(self) -> None:
        """Record them, if this has not been done yet."""
        if self._is_told or RECORDER.writer is None:
            return
        self._is_told = True
        settings = tuple(settings_of(os.environ))
        RECORDER.observe(Variables(host=socket.gethostname(), settings=settings))


ENVIRONMENT = Environment()

PROBE = Probe(joined=ENVIRONMENT.tell, reset=ENVIRONMENT.reset)
