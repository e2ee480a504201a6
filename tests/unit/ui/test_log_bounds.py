"""Logs of any size take a bounded amount of memory and time."""

from __future__ import annotations

import asyncio
import random
import tracemalloc

import pytest

from allranks.kube import bounded_lines
from allranks.kube.bounded_lines import LONGEST_LINE, MOST_KEPT, LastLines, Splitter, joined
from allranks.kube.pod_logs import parse_line
from allranks.local import stored_logs
from allranks.local.stored_logs import BLOCK, appended, last_lines
from allranks.ui.logs import shown
from support.ui_samples import a_run
from support.ui_server import UiServer

GIB = 1 << 30


def sparse(path, *parts):
    """A file of 1 GiB that takes little space on disk: its content is zeros, with these (place, bytes)."""
    with path.open("wb") as file:
        file.truncate(GIB)
        for place, data in parts:
            file.seek(place if place >= 0 else GIB + place)
            file.write(data)
    return path


def peak(call):
    tracemalloc.start()
    try:
        answer = call()
        return answer, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_the_end_of_a_log_of_1_GiB_is_read_in_little_memory(tmp_path):
    tail = b"".join(b"\nline %d" % number for number in range(1000))
    path = sparse(tmp_path / "log", (-len(tail), tail))
    (lines, end, more), memory = peak(lambda: last_lines(path, 3))
    assert (lines, end, more) == ([b"line 997", b"line 998", b"line 999"], GIB, True)
    assert memory < 8 * BLOCK


def test_a_log_of_1_GiB_without_a_newline_is_one_line_that_is_cut(tmp_path):
    (lines, _, more), memory = peak(lambda: last_lines(sparse(tmp_path / "log"), 500))
    assert more
    [line] = lines
    assert len(line) < LONGEST_LINE + 100
    assert line.endswith(b"left out)")
    assert memory < 8 * BLOCK


def test_a_search_in_a_log_of_1_GiB_without_newlines_ends(tmp_path):
    path = sparse(tmp_path / "log", (-40, b"\nthe NEEDLE\nrest"))
    (lines, _, more), memory = peak(lambda: last_lines(path, 10, "needle"))
    assert (lines, more) == ([b"the NEEDLE"], True)
    assert memory < 8 * BLOCK


def test_the_server_shows_a_log_of_1_GiB_without_newlines_and_answers_further(tmp_path):
    folder = a_run(tmp_path, "digits", "20260304-101500", "Succeeded", {"digits-worker-0-0": b""})
    sparse(folder / "logs" / "digits-worker-0-0.log")
    with UiServer(tmp_path / "none", tmp_path) as server:
        answer = server.get("/api/v1/runs/digits/20260304-101500/logs?rank=0")
        assert answer.status == 200
        assert len(answer.text) < 2 * LONGEST_LINE
        assert server.get("/runs/digits/20260304-101500/logs?replica=worker-0").status == 200
        assert server.get("/").status == 200


def test_a_pod_log_of_any_size_is_cut_and_the_page_says_so(server, api):
    api.logs["penguins-worker-0-0"] = [b"2026-03-04T10:00:00.000000000Z ", b"x" * (1 << 20)] * 12
    answer = server.get("/api/v1/jobs/team/penguins/logs?rank=0&tail=5")
    assert len(answer.text) < 2 * LONGEST_LINE
    assert any("only 8 MiB are read" in note for note in answer.json["notes"])


