"""Patches the source of Horovod 0.28.1 (June 2023) so that it builds against current PyTorch and TensorFlow."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Edit:
    """One replacement in one file of the unpacked source; `old` must occur exactly once."""

    path: str
    reason: str
    old: str
    new: str


KERAS_REASON = "`keras` is now Keras 3, whose backend Horovod's optimizers cannot use; legacy Keras is `tf_keras`"

EDITS = (
    Edit(
        path="horovod/torch/CMakeLists.txt",
        reason="PyTorch's headers are C++ 20",
        old='if(NOT Pytorch_VERSION VERSION_LESS "1.5.0")\n    set(CMAKE_CXX_STANDARD 14)',
        new='if(NOT Pytorch_VERSION VERSION_LESS "1.5.0")\n    set(CMAKE_CXX_STANDARD 20)',
    ),
    Edit(
        path="third_party/gloo/CMakeLists.txt",
        # Before C++ 17 a static constexpr member needs a separate definition, since 17 its declaration is one: C++ 20
        # objects of edit 1 contain a second. Set as a variable, because cmake appends its own `-std` to the flags.
        reason="gloo needs C++ 17 or later, like its users: else `multiple definition of Store::kDefaultTimeout`",
        old='set(CMAKE_CXX_FLAGS "${CMAKE_CXX_FLAGS} -std=c++11 -fPIC")',
        new='set(CMAKE_CXX_FLAGS "${CMAKE_CXX_FLAGS} -fPIC")\n  set(CMAKE_CXX_STANDARD 17)',
    ),
    Edit(
        path="horovod/tensorflow/xla_mpi_ops.cc",
        # They are for XLA on GPUs with HOROVOD_ENABLE_XLA_OPS=1. Everything else, including NCCL, is in other files.
        reason="the XLA operations include headers that TensorFlow has moved or no longer finds: they are excluded",
        old="#if TENSORFLOW_VERSION >= 2006000000\n\n#include",
        new="#if TENSORFLOW_VERSION >= 2006000000 && defined(HOROVOD_WITH_XLA_OPERATIONS)\n\n#include",
    ),
    Edit(
        path="horovod/tensorflow/mpi_ops.cc",
        # Only in builds for GPUs, and the linker does not miss it: the import of the library would fail.
        reason="TensorFlow has no AsGpuStreamValue any more: a stream has its handle",
        old="""// Forward declaration of AsGpuStreamValue
namespace stream_executor {
namespace gpu {
GpuStreamHandle AsGpuStreamValue(Stream* stream);
} // namespace stream_executor
} // namespace gpu
#if TENSORFLOW_VERSION >= 2011000000
#include "tensorflow/compiler/xla/stream_executor/stream.h"
#else
#include "tensorflow/stream_executor/stream.h"
#endif // TENSORFLOW_VERSION >= 2011000000
""",
        new="""#include "xla/stream_executor/stream.h"
namespace stream_executor {
namespace gpu {
inline GpuStreamHandle AsGpuStreamValue(Stream* stream) {
  return static_cast<GpuStreamHandle>(stream->platform_specific_handle().stream);
}
} // namespace gpu
} // namespace stream_executor
""",
    ),
    Edit(
        path="horovod/tensorflow/keras/__init__.py",
        reason=KERAS_REASON,
        old="    from keras import backend as K",
        new="    from tf_keras import backend as K",
    ),
    Edit(
        path="horovod/tensorflow/keras/callbacks.py",
        reason=KERAS_REASON,
        old="    from keras import backend as K",
        new="    from tf_keras import backend as K",
    ),
    Edit(
        path="CMakeLists.txt",
        reason="the NCCL and CUDA of PyPI's wheels are in the same site-packages as Horovod",
        old="        include_directories(SYSTEM ${NCCL_INCLUDE_DIRS})\n",
        new="        include_directories(SYSTEM ${NCCL_INCLUDE_DIRS})\n"
        '        list(APPEND CMAKE_BUILD_RPATH "$ORIGIN/../../nvidia/nccl/lib" "$ORIGIN/../../nvidia/cu13/lib")\n',
    ),
    Edit(
        path="setup.py",
        reason="without debug information a library is 2 MB, with it 64 MB",
        old="else 'RelWithDebInfo'",
        new="else 'Release'",
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, help="the unpacked source")
    source = parser.parse_args().source
    for edit in EDITS:
        apply(edit, source)


def apply(edit: Edit, source: Path) -> None:
    path = source / edit.path
    text = path.read_text()
    count = text.count(edit.old)
    if count != 1:
        sys.exit(f"{edit.path} is not that of Horovod 0.28.1: {edit.old!r} is in it {count} times, not once")
    path.write_text(text.replace(edit.old, edit.new))
    print(f"edited {edit.path}: {edit.reason}", file=sys.stderr)


if __name__ == "__main__":
    main()
