"""Keras' `fit` with Horovod: broadcast, averaged metrics, warm-up, rank-0 checkpoint.

Run it with

    horovodrun -np 2 python horovod_keras.py --epochs 4
"""

import argparse
import tempfile
from pathlib import Path

import horovod.tensorflow.keras as hvd
import tensorflow as tf

FEATURES, CLASSES, SAMPLES, BATCH = 16, 4, 512, 32


def main() -> None:
    """Train a small classifier."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()

    hvd.init()
    points = tf.random.stateless_normal([SAMPLES, FEATURES], seed=[1, 2])
    kinds = tf.argmax(points[:, :CLASSES], axis=1)
    mine = points[hvd.rank() :: hvd.size()], kinds[hvd.rank() :: hvd.size()]

    hidden = tf.keras.layers.Dense(32, activation="relu")
    model = tf.keras.Sequential([hidden, tf.keras.layers.Dense(CLASSES)])
    optimizer = tf.keras.optimizers.SGD(0.05 * hvd.size(), momentum=0.9)
    measure = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        optimizer=hvd.DistributedOptimizer(optimizer),
        loss=measure,
        metrics=["accuracy"],
    )
    with tempfile.TemporaryDirectory() as folder:
        callbacks = [
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            hvd.callbacks.LearningRateWarmupCallback(
                initial_lr=0.05 * hvd.size(), warmup_epochs=1, momentum_correction=False
            ),
        ]
        if hvd.rank() == 0:
            file = str(Path(folder) / "weights-{epoch}.h5")
            keeper = tf.keras.callbacks.ModelCheckpoint(file, save_weights_only=True)
            callbacks.append(keeper)
        model.fit(
            *mine,
            batch_size=BATCH,
            epochs=options.epochs,
            callbacks=callbacks,
            verbose=2 if hvd.rank() == 0 else 0,
        )


if __name__ == "__main__":
    main()
