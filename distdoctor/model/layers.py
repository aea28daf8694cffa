"""Parts of torch that users call and that communicate on their own.

Apart from the operations, because every process of a job imports this.
"""

LAYERS = ("", "backward", "ddp", "fsdp", "dtensor", "checkpoint", "pipeline", "horovod")
"""Their names; "": none of them, the user's own call.

"backward" is autograd: what reducers and hooks issue while gradients are computed.
"horovod" is its optimizer, outside of backward.
"""

LAYER_SHIFT, LAYER_MASK = 3, 7
"""Where a call's flags hold the position of its layer in `LAYERS`."""


def layer_of(flags: int) -> str:
    """The layer in a call's flags.

    Args:
        flags: The column `flags` of a call.

    Returns:
        A name in `LAYERS`, or "".
    """
    number = flags >> LAYER_SHIFT & LAYER_MASK
    return LAYERS[number] if number < len(LAYERS) else ""
