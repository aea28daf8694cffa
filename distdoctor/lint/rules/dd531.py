"""The learning rate of one worker is used by all of Horovod's. Advice.

Found
-----

    import horovod.torch as hvd
    import torch

    def make(model, args):
        hvd.init()
        optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
        return hvd.DistributedOptimizer(optimizer, model.named_parameters())

Left alone
----------

    import horovod.torch as hvd
    import torch

    def make(model, args):
        hvd.init()
        rate = args.lr * hvd.size()
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        return hvd.DistributedOptimizer(optimizer, model.named_parameters())
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from distdoctor.lint.reading import Reading
from distdoctor.lint.source_findings import SourceFinding, line_of
from distdoctor.model.findings import Severity

CODE = "DD531"

_SCALED = re.compile(
    r"\*=?\s*(?:\w+\.)*(?:size|world_size|get_world_size)\b|size\(\)\s*\*"
)


def find(reading: Reading) -> Iterator[SourceFinding]:
    """Optimizers of Horovod whose rate nobody multiplies."""
    for file in reading.code.files:
        if "hvd.init(" not in file.text or "DistributedOptimizer(" not in file.text:
            continue
        if _SCALED.search(reading.text_around(file)):
            continue
        for scope in file.scopes:
            for call in scope.calls:
                dotted = file.dotted(call.func)
                if dotted.startswith("torch.optim.") and any(
                    one.arg == "lr" for one in call.keywords
                ):
                    yield SourceFinding(
                        code=CODE,
                        message="nothing multiplies this learning rate by the number "
                        "of workers, whose batches make one step together",
                        at=line_of(scope, call),
                        severity=Severity.NOTE,
                    )
