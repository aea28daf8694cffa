"""What a rank read: samples, in their order, by which loader, out of which dataset."""

from __future__ import annotations

from distdoctor.model.events import Observation
from distdoctor.model.values import value


@value(frozen=True, slots=True, kw_only=True)
class SamplesRead(Observation):
    """Samples were read, by whatever gives them; never written as such."""


@value(frozen=True, slots=True, kw_only=True)
class Read(SamplesRead):
    """A pass over a DataLoader began, went on, or ended; its line is the loop's.

    A pass is told in parts, the first of them as it begins. Samples are told apart in
    two ways. By index: where the dataset can be indexed, and through any `Subset` down
    to the dataset at the bottom. By content: a fingerprint of the sample's part of
    each tensor, text or number of the batch.
    """

    number: int = 0  # of the pass among the rank's, from 0; its parts have the same
    made: tuple[int, ...] = ()  # `Made.number` of loader, samplers, datasets
    loader: int = 0  # number of the loader among the rank's
    view: int = 0  # number of the dataset that the loader was given
    dataset: int = 0  # number of the one at the bottom; see `HeldParameters`
    length: int = -1  # samples of the dataset at the bottom; -1: it does not say
    samples: tuple[int, ...] = ()  # indices, in the order of reading
    contents: tuple[int, ...] = ()  # fingerprints, likewise; 0: distdoctor left it out
    batch: int = 1  # samples of the largest batch
    workers: int = 0
    steps: int = 0  # optimizer steps on its batches; 0: nothing was trained on it
    optimizer: int = 0  # number of the optimizer that made the last of them
    resumed: int = 0  # how often the state of an optimizer had been loaded before
    replicas: int = 0  # among how many its sampler splits the samples; 0: it does not
    iterable: bool = False  # the dataset can not be indexed
    shuffled: bool = False  # its sampler is one that is to shuffle
    drawn: bool = False  # its sampler draws some samples, or with replacement
    generated: bool = False  # the loader was given a random generator of its own
    rising: bool = False  # the indices that the sampler gave so far only rise
    unfinished: bool = False  # another part follows, it was left, or the job ended
    shortened: bool = False  # distdoctor ended it early; its indices are not all known
    capped: bool = False  # there were too many samples to note them all


@value(frozen=True, slots=True, kw_only=True)
class Made(Observation):
    """What passes are made with was made; its line is the one that made it."""

    number: int = 0  # among the rank's; one for all of a class that a line made
    role: str = ""  # one of `ROLES`
    kind: str = ""  # its class


LOADER, SAMPLER, SUBSET, DATASET = "loader", "sampler", "subset", "dataset"
SET_EPOCH, ITERATED = "epoch", "iter"

ROLES = {
    LOADER: "made the loader",
    SAMPLER: "made its sampler",
    SUBSET: "made the subset it reads",
    DATASET: "made the dataset",
    SET_EPOCH: "told the sampler the epoch",
    ITERATED: "begins the function that gives the samples",
}
"""What a line does for a pass, in words for readers."""


@value(frozen=True, slots=True, kw_only=True)
class Held(Observation):
    """What a dataset holds, where it holds something for each sample.

    Two ranks whose datasets hold the same have the same sample at an index, whatever
    is made of it at random when it is read.
    """

    number: int = 0  # of the dataset among the rank's
    length: int = 0  # samples
    names: tuple[str, ...] = ()  # attributes with as many rows as there are samples
    rows: tuple[int, ...] = ()  # of each in turn, fingerprints of a few spread rows
    bags: tuple[int, ...] = ()  # of each, all rows in any order; 0: not taken


@value(frozen=True, slots=True, kw_only=True)
class Fed(Observation):
    """A model was called in training, at one of a few steps; its place: that line."""

    step: int = 0  # of the process's optimizers, from 1
    inputs: int = 0  # fingerprint of all that it was called with; 0: not known


@value(frozen=True, slots=True, kw_only=True)
class Numbered(Observation):
    """A dictionary gives each of n names one of n numbers in a row.

    Its place: the line of a running function that comes to it by the name.
    """

    name: str = ""  # such as "stoi" or "vocab.stoi"
    size: int = 0  # names in it
    keys: int = 0  # fingerprint of the names, in whatever order
    numbers: int = 0  # fingerprint of the names with their numbers
    first: tuple[str, ...] = ()  # by the alphabet, as "name=number"
    hashed: bool = False  # in the order in which this process' sets have them
    fits: bool = False  # a parameter of a model has as many rows, or columns


KINDS = (Read, Made, Held, Fed, Numbered)
"""Observations as words of a drawing: `read(samples=0-3+7,steps=2)`."""
