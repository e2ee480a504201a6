"""Compares checkpoints of two runs, one function for each format: `python weights.py < PAIRS`, which prints results.

The main part runs in the Python of the program that wrote the checkpoints, because it has the libraries that read them.
So this file needs only the standard library to start. Nothing in a checkpoint is executed.
"""

# Paths are strings here, as libraries want them.
# ruff: noqa: PTH100, PTH110, PTH112, PTH118, PTH119, PTH202

from __future__ import annotations

import io
import json
import os
import struct
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

# --- files that are not complete, without any library ----------------------------------------------------------------

_LARGEST_JSON = 1 << 24


def incomplete(path: str | os.PathLike[str]) -> str:
    """Return why a file is only a part of a checkpoint; empty if it is complete, or if its format does not say."""
    name = os.fspath(path)
    try:
        with open(name, "rb") as file:
            start = file.read(96)
            size = os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        return ""
    if size == 0:
        return "it is empty"
    if start.startswith(b"PK"):
        return _incomplete_zip(name)
    if name.endswith(".safetensors"):
        return _incomplete_safetensors(name, size)
    if name.endswith(".json") and size < _LARGEST_JSON:
        return _incomplete_json(name)
    if start.startswith(b"\x89HDF") and len(start) == 96:
        at = {0: 40, 1: 44, 2: 28, 3: 28}.get(start[8], 0)
        end = struct.unpack("<Q", start[at : at + 8])[0] if at else 0
        return f"it has {size} of {end} bytes" if size < end else ""
    return ""


def _incomplete_zip(name: str) -> str:
    try:
        zipfile.ZipFile(name).close()
    except (zipfile.BadZipFile, OSError):
        return "the end of the zip archive is missing"
    return ""


def _incomplete_json(name: str) -> str:
    try:
        with open(name, encoding="utf-8") as file:
            json.load(file)
    except ValueError:
        return "it is not complete JSON"
    return ""


def _incomplete_safetensors(name: str, size: int) -> str:
    try:
        with open(name, "rb") as file:
            length = struct.unpack("<Q", file.read(8))[0]
            entries = json.loads(file.read(length))
        ends = [entry["data_offsets"][1] for key, entry in entries.items() if key != "__metadata__"]
    except (ValueError, struct.error, KeyError, TypeError, MemoryError, OverflowError):
        return "its header is not complete"
    end = 8 + length + max(ends, default=0)
    return f"it has {size} of {end} bytes" if size < end else ""


# --- formats, each with its library ----------------------------------------------------------------------------------


class NotComparedError(Exception):
    """There is no reader for the format, or its library is not installed."""


def torch_file(path: str) -> Any:
    import pickle

    import torch  # type: ignore[import-not-found]

    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise NotComparedError("it holds objects other than tensors, numbers and texts (weights_only)") from error


def safetensors_file(path: str) -> Any:
    from safetensors import safe_open  # type: ignore[import-not-found]

    try:
        import torch  # noqa: F401

        framework = "pt"
    except ImportError:
        framework = "np"
    with safe_open(path, framework) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def numpy_file(path: str) -> Any:
    import numpy as np

    content = np.load(path, allow_pickle=False)
    return dict(content) if hasattr(content, "files") else content


def hdf5_file(path: str) -> Any:
    import h5py  # type: ignore[import-not-found]

    source: Any = path
    if path.endswith(".keras"):
        with zipfile.ZipFile(path) as archive:
            source = io.BytesIO(archive.read("model.weights.h5"))
    values = {}
    with h5py.File(source, "r") as file:
        file.visititems(lambda name, item: values.update({name: item[()]}) if hasattr(item, "dtype") else None)
    return values


def tensorflow_checkpoint(path: str) -> Any:
    import tensorflow as tf  # type: ignore[import-untyped]

    reader = tf.train.load_checkpoint(path.removesuffix(".index"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map() if "OBJECT_GRAPH" not in name}


def torch_distributed_checkpoint(path: str) -> Any:
    from torch.distributed.checkpoint import format_utils  # type: ignore[import-not-found]

    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "whole.pt")
        format_utils.dcp_to_torch_save(path, file)
        return torch_file(file)


def orbax_checkpoint(path: str) -> Any:
    import orbax.checkpoint as ocp  # type: ignore[import-not-found]

    return ocp.PyTreeCheckpointer().restore(os.path.abspath(path))


FILES: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys((".pt", ".pth", ".bin", ".ckpt"), torch_file),
    ".safetensors": safetensors_file,
    **dict.fromkeys((".npz", ".npy"), numpy_file),
    **dict.fromkeys((".h5", ".hdf5", ".keras"), hdf5_file),
    ".index": tensorflow_checkpoint,
}
"""End of the name -> reader."""

DIRECTORIES: dict[str, Callable[[str], Any]] = {
    ".metadata": torch_distributed_checkpoint,
    "_CHECKPOINT_METADATA": orbax_checkpoint,
    "_METADATA": orbax_checkpoint,
}
"""A file in a directory that is one checkpoint -> reader."""


