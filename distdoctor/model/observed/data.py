"""What a rank read: samples, in their order, by which loader."""

from __future__ import annotations

from dataclasses import dataclass

from distdoctor.model.events import Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Read(Observation):
    """A pass over a DataLoader ended, or the rank's journal does.

    Samples are told apart in two ways. By index: where the dataset can be indexed, and
    through any `Subset` down to the dataset at the bottom. By content: a fingerprint of
    the sample's part of each tensor of the batch.
    """

    loader: int = 0  # number of the loader among the rank's, in order of first use
    epoch: int = 0  # number of the pass over this line, from 0
    length: int = -1  # samples of the dataset at the bottom; -1: it does not say
    dataset: int = 0  # fingerprint of some of its samples; 0: none was taken
    samples: tuple[int, ...] = ()  # indices, in the order of reading
    contents: tuple[int, ...] = ()  # fingerprints, likewise
    steps: int = 0  # optimizer steps meanwhile; 0: nothing was trained on it
    unfinished: bool = False  # the pass was left, or the job ended in it
    shortened: bool = False  # distdoctor left batches out


KINDS = (Read,)
