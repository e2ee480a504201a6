"""The differences of the code of a job from its commit: a unified diff to be read, bounded and without secrets. Pure.

It is made before it is stored, because a line that was removed may hold a password that is in no shipped file.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from allranks.masking import mask_code, mask_log

MAX_CHARACTERS = 262_144
"""Limit of the whole text."""
MAX_FILE_CHARACTERS = 65_536
"""Limit of one file, so that a large one leaves room for the others."""
MAX_NAMED = 50
"""Files that are only named."""
_HEADER = "diff --git "
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY")
_BINARY_HEAD = 8000
"""git looks for a zero in as many bytes."""
_ROUNDS = 20

Hidden = Callable[[str], str]
"""Returns the reason why the content of a file is not shown, as a part of a sentence; empty if it is."""


class File(NamedTuple):
    """A file of a bundle. `name` is relative to the directory, with `/`."""

    name: str
    data: bytes
    executable: bool = False


def text_of(commit: str, patch: str, new: Iterable[File], hidden: Hidden, untracked: Iterable[str] = ()) -> str:
    """Return the differences; empty if there are none. Lines that begin with `#` say what is left out.

    `patch`: what git prints for tracked files. `untracked`: names of new files that are only named.
    """
    sections = [*_split(patch), *((file.name, _addition(file)) for file in new)]
    unseen = [f"{name} is not shown: git does not track it" for name in untracked if name]
    if not sections and not unseen:
        return ""
    out = [f"# differences from commit {commit}\n"]
    left = MAX_CHARACTERS
    for name, section in sections:
        reason = hidden(name) or ("it holds a private key" if _PRIVATE_KEY.search(section) else "")
        if reason:
            unseen.append(f"{name} is not shown: {reason}")
            continue
        shown = _shortened(name, _masked(name, section))
        if len(shown) > left:
            unseen.append(f"{name} is not shown: the differences have more than {MAX_CHARACTERS:,} characters")
            continue
        left -= len(shown)
        out.append(shown)
    out += [f"# {line}\n" for line in unseen[:MAX_NAMED]]
    if len(unseen) > MAX_NAMED:
        out.append(f"# {len(unseen) - MAX_NAMED} more files are not shown\n")
    return "".join(out)


def compressed(text: str, room: int) -> bytes:
    """Return the text in at most `room` bytes: a long one loses its end, and says so. Empty if nothing fits."""
    kept = text
    for _ in range(_ROUNDS):
        shown = kept if kept == text else kept + "# the rest is not shown: it has no room beside the code\n"
        data = gzip.compress(shown.encode("utf-8", "replace"), mtime=0)
        if len(data) <= room:
            return data
        kept = text[: int(len(kept) * 0.9 * room / len(data))]
        kept = kept[: kept.rfind("\n") + 1]
        if not kept:
            break
    return b""


def decompressed(data: bytes) -> str:
    """Return the text of compressed data. Raise ValueError if the data is no output of `compressed`."""
    try:
        decompressor = zlib.decompressobj(zlib.MAX_WBITS | 16)
        return decompressor.decompress(data, 4 * MAX_CHARACTERS + 65_536).decode("utf-8", "replace")
    except zlib.error as error:
        raise ValueError(f"the differences cannot be read: {error}") from error


def _split(patch: str) -> Iterator[tuple[str, str]]:
    """Yield (name, section) of each file of a patch of git. Lines of files begin with a space, +, - or a backslash."""
    for part in re.split(rf"^(?={_HEADER})", patch, flags=re.MULTILINE):
        if part.startswith(_HEADER):
            yield _name(part.partition("\n")[0].removeprefix(_HEADER)), part


def _name(names: str) -> str:
    """Return the name in `a/NAME b/NAME`, which are equal, because git looks for no renamed files here. Strange names
    have quotes."""
    half = names[: (len(names) - 1) // 2].strip('"')
    return half.removeprefix("a/")


def _addition(file: File) -> str:
    mode = "100755" if file.executable else "100644"
    head = f"{_HEADER}a/{file.name} b/{file.name}\nnew file mode {mode}\n"
    if b"\0" in file.data[:_BINARY_HEAD]:
        return f"{head}Binary files /dev/null and b/{file.name} differ\n"
    if not file.data:
        return head
    lines = file.data[: 4 * MAX_FILE_CHARACTERS].decode("utf-8", "replace").removesuffix("\n").split("\n")
    end = "" if file.data.endswith(b"\n") else "\\ No newline at end of file\n"
    number = file.data.count(b"\n") + bool(end)
    added = "".join(f"+{line}\n" for line in lines)
    return f"{head}--- /dev/null\n+++ b/{file.name}\n@@ -0,0 +1,{number} @@\n{added}{end}"


def _masked(name: str, section: str) -> str:
    """Return the section with secrets masked. Code has words such as `key=lambda`, which are secrets only in other
    files."""
    return mask_code(section) if name.endswith((".py", ".ipynb")) else mask_code(mask_log(section))


def _shortened(name: str, section: str) -> str:
    if len(section) <= MAX_FILE_CHARACTERS:
        return section if section.endswith("\n") else f"{section}\n"
    kept = section[:MAX_FILE_CHARACTERS]
    kept = kept[: kept.rfind("\n") + 1]
    return f"{kept}# the rest of {name} is not shown: it has more than {MAX_FILE_CHARACTERS:,} characters\n"