def checkpoints(folder: str) -> Iterator[str]:
    """Yield the path of each checkpoint below a folder: a file, or a directory that is one checkpoint."""
    for directory, subfolders, files in os.walk(folder):
        if any(marker in files for marker in DIRECTORIES):
            subfolders.clear()
            yield os.path.relpath(directory, folder)
            continue
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]  # what a job has set aside
        indexes = tuple(file.removesuffix(".index") + ".data-" for file in files if file.endswith(".index"))
        for file in files:
            if not file.startswith(".") and not (indexes and file.startswith(indexes)):
                yield os.path.relpath(os.path.join(directory, file), folder)


def read(path: str) -> dict[str, Any]:
    """Return name -> value. Raise NotComparedError."""
    if os.path.isdir(path):
        reader = next(reader for marker, reader in DIRECTORIES.items() if os.path.exists(os.path.join(path, marker)))
    else:
        reader = next((reader for end, reader in FILES.items() if path.endswith(end)), _no_reader)
    try:
        return dict(_leaves("", reader(path)))
    except ImportError as error:
        raise NotComparedError(f"the Python of the program has no {error.name}") from error


def _no_reader(path: str) -> Any:
    raise NotComparedError(f"format of {os.path.basename(path)}")


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(f"{name}.{key}" if name else str(key), item)
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from _leaves(f"{name}[{number}]", item)
    else:
        yield name, value


# --- the comparison --------------------------------------------------------------------------------------------------


def compare(path: str, other: str) -> dict[str, Any]:
    """Return result, detail and worst of `FileResult` for two checkpoints."""
    if _same_bytes(path, other):
        return {"result": "equal"}
    try:
        values, others = read(path), read(other)
    except NotComparedError as error:
        return {"result": "not compared", "detail": str(error)}
    except Exception as error:  # of any library
        return {"result": "not compared", "detail": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    return compare_values(values, others)


def compare_values(values: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    """Compare all numbers with a fraction: weights and the state of the optimizer. Other values are only mentioned."""
    if values.keys() != others.keys():
        names = sorted(values.keys() ^ others.keys(), key=str)
        return {"result": "differs", "detail": f"only one of both has {names[0]}", "worst": float("inf")}
    worst, where, different, others_differ = 0.0, "", 0, []
    for name, value in values.items():
        difference, is_number = _difference(value, others[name])
        if difference and is_number:
            different += 1
            if difference > worst:
                worst, where = difference, name
        elif difference:
            others_differ.append(name)
    also = f"; also different: {', '.join(others_differ[:3])}" if others_differ else ""
    if different:
        return {
            "result": "differs",
            "detail": f"{different} of {len(values)} values, most of all {where}{also}",
            "worst": worst,
        }
    return {"result": "same", "detail": f"{len(values)} values{also}"}


def _difference(value: Any, other: Any) -> tuple[float, bool]:
    """Return the largest relative difference, and whether the values are numbers with a fraction."""
    if isinstance(value, (bool, int, str, bytes, type(None))) or isinstance(other, (bool, int, str, bytes, type(None))):
        return (0.0 if value == other else float("inf")), False
    import numpy as np

    first, second = _array(value), _array(other)
    is_number = first.dtype.kind in "fc"
    if first.shape != second.shape or first.dtype != second.dtype:
        return float("inf"), True
    if np.array_equal(first, second, equal_nan=is_number):
        return 0.0, is_number
    if not is_number:
        return float("inf"), False
    largest = np.maximum(np.abs(first), np.abs(second))
    with np.errstate(all="ignore"):
        # Relative to the largest number of the tensor: of numbers near 0 only rounding is left.
        difference = float(np.nanmax(np.abs(first - second)) / (np.nanmax(largest) or 1.0))
    return (difference if difference == difference and difference > 0 else float("inf")), True


def _array(value: Any) -> Any:
    """Return a NumPy array. Tensors of types that NumPy does not have, such as bfloat16, become float32."""
    import numpy as np

    if hasattr(value, "detach"):
        value = value.detach()
        if value.is_floating_point():
            value = value.double() if value.element_size() > 4 else value.float()
        value = value.numpy()
    array = np.asarray(value)
    return array.astype("float32") if array.dtype.kind == "V" or array.dtype.name == "bfloat16" else array


def _same_bytes(path: str, other: str) -> bool:
    if os.path.isdir(path) != os.path.isdir(other):
        return False
    names, other_names = sorted(_all_files(path)), sorted(_all_files(other))
    return names == other_names and all(
        _same_file(os.path.join(path, name), os.path.join(other, name)) if name else _same_file(path, other)
        for name in names
    )


def _all_files(path: str) -> Iterator[str]:
    if not os.path.isdir(path):
        yield ""
    for directory, _, files in os.walk(path):
        for file in files:
            yield os.path.relpath(os.path.join(directory, file), path)


def _same_file(path: str, other: str) -> bool:
    if os.path.getsize(path) != os.path.getsize(other):
        return False
    with open(path, "rb") as file, open(other, "rb") as other_file:
        while part := file.read(1 << 20):
            if part != other_file.read(1 << 20):
                return False
    return True


def main() -> None:
    for path, other in json.load(sys.stdin):
        print(json.dumps(compare(path, other)), flush=True)


if __name__ == "__main__":
    main()
