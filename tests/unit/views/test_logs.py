"""Output of ranks on a screen: lines, bounds, control sequences."""

from __future__ import annotations

import pytest

from allranks.control_sequences import clean
from allranks.views.format.log_lines import LINE_BYTES, Source, Splitter
from support.builders import table


@table(
    ("a line in pieces", [b"one ", b"two\nthr", b"ee\n"], [b"one two", b"three"]),
    ("an unfinished line is shown when the container ends", [b"half", b""], [b"half"]),
    ("an ended container without output shows nothing", [b"", b""], []),
    ("empty lines are lines", [b"\n\nx\n"], [b"", b"", b"x"]),
    ("Windows line ends, also split between pieces", [b"a\r\nb\r", b"\n"], [b"a", b"b"]),
    ("the last state of a progress bar", [b"\r10%", b"\r20%", b"\r100%\n"], [b"100%"]),
    ("the last state of a bar that returns after drawing", [b"10%\r", b"20%\r", b"100%\r\n"], [b"100%"]),
    (
        "bars below each other are one",
        [b"\repoch 0\n", b"\reval 1\x1b[A\n\reval 2\x1b[A\n\reval 3\x1b", b"[A\n\r      \x1b[A\repoch 1\n", b"\n"],
        [b"epoch 0", b"epoch 1"],
    ),
    ("three bars", [b"\n\n\rc 1\x1b[A\x1b[A\n\rb 1\x1b[A\ra 1\n\n\rc 2\x1b[2A", b"\n\n\n"], [b"", b"", b"c 2\x1b[2A"]),
    ("output below bars", [b"\ra 1\n\rb 1\x1b[A\ra 2\ndone\n"], [b"a 1", b"a 2", b"done"]),
    ("a progress bar in one piece", [b"\r1%\r2%\r3%\nnext\n"], [b"3%", b"next"]),
)
def test_output_is_split_into_lines(case: tuple[list[bytes], list[bytes]]) -> None:
    pieces, lines = case
    splitter = Splitter()
    assert [line for piece in pieces for line in splitter.feed(piece)] == lines
    assert splitter.pending == b""


def test_a_long_line_is_cut_and_memory_is_bounded() -> None:
    splitter = Splitter()
    for _ in range(1000):
        assert splitter.feed(b"x" * 1000) == []
    assert len(splitter.pending) == LINE_BYTES
    (line,) = splitter.feed(b"y\nnext")
    assert line == b"x" * LINE_BYTES + f" ... {1_000_001 - LINE_BYTES:,} more bytes in the log".encode()
    assert splitter.pending == b"next"


def test_a_progress_bar_is_detected_while_it_is_drawn() -> None:
    splitter = Splitter()
    splitter.feed(b"plain start")
    assert not splitter.redrawn
    splitter.feed(b"\r 40%|####      |")
    assert (splitter.redrawn, splitter.pending) == (True, b" 40%|####      |")
    splitter.feed(b" 100%\n")
    assert not splitter.redrawn


@table(
    ("plain text is kept", b"loss 0.1 \xe2\x9c\x93", True, "loss 0.1 ✓"),
    ("invalid bytes are replaced", b"a\xff\xfeb", True, "a\ufffd\ufffdb"),
    ("colours are kept and end with the line", b"\x1b[31mred", True, "\x1b[31mred\x1b[0m"),
    ("colours are removed without colour", b"\x1b[1;31mred\x1b[0m!", False, "red!"),
    ("cursor movements and clearing are removed", b"\x1b[2J\x1b[1;1Hx\x1b[K\x1b[?25l", True, "x"),
    ("bells and backspaces are removed", b"a\x07b\x08c\x00d\x7f", True, "abcd"),
    ("titles and links are removed", b"\x1b]0;title\x07x\x1b]8;;http://a\x1b\\y", True, "xy"),
    ("other sequences are removed", b"\x1b(Bx\x1b=y\x9b", True, "xy\ufffd"),
    ("tabs are kept", b"a\tb", False, "a\tb"),
)
def test_control_sequences_are_removed_from_lines(case: tuple[bytes, bool, str]) -> None:
    raw, colour, text = case
    assert clean(raw, colour) == text


@pytest.mark.parametrize("chunk", [64, 5000, 65536])
def test_a_flood_is_bounded_and_counts_dropped_lines(chunk: int) -> None:
    source = Source("worker-0", most_lines=100, most_bytes=1000)
    data = b"".join(b"line %d\n" % number for number in range(20_000))
    for start in range(0, len(data), chunk):
        source.feed(data[start : start + chunk], start)
    dropped, lines = source.take()
    assert dropped + len(lines) == 20_000
    assert lines[-1].text == b"line 19999"
    assert len(lines) <= 100
    assert sum(len(line.text) for line in lines) <= 1000
    assert source.take() == (0, [])
    assert source.latest == b"line 19999"
