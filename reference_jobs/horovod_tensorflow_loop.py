"""A custom loop of TensorFlow with Horovod, as courses show it.

Run it with

    horovodrun -np 2 python horovod_tensorflow_loop.py --steps 40
"""

import argparse
import tempfile
from pathlib import Path

import horovod.tensorflow as hvd
import tensorflow as tf

FEATURES, CLASSES, SAMPLES = 16, 4, 1024


def dataset(batch: int) -> tf.data.Dataset:
    """This rank's part of the samples: `shard` comes before `shuffle`."""
    points = tf.random.stateless_normal([SAMPLES, FEATURES], seed=[1, 2])
    kinds = tf.argmax(points[:, :CLASSES], axis=1)
    samples = tf.data.Dataset.from_tensor_slices((points, kinds))
    part = samples.shard(hvd.size(), hvd.rank())
    return part.shuffle(SAMPLES, seed=3).repeat().batch(batch)


def main() -> None:
    """Train, and let rank 0 keep a checkpoint."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args()

    hvd.init()
    hidden = tf.keras.layers.Dense(32, activation="relu")
    model = tf.keras.Sequential([hidden, tf.keras.layers.Dense(CLASSES)])
    measure = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = tf.keras.optimizers.Adam(0.001 * hvd.size())

    @tf.function  # type: ignore[untyped-decorator]
    def step(points: tf.Tensor, kinds: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = measure(kinds, model(points, training=True))
        tape = hvd.DistributedGradientTape(tape)
        weights = model.trainable_variables
        slopes = tape.gradient(loss, weights)
        optimizer.apply_gradients(zip(slopes, weights, strict=True))
        return loss

    for number, (points, kinds) in enumerate(dataset(options.batch)):
        if number == options.steps:
            break
        loss = step(points, kinds)
        if number == 0:  # the optimizer has its slots only now
            hvd.broadcast_variables(model.variables, root_rank=0)
            hvd.broadcast_variables(optimizer.variables, root_rank=0)
        if number % 10 == 0:
            mean = hvd.allreduce(loss, name="loss")
            if hvd.rank() == 0:
                print(f"step {number}: loss {float(mean):.4f}", flush=True)
    if hvd.rank() == 0:
        with tempfile.TemporaryDirectory() as folder:
            saver = tf.train.Checkpoint(model=model, optimizer=optimizer)
            saver.save(str(Path(folder) / "model"))


if __name__ == "__main__":
    main()