def test_long_lines_of_many_pods_fit_into_one_page(server, api):
    lines = [b"2026-03-04T10:00:%02d.0Z %d %s\n" % (n // 10, n, b"x" * 16_000) for n in range(600)]
    api.logs = {f"penguins-worker-{place}-0": lines for place in range(3)}
    answer = server.get("/api/v1/jobs/team/penguins/logs?tail=10000")
    assert MOST_KEPT - 20_000 < len(answer.text) < MOST_KEPT + 2**20
    assert "only the last 8 MiB of lines are shown: choose a rank" in answer.json["notes"]


def test_the_last_lines_are_within_a_number_and_a_size():
    kept = LastLines[str](3, 10)
    for text in ("a", "b", "c"):
        kept.add(text, 1)
    assert (list(kept), kept.cut) == (["a", "b", "c"], False)
    kept.add("d", 1)
    assert (list(kept), kept.cut) == (["b", "c", "d"], True)
    kept.add("long", 9)
    assert list(kept) == ["d", "long"]
    kept.add("longest", 99)
    assert list(kept) == ["longest"], "the last line is always there"


def test_a_search_that_finds_long_lines_keeps_8_mib_of_them(tmp_path):
    path = tmp_path / "log"
    path.write_bytes((b"x" * 16_000 + b"\n") * 1000)
    (lines, _, more), memory = peak(lambda: last_lines(path, 10_000, "x"))
    assert (sum(map(len, lines)) <= MOST_KEPT, more) == (True, True)
    assert memory < 2 * MOST_KEPT


@pytest.mark.parametrize("seed", range(20))
def test_lines_do_not_depend_on_how_they_are_cut_into_blocks(seed):
    rng = random.Random(seed)
    data = bytes(rng.choice(b"ab\n\r") for _ in range(500))
    whole = [shown(line) for line in joined([data])]
    blocks, place = [], 0
    while place < len(data):
        length = rng.randint(1, 9)
        blocks.append(data[place : place + length])
        place += length
    assert [shown(line) for line in joined(blocks)] == whole, f"seed {seed}"
    expected = [shown(line) for line in data.split(b"\n")]
    assert whole == (expected if not data.endswith(b"\n") else expected[:-1]), f"seed {seed}"


def test_a_progress_bar_that_redraws_one_line_for_ever_shows_its_last_state():
    splitter = Splitter()
    for step in range(100_000):
        assert list(splitter.feed(b"\rstep %d" % step)) == []
    [line] = splitter.end()
    assert shown(line) == "step 99999"


def test_of_progress_bars_below_each_other_the_last_state_passes(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(bounded_lines.time, "monotonic", lambda: now[0])
    splitter = Splitter()
    assert list(splitter.feed(b"begin\n\reval 1\x1b[A\n\reval 2\x1b[A\n")) == [b"begin"]
    now[0] = 10.0
    assert [shown(line) for line in splitter.feed(b"\reval 3\x1b[A\n\reval 4\x1b[A\n")] == ["eval 3"]
    assert [shown(line) for line in splitter.feed(b"\r \x1b[A\repoch 1\ndone\n")] == ["epoch 1", "done"]
    assert [shown(line) for line in (*splitter.feed(b"\reval 9\x1b[A\n"), *splitter.end())] == ["eval 9"]


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_a_progress_bar_keeps_the_time_of_its_line(size):
    stamp = b"2026-03-04T10:00:00.123456789Z"
    data = stamp + b" 10%\r20%\r30%\r40%\n10%\r20%\n"
    lines = [parse_line(line) for line in joined(data[begin : begin + size] for begin in range(0, len(data), size))]
    assert [(line.time, shown(line.text)) for line in lines] == [(stamp, "40%"), (b"", "20%")]


@pytest.mark.parametrize("lines", [1, 2, 5, 100])
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_the_last_lines_are_those_of_the_whole_file(tmp_path, lines, end):
    rng = random.Random(lines)
    content = b"\n".join(b"%d " % n + b"x" * rng.choice((0, 10, BLOCK)) for n in range(30)) + end
    path = tmp_path / "log"
    path.write_bytes(content)
    expected = [shown(line) for line in joined([content])][-lines:]
    assert [shown(line) for line in last_lines(path, lines)[0]] == expected


@pytest.mark.parametrize("seed", range(20))
def test_a_search_finds_the_same_lines_however_blocks_cut_them(tmp_path, monkeypatch, seed):
    rng = random.Random(seed)
    path = tmp_path / "log"
    path.write_bytes(bytes(rng.choice(b"abAB\n\n") for _ in range(2000)))
    expected = [line for line in path.read_bytes().split(b"\n") if b"abba" in line.lower()]
    monkeypatch.setattr(stored_logs, "BLOCK", rng.randint(1, 40))
    assert expected
    assert last_lines(path, 1000, "abBa")[0] == expected, f"seed {seed}"


def test_what_is_appended_is_read_until_the_run_ends(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"old\nnew ")

    async def main() -> list[bytes]:
        over = False

        async def is_over() -> bool:
            return over

        found = []
        async for lines in appended(path, 4, is_over):
            found += lines
            if not lines and not over:
                with path.open("ab") as file:
                    file.write(b"line\nlast")
                over = True
        return found

    assert asyncio.run(main()) == [b"new line", b"last"]


def test_a_link_in_the_folder_of_logs_is_not_followed(tmp_path):
    folder = a_run(tmp_path, "digits", "20260304-101500", "Succeeded", {"digits-worker-0-0": b"fine\n"})
    (tmp_path / "secret").write_text("secret")
    (folder / "logs" / "digits-worker-1-0.log").symlink_to(tmp_path / "secret")
    with UiServer(tmp_path / "none", tmp_path) as server:
        answer = server.get("/api/v1/runs/digits/20260304-101500/logs?replica=worker-1")
    assert "secret" not in answer.text
    assert answer.json["notes"] == ["the run digits/20260304-101500 has no log of worker-1"]
