"""Learning rates and the batch they belong to: what a job says of it, and its rate."""

from dataclasses import replace

import pytest

from distdoctor.analysis.learning_rate.rate_scaling import unscaled
from distdoctor.analysis.learning_rate.recipes import recipes
from distdoctor.model.drawing import sketch
from distdoctor.model.run import Run

RATE = "hyperparameters(shared,kind={kind},names=0.lr,values={rate})@t.py:9"
COURSE = "rate_course(steps=15,rates={rate},highest={rate},last={rate})"
READ = "read(batch=16,steps=15)@t.py:7"


def run_of(
    source: str, *, rate: float = 0.02, kind: str = "SGD", more: str = ""
) -> Run:
    first = f"{RATE} {COURSE}".format(kind=kind, rate=rate)
    drawing = (
        f"rank 0 | wrap=ddp:w {more} {first} {READ} exit=0\n"
        f"rank 1 | wrap=ddp:w {more} {READ} exit=0"
    )
    return replace(sketch(drawing), sources={"t.py": source})


def stated(source: str) -> list[tuple[float, int]]:
    return [(one.rate, one.batch) for one in recipes(run_of(source))]


@pytest.mark.parametrize(
    "source",
    [
        "BASE_LR = 0.02\nBASE_BATCH = 16",
        "base_lr, base_bs = 2e-2, 16",
        "ref_lr: float = 0.02\nreference_batch_size: int = 16",
        "config = {'base_lr': 0.02, 'base_batch_size': 4 * 4}",
        "train(baseLr=0.02, baseBatch=16)",
        "def train(*, lr=0.02, lr_base_size_batch=16): pass",
        "lr = 0.02\nnominal_batch = 16",
        "option('--base-lr', default=0.02)\noption('--base-batch', default=16)",
        "LR_PER_16 = 0.02",
        "self.lr = 0.02  # tuned for batch size 16",
        "BASE_RATE = 0.02  # tuned for a batch size of 16",
        "# the learning rate of the recipe is for batches of 16\nlr = 0.02",
        "lr = 0.02  # lr for a global batch of 16",
        "optimizer = SGD(parameters, lr=0.02)  # lr 0.02 per 16 samples",
        '"""Reference: learning rate 0.02 at batch size 16."""\nlr = 0.02',
    ],
)
def test_a_recipe_may_be_told_in_many_ways(source: str) -> None:
    assert (0.02, 16) in stated(source)
    (one,) = unscaled(run_of(source))
    assert (one.base, one.batch.samples, one.by_rule) == (16, 32, 0.04)


@pytest.mark.parametrize(
    "source",
    [
        "single_gpu_lr = 0.02",
        "lr_single = 0.02",
        "base_lr = 0.02\nbase_world_size = 1",
        "LR_ONE_PROCESS = 0.02",
        "lr = 0.02  # found on a single GPU: lr of one GPU",
        "lr = 0.02  # tuned on one device",
        "lr = 0.02  # from the single-gpu recipe",
    ],
)
def test_a_recipe_may_be_that_of_one_process(source: str) -> None:
    assert stated(source) == [(0.02, 0)]
    (one,) = unscaled(run_of(source))
    assert one.base == 16


@pytest.mark.parametrize(
    "source",
    [
        "lr = 0.02\nbatch_size = 16",
        "lr = 0.02  # warm up for 16 batches",
        "lr = 0.02  # decays at epoch 16",
        "lr = 0.02  # halve this if the loss jumps\nbatch = 16",
        "base_lr = 0.02\nbatch = 16",
        "lr = 0.02\nbase_batch_per_gpu = 16",
        "lr = 0.02\nbase_batch = 16\nDataLoader(held, base_batch)",
        "lr = 0.02\nbase_batch = 16\nDataLoader(held, batch_size=base_batch)",
        "base_lr = 0.02\nbase_batch = 32",
        "base_lr = 0.01\nbase_batch = 16",
        "base_lr = 0.02\nbase_world_size = 2",
        "dropout_rate = 0.02\nbase_batch = 16",
        "this is no Python",
        "",
    ],
)
def test_a_job_that_says_no_such_thing_is_left_alone(source: str) -> None:
    assert unscaled(run_of(source)) == []


def test_of_several_recipes_the_largest_batch_counts() -> None:
    source = "base_lr = 0.02\nbase_batch = 16\nref_batch = 32"
    assert unscaled(run_of(source)) == []


def test_an_argument_counts_and_not_its_default() -> None:
    source = (
        "p.add_argument('--base-lr', default=0.02)\n"
        "p.add_argument('--base-batch', type=int, default=16, help='for the rate')\n"
        "base_batch = 16\nbase_lr = 0.02"
    )
    arguments = "arguments(names=base_batch+base_lr,values={n}+0.02)@t.py:3"
    (one,) = unscaled(run_of(source, more=arguments.format(n=8)))
    assert one.base == 8
    assert [place.line for place in one.recipe.places] == [1, 2]
    assert unscaled(run_of(source, more=arguments.format(n=32))) == []


def test_adaptive_optimizers_have_the_rule_of_the_root() -> None:
    holds = "holds(kind=AdamW,adaptive)@t.py:4"
    source = "base_lr = 0.02\nbase_batch = 8"
    (one,) = unscaled(run_of(source, kind="AdamW", more=holds))
    assert (one.adaptive, one.by_rule) == (True, 0.04)


RECIPE = "base_lr = 0.02\nbase_batch = 16"


@pytest.mark.parametrize(
    "more",
    [
        "gradients(factor=2.0)@t.py:9",
        "window(reads=0,batches=4,factor=1.0,more=3)@t.py:9",
        "read(number=1,batch=4,steps=2)@t.py:20",
    ],
    ids=["losses made larger", "sums and not means", "several loops"],
)
def test_what_is_not_known_to_be_unscaled_is_left_alone(more: str) -> None:
    assert unscaled(run_of(RECIPE)) != []
    assert unscaled(run_of(RECIPE, more=more)) == []


def test_a_warm_up_that_is_not_over_is_left_alone() -> None:
    run = run_of(RECIPE)
    rising = sketch(
        "rank 0 | wrap=ddp:w  rate_course(steps=2,rates=.01+.02,highest=.02,last=.02)  "
        + f"{RATE} {READ} exit=0\n".format(kind="SGD", rate=0.02)
        + f"rank 1 | wrap=ddp:w {READ} exit=0"
    )
    assert unscaled(replace(rising, sources=run.sources)) == []
