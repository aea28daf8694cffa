"""Tells what ranks read by `tf.data` and in what order, in jobs with Horovod.

A pass over a pipeline begins where an iterator is made, and is over when that is gone.
What is done to the samples on their way (`shuffle` and with which seeds, `shard` and
which part) is read from the pipeline. Samples themselves are told apart where Python is
given the batches; Keras' `fit` takes them inside of a function.

Source: TensorFlow 2.15, tensorflow/python/data/ops: iterator_ops.py, dataset_ops.py,
shuffle_op.py, shard_op.py.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from hashlib import blake2b
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary, finalize

from distdoctor.journal.environment import RECORD_VARIABLE
from distdoctor.model.observations.horovod import PipelineRead, PipelineStage
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.harmless import harmless
from distdoctor.probes.horovod import keras_variables, tensorflow_operations
from distdoctor.probes.horovod.tensor_values import is_on_gpu, leaves
from distdoctor.probes.recorder import RECORDER

_MOST_PASSES = 64
_MOST_SAMPLES = 2_048  # of each pass
_MOST_TOLD = 16_384  # of the process
_MOST_BYTES = 1 << 16  # of each sample's part of a tensor
_MOST_PARTS = 16
_MOST_STAGES = 256

_BATCHING = {"Batch", "PaddedBatch", "ParallelBatch"}
_STAGES = {"Shuffle": "shuffle", "Shard": "shard", "Skip": "skip", "Repeat": "repeat"}

_sites: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
_numbers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


class _Pass:
    """A pass over a pipeline.

    Args:
        number: Among the rank's.
        dataset: The pipeline's last stage.
        site: The line that began it.
    """

    def __init__(self, number: int, dataset: Any, site: str) -> None:
        self._begun = PipelineRead(number=number, **_of_pipeline(dataset))
        self._site, self._contents, self._ended = site, list[int](), False
        self._given = self.steps = 0
        self._silent, self._steps_at_begin = True, keras_variables.steps_made()
        self._batched = bool(_BATCHING.intersection(self._begun.stages))
        RECORDER.observe(self._begun, site)

    def gave(self, batch: Any) -> None:
        """Called with each batch that Python is given."""
        global _told
        self._silent = False
        self._given += 1
        room = min(_MOST_SAMPLES - len(self._contents), _MOST_TOLD - _told)
        if room > 0:
            prints = list(_prints_of(batch, self._batched))[:room]
            _told += len(prints)
            self._contents += prints

    def ended(self) -> None:
        """Called when it had no more to give."""
        self._silent, self._ended = False, True

    def count(self) -> None:
        """Count steps that were made while nobody asked it for batches in Python."""
        if self._silent:
            now = keras_variables.steps_made()
            self.steps += now - self._steps_at_begin
            self._steps_at_begin = now

    def tell(self) -> None:
        """Tell what was read since the last time."""
        if not (self._contents or self.steps or self._ended):
            return
        read = PipelineRead(
            number=self._begun.number,
            pipeline=self._begun.pipeline,
            source=self._begun.source,
            stages=self._begun.stages,
            contents=tuple(self._contents),
            batches=self._given,
            steps=self.steps,
            ended=self._ended,
        )
        self._contents, self.steps, self._given, self._ended = [], 0, 0, False
        RECORDER.observe(read, self._site)


_passes: WeakKeyDictionary[Any, _Pass] = WeakKeyDictionary()
_latest: list[tuple[_Pass, int]] = []
_over: list[_Pass] = []
_count = _told = 0


def watch_iterators(iterator_ops: ModuleType) -> None:
    """Wrap the iterators, right after their module was loaded.

    Args:
        iterator_ops: TensorFlow's module of that name.
    """
    if RECORD_VARIABLE in os.environ:
        return  # calls are all that is wanted
    kind = iterator_ops.__dict__["OwnedIterator"]
    is_eager = iterator_ops.__dict__["context"].executing_eagerly
    made_create, made_next = kind._create_iterator, kind.__next__

    @functools.wraps(made_create)
    def create(self: Any, dataset: Any) -> Any:
        result = made_create(self, dataset)
        if _is_watched() and is_eager():
            _begin(self, dataset)
        return result

    @functools.wraps(made_next)
    def advance(self: Any) -> Any:
        if not _passes or not is_eager():
            return made_next(self)
        try:
            batch = made_next(self)
        except StopIteration:
            _end(self)
            raise
        _gave(self, batch)
        return batch

    advance.autograph_info__ = {}  # type: ignore[attr-defined]
    kind._create_iterator, kind.__next__ = create, advance


def watch_datasets(dataset_ops: ModuleType) -> None:
    """Note the lines that shuffle and split, right after the module was loaded.

    Args:
        dataset_ops: TensorFlow's module of that name.
    """
    kind = dataset_ops.__dict__["DatasetV2"]
    for name in ("shuffle", "shard", "skip"):
        setattr(kind, name, _noting(getattr(kind, name)))


def _noting(made: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(made)
    def transform(*args: Any, **kwargs: Any) -> Any:
        result = made(*args, **kwargs)
        if RECORDER.writer is not None or tensorflow_operations.was_loaded():
            _note(result)
        return result

    transform.autograph_info__ = {}  # type: ignore[attr-defined]
    return transform


@harmless
def _note(dataset: Any) -> None:
    _sites[dataset] = call_site(3)


def _is_watched() -> bool:
    return RECORDER.writer is not None and tensorflow_operations.was_loaded()


@harmless
def _begin(iterator: Any, dataset: Any) -> None:
    global _count
    _tell_over()
    if _count >= _MOST_PASSES:
        return
    _passes[iterator] = begun = _Pass(_count, dataset, call_site(3))
    _count += 1
    finalize(iterator, _gone, begun).atexit = False


@harmless
def _gone(begun: _Pass) -> None:
    """Called when an iterator is freed, perhaps amidst of what is being written."""
    _attribute()
    begun.count()
    _over.append(begun)


def _tell_over() -> None:
    while _over:
        _over.pop(0).tell()


def _attribute() -> None:
    """Optimizer steps belong to the pass that gave the latest batch."""
    if _latest:
        latest, at = _latest[0]
        now = keras_variables.steps_made()
        latest.steps += now - at
        _latest[0] = latest, now


@harmless
def _gave(iterator: Any, batch: Any) -> None:
    here = _passes.get(iterator)
    if here is not None:
        _attribute()
        _latest[:] = [(here, keras_variables.steps_made())]
        here.gave(batch)


@harmless
def _end(iterator: Any) -> None:
    here = _passes.get(iterator)
    if here is not None:
        _attribute()
        here.ended()


def flush() -> None:
    """Tell what was kept back: the job may end."""
    _attribute()
    _tell_over()
    for one in list(_passes.values()):
        one.count()
        one.tell()


def forget() -> None:
    """Forget all state: the process starts to play in another run."""
    global _count, _told
    _passes.clear()
    _numbers.clear()
    _latest.clear()
    _over.clear()
    _count = _told = 0


# --- what a pipeline does -----------------------------------------------------------


def _of_pipeline(dataset: Any) -> dict[str, Any]:
    """Its number, its source and its stages; those that count are told once."""
    known = _numbers.get(dataset)
    stages = list(_stages_of(dataset, [0], 0))
    if known is None:
        known = _numbers[dataset] = len(_numbers)
        for at, (first, stage) in enumerate(stages):
            kind = _STAGES.get(_name_of(stage))
            if kind is not None:
                told = PipelineStage(
                    pipeline=known, at=at, first=first, kind=kind, **_details(stage)
                )
                RECORDER.observe(told, _sites.get(stage, ""))
    return {
        "pipeline": known,
        "source": _print_of_sources([one for _, one in stages]),
        "stages": tuple(_name_of(one) for _, one in stages),
    }


def _stages_of(dataset: Any, count: list[int], depth: int) -> Iterator[tuple[int, Any]]:
    """Each stage behind those it takes samples of, with the position of the first."""
    first = count[0]
    if depth < _MOST_STAGES and first < _MOST_STAGES:
        for one in dataset._inputs():
            yield from _stages_of(one, count, depth + 1)
        count[0] += 1
        yield first, dataset


def _name_of(dataset: Any) -> str:
    name = type(dataset).__name__.lstrip("_")
    return name.removesuffix("V2").removesuffix("Dataset")


def _details(stage: Any) -> dict[str, Any]:
    match _name_of(stage):
        case "Shuffle":
            seeds = int(stage._seed), int(stage._seed2)
            return {"seeds": seeds, "size": int(stage._buffer_size)}
        case "Shard":
            return {"size": int(stage._num_shards), "index": int(stage._index)}
        case "Skip" | "Repeat":
            return {"size": int(stage._count)}
    return {}


def _print_of_sources(stages: list[Any]) -> int:
    """Of the tensors that it takes slices of; 0: they are not at hand."""
    digest, found = blake2b(digest_size=8), False
    for stage in stages:
        if stage._inputs():
            continue
        tensors = getattr(stage, "_tensors", None)
        if not isinstance(tensors, list) or _name_of(stage) != "TensorSlice":
            return 0
        for tensor in tensors[:_MOST_PARTS]:
            if is_on_gpu(tensor):
                return 0
            digest.update(str((tensor.dtype, tensor.shape)).encode())
            for row in (tensor[:8], tensor[-8:]):
                digest.update(_names_or_numbers(row.numpy()))
                found = True
    return int.from_bytes(digest.digest(), "little") if found else 0


def _names_or_numbers(rows: Any) -> bytes:
    """Of paths the last part: ranks may have their own copies of the files."""
    if rows.dtype.hasobject:
        texts = [bytes(one).rpartition(b"/")[2] for one in rows.ravel().tolist()]
        return b"\0".join(texts)
    return _bytes_of(rows)


# --- samples ------------------------------------------------------------------------


def _prints_of(batch: Any, batched: bool) -> Iterator[int]:
    """A fingerprint of each sample of a batch; none if it can not be read."""
    tensors = [
        one for one in leaves(batch) if hasattr(one, "numpy") and not is_on_gpu(one)
    ][:_MOST_PARTS]
    arrays = [one.numpy() for one in tensors]
    if not batched:
        if arrays:
            yield _print(arrays)
        return
    counts = {len(one) if getattr(one, "ndim", 0) else -1 for one in arrays}
    if len(counts) == 1:
        for at in range(max(counts.pop(), 0)):
            yield _print([one[at] for one in arrays])


def _print(parts: list[Any]) -> int:
    digest = blake2b(digest_size=8)
    for part in parts:
        digest.update(_bytes_of(part))
    return int.from_bytes(digest.digest(), "little") or 1


def _bytes_of(value: Any) -> bytes:
    if isinstance(value, bytes | str):
        return (value if isinstance(value, bytes) else value.encode())[:_MOST_BYTES]
    if getattr(getattr(value, "dtype", None), "hasobject", False):  # texts
        return b"\0".join(map(_bytes_of, value.ravel().tolist()))[:_MOST_BYTES]
    flat = value.reshape(-1)
    every = max(1, -(-flat.nbytes // _MOST_BYTES))
    raw: bytes = flat[::every].tobytes()
    return raw
