"""Operations on text that several parts of the package need."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable


def last_lines(text: str, lines: int, characters: int) -> str:
    """Return the last `lines` lines of `text`, and of these at most the last `characters` characters."""
    return "\n".join(text.rstrip().splitlines()[-lines:])[-characters:]


def stored_bytes(text: str) -> int:
    """Return the bytes of the text in a stored object, which is JSON. Go's encoder escapes more characters than
    Python's."""
    encoded = len(json.dumps(text, ensure_ascii=False).encode()) - len('""')
    return encoded + sum(text.count(character) * (6 - len(character.encode())) for character in "<>&\u2028\u2029")


def beginning(text: str, limit: int) -> str:
    """Return the beginning of a text that takes at most `limit` bytes in a stored object."""
    if len(text) * 6 <= limit or stored_bytes(text) <= limit:
        return text
    taken = 0
    for index, character in enumerate(text):
        taken += stored_bytes(character)
        if taken > limit:
            return text[:index]
    return text


def size(number: float) -> str:
    """Return a number of bytes for people: `512 B`, `1.4 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if number < 1024 or unit == "PiB":
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    raise AssertionError


def human_duration(seconds: float) -> str:
    """Return the duration as kubectl prints it (HumanDuration): `95s`, `5m30s`, `3h`, `2d5h`."""
    total = max(0, int(seconds))
    minutes, hours, days = total // 60, total // 3600, total // 86400
    if total < 120:
        return f"{total}s"
    if minutes < 10:
        return f"{minutes}m{total % 60}s" if total % 60 else f"{minutes}m"
    if hours < 3:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    if days < 730:
        return f"{days}d"
    return f"{days // 365}y{days % 365}d" if days % 365 and days < 2920 else f"{days // 365}y"


def joined(words: Iterable[str], last: str) -> str:
    """Return words as a list in a sentence: `a, b or c`."""
    *front, end = words
    return f"{', '.join(front)} {last} {end}" if front else end


_NOT_DESTROYED = re.compile(
    # PyTorch with NCCL, with every framework that uses it: after an exception, this is the last line of a rank's log.
    r"^(?:\[rank\d+\]:)?\[W\d{4} \S+ ProcessGroupNCCL\.cpp:\d+\] .*destroy_process_group\(\) was not called[^\n]*\n?",
    re.MULTILINE,
)


def without_exit_warnings(output: str) -> str:
    """Remove warnings that a library prints while a program ends, whatever ended it: they would hide the cause of a
    failure."""
    return _NOT_DESTROYED.sub("", output)


def flow_list(words: Iterable[str]) -> str:
    """Return strings as a flow sequence of YAML: `[python3, train.py, "--epochs=3 4"]`."""
    return f"[{', '.join(map(plain_or_quoted, words))}]"


def plain_or_quoted(word: str) -> str:
    """Return a string of a YAML flow sequence, without quotes where YAML reads it as a string."""
    plain = re.fullmatch(r"[A-Za-z_./][\w./=:@+-]*[\w./=@+-]|[A-Za-z_./]|--?[A-Za-z][\w./=-]*", word)
    special = re.fullmatch(r"(?i)true|false|yes|no|on|off|null|y|n|\.inf|\.nan", word)
    return word if plain and not special else json.dumps(word)
