"""TensorFlow's synchronous strategies by name. A training loop with `strategy.run` and `strategy.reduce` works with all
of them."""

from __future__ import annotations

import os
from pathlib import Path

from common.tensorflow import place_in_cluster, tf

SYNCHRONOUS = ("multiworker", "mirrored", "central", "onedevice", "tpu")


def make_strategy(name: str, replicas: int, devices: list[str] | None = None) -> tf.distribute.Strategy:
    """One of SYNCHRONOUS. Call it before anything else of TensorFlow. `devices`: for `mirrored`, `central` and
    `onedevice`. Without them all GPUs, or on a machine without GPUs `replicas` parts of the CPU.

    Raises SystemExit if this job or this machine does not have what the strategy needs."""
    if name == "multiworker":
        # Connects to the other tasks. NCCL between GPUs, gRPC rings between CPUs.
        return tf.distribute.MultiWorkerMirroredStrategy()
    _, tasks = place_in_cluster()
    if tasks > 1:
        raise SystemExit(
            f"--strategy {name} trains in one task, but TF_CONFIG has {tasks}: use one worker or --strategy multiworker"
        )
    if name == "tpu":
        return connect_to_tpu()
    devices = compute_devices(replicas, devices)
    if name == "mirrored":
        return tf.distribute.MirroredStrategy(devices)
    if name == "central":  # the weights are on the CPU, or on the only GPU
        return tf.distribute.experimental.CentralStorageStrategy(compute_devices=devices)
    return tf.distribute.OneDeviceStrategy(devices[0])


def compute_devices(replicas: int, devices: list[str] | None = None) -> list[str]:
    """These devices, such as GPU:0; without them all GPUs, or a CPU that is split into `replicas` devices.

    Raises SystemExit if this machine does not have one of them."""
    gpus = [f"GPU:{number}" for number in range(len(tf.config.list_physical_devices("GPU")))]
    parts = [f"CPU:{number}" for number in range(replicas)]
    chosen = [device.upper() for device in devices or gpus or parts]
    if missing := [device for device in chosen if device not in [*gpus, *parts]]:
        raise SystemExit(f"--devices {missing[0]}: this machine has {', '.join([*gpus, *parts])}")
    if any(device in parts for device in chosen):
        [cpu, *_] = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
    return chosen


def connect_to_tpu() -> tf.distribute.Strategy:
    """A strategy for the TPU of this machine, or the one that TPU_NAME names. This has not been run yet."""
    devices = [path for pattern in ("accel[0-9]*", "vfio/[0-9]*") for path in Path("/dev").glob(pattern)]
    if not os.environ.get("TPU_NAME") and not devices:
        raise SystemExit("--strategy tpu: no TPU here: TPU_NAME is not set, /dev/accel0 and /dev/vfio/0 do not exist")
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=os.environ.get("TPU_NAME", "local"))
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)
