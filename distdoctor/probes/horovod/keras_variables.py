"""Takes fingerprints of what Keras' optimizers train, in jobs with Horovod.

Keras tells an optimizer its variables in `build`, each time it is given gradients, and
does so outside of what is being traced: there they can be read. Steps that a function
of TensorFlow makes are noticed when it returns.

Source: keras/src/optimizers/optimizer.py and legacy/optimizer_v2.py of TensorFlow 2.15.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from hashlib import blake2b
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary, ref

from distdoctor.model.observations.data import Fed
from distdoctor.model.observations.horovod import VariablePrints
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.harmless import harmless
from distdoctor.probes.horovod import reduction_chains, tensorflow_operations
from distdoctor.probes.horovod.tensor_values import is_on_gpu
from distdoctor.probes.recorder import RECORDER

_MOST_OPTIMIZERS = 16
_MOST_VARIABLES = 4096
_MOST_BYTES = 1 << 20  # of each variable; BLAKE2b reads about 1 GB/s
_MOST_COUNTED = 1_000  # steps that one function makes
_LEAST_FED = 8  # elements of a tensor that holds samples
_NO_VALUES = {"resource", "variant", "string"}
_HOROVODS = "horovod._keras"


def is_due(step: int) -> bool:
    """Whether variables are looked at after this step: 0, 1, 2, 3, 4, 8, 16 and so on.

    It depends on the step alone, so that all ranks look at the same.
    """
    return step == 3 or not step & (step - 1)


class TrainedVariables:
    """An optimizer of Keras, and the variables it was given last.

    Args:
        number: Among the rank's.
        optimizer: The optimizer.
    """

    def __init__(self, number: int, optimizer: Any) -> None:
        self.number, self._optimizer = number, ref(optimizer)
        self._variables: list[ref[Any]] = []
        self._looked = -1
        self._counted = -1
        self._wrapped = any(
            getattr(one, "__module__", "").startswith(_HOROVODS)
            for one in (getattr(type(optimizer), "_allreduce", None),)
        )

    def holds(self, variables: Sequence[Any]) -> None:
        """Called with the variables, whenever it is given gradients for them."""
        if len(variables) <= _MOST_VARIABLES:
            self._variables = [ref(one) for one in variables]

    def is_trained_in(self, variables: Sequence[Any]) -> bool:
        """Whether a function that uses some variables makes steps of it."""
        iterations = getattr(self._optimizer(), "iterations", None)
        return any(one is iterations for one in variables)

    def look(self, site: Callable[[], str]) -> None:
        """Take fingerprints, if that is due at the step it is at."""
        optimizer = self._optimizer()
        if optimizer is None:
            return
        step = int(optimizer.iterations.numpy())
        self._count(step)
        if step <= self._looked or not is_due(step):
            return
        alive = [one() for one in self._variables]
        here = [one for one in alive if one is not None]
        if len(here) < len(alive) or any(map(is_on_gpu, here)):
            return
        prints = tuple(_print_of(one) for one in here)
        self._looked = step
        observation = VariablePrints(
            optimizer=self.number,
            step=step,
            names=tuple(str(one.name) for one in here),
            sizes=tuple(int(one.shape.num_elements()) for one in here),
            prints=prints,
            wrapped=self._wrapped,
        )
        RECORDER.observe(observation, site())

    def next_step(self) -> int:
        """The number of the step that it will make next, from 1; 0: it is gone."""
        optimizer = self._optimizer()
        return 0 if optimizer is None else int(optimizer.iterations.numpy()) + 1

    def _count(self, step: int) -> None:
        """Tell of the steps that it has made since the last time."""
        global _steps_made
        writer = RECORDER.writer
        if self._counted >= 0 and writer is not None:
            _steps_made += max(0, step - self._counted)
            for _ in range(min(step - self._counted, _MOST_COUNTED)):
                writer.step()
        self._counted = step


def _print_of(variable: Any) -> int:
    data = variable.numpy().tobytes()[:_MOST_BYTES]
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")


_trained: WeakKeyDictionary[Any, TrainedVariables] = WeakKeyDictionary()
_steps_made = 0


def steps_made() -> int:
    """How many steps all optimizers of the process made, as far as was noticed."""
    return _steps_made


def forget() -> None:
    """Forget all state: the process starts to play in another run."""
    global _steps_made
    _trained.clear()
    reduction_chains.forget()
    _steps_made = 0


def all_trained() -> list[TrainedVariables]:
    """The optimizers that were given gradients so far."""
    return list(_trained.values())


def watch(optimizers: ModuleType) -> None:
    """Wrap the method that takes variables, right after the optimizers were loaded.

    Args:
        optimizers: A module of Keras' optimizers.
    """
    for class_name, method in (
        ("_BaseOptimizer", "build"),
        ("OptimizerV2", "_create_all_weights"),
    ):
        kind = optimizers.__dict__.get(class_name)
        if kind is not None:
            setattr(kind, method, _building(getattr(kind, method)))
            kind.apply_gradients = _applying(kind.apply_gradients)


def _applying(made: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(made)
    def apply_gradients(
        self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any
    ) -> Any:
        pairs = list(grads_and_vars)  # as Keras itself does; it may be a zip
        if RECORDER.writer is not None and tensorflow_operations.was_loaded():
            _applied(pairs)
        return made(self, pairs, *args, **kwargs)

    apply_gradients.autograph_info__ = {}  # type: ignore[attr-defined]
    return apply_gradients


@harmless
def _applied(pairs: Sequence[Any]) -> None:
    given = [pair[0] for pair in pairs if pair[0] is not None]
    reduction_chains.given_to_optimizer(given, call_site(3))


def _building(made: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(made)
    def build(self: Any, var_list: Any, *args: Any, **kwargs: Any) -> Any:
        result = made(self, var_list, *args, **kwargs)
        if RECORDER.writer is not None and tensorflow_operations.was_loaded():
            _built(self, var_list)
        return result

    return build


@harmless
def _built(optimizer: Any, variables: Any) -> None:
    known = _trained.get(optimizer)
    if known is None:
        if len(_trained) >= _MOST_OPTIMIZERS:
            return
        known = _trained[optimizer] = TrainedVariables(len(_trained), optimizer)
    known.holds(list(variables))
    if all(hasattr(one, "numpy") for one in variables) and _can_be_read(variables):
        known.look(lambda: call_site(3))


def _can_be_read(variables: Any) -> bool:
    """Whether all have values yet: those made while tracing may get them later."""
    return all(bool(one.is_initialized()) for one in variables)


@harmless
def stepped(trained: Sequence[TrainedVariables]) -> None:
    """Called when a function has returned that makes steps of some optimizers."""
    for one in trained:
        one.look(lambda: call_site(4))


@harmless
def fed(trained: Sequence[TrainedVariables], given: Sequence[Any]) -> None:
    """Called with what a function is given that makes steps of some optimizers."""
    step = trained[0].next_step()
    if not step or not is_due(step):
        return
    tensors = [
        one
        for part in given
        for one in part
        if getattr(one.dtype, "name", "") not in _NO_VALUES
        and hasattr(one, "numpy")
        and one.shape.num_elements() >= _LEAST_FED  # else the number of a step, perhaps
    ]
    if tensors and not any(map(is_on_gpu, tensors)):
        together = blake2b(digest_size=8)
        for one in tensors:
            together.update(one.numpy().tobytes()[:_MOST_BYTES])
        print_ = int.from_bytes(together.digest(), "little")
        RECORDER.observe(Fed(step=step, inputs=print_), call_site(4))
