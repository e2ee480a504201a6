"""Tries of a transfer, and the one sentence about them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from allranks.data.cache import Cache
from allranks.data.errors import TemporaryError
from allranks.data.fetch import InputSpec, fetch
from allranks.data.source import Listing, RemoteFile
from allranks.data.tries import TRIES, Tries
from allranks.data.upload import upload
from allranks.errors import DataError

DOWN = "s3://birds/penguins: the connection failed: refused"


class World:
    """A clock that moves with each pause, and the sentences for the user."""

    def __init__(self) -> None:
        self.now, self.reported = 0.0, list[str]()
        self.tries = Tries(self.reported.append, sleep=self.pass_by, clock=lambda: self.now)

    def pass_by(self, seconds: float) -> None:
        self.now += seconds

    def refuse(self, seconds: float = 8.0) -> None:
        self.pass_by(seconds)
        raise ConnectionError("refused")


@pytest.mark.parametrize(("seconds", "longest"), [(8.0, "71 s"), (0.0, "31 s"), (60.0, "6 min")])
def test_the_first_failed_try_is_reported_once_with_the_longest_time(seconds: float, longest: str) -> None:
    world = World()
    with pytest.raises(TemporaryError, match=DOWN):
        world.tries.until_done(lambda: world.refuse(seconds), "s3://birds/penguins")
    assert world.reported == [f"{DOWN}; up to 5 more tries follow, for about {longest}"]
    assert world.now == 31 + TRIES * seconds
    with pytest.raises(TemporaryError):
        world.tries.until_done(world.refuse, "s3://birds/penguins")
    assert len(world.reported) == 1


def test_nothing_is_reported_of_a_transfer_that_works_or_cannot_work() -> None:
    world = World()
    assert world.tries.until_done(lambda: 3, "s3://birds/penguins") == 3

    def missing() -> None:
        raise FileNotFoundError

    with pytest.raises(DataError, match="there is no such object"):
        world.tries.until_done(missing, "s3://birds/penguins")
    assert (world.reported, world.now) == ([], 0.0)


class Cut:
    """A source whose connection breaks after each byte, for example because of a proxy; `down`: not even a byte comes
    in the next tries."""

    uri, branches = "s3://birds/penguins", True

    def __init__(self, world: World, down: int) -> None:
        self.world, self.down = world, down

    def resolve(self, revision: str | None) -> Listing:
        return Listing("1", (RemoteFile("a", 3),))

    def read(self, listing: Listing, file: RemoteFile, start: int) -> Iterator[bytes]:
        self.world.pass_by(100)
        if start == 1 and self.down:
            self.down -= 1
            raise ConnectionError("refused")
        yield b"x"
        raise ConnectionError("refused")


@pytest.mark.parametrize("down", [0, 2])
def test_a_connection_that_breaks_between_bytes_is_quiet(cache: Cache, down: int) -> None:
    world = World()
    fetch(InputSpec(Cut.uri), cache, connect=lambda _: Cut(world, down), tries=world.tries)
    assert world.reported == [f"{DOWN}; up to 5 more tries follow, for about 9 min"] * bool(down)


class Down:
    """A destination that refuses its first requests."""

    def __init__(self, world: World) -> None:
        self.number, self.world = itertools.count(), world

    def _act(self) -> None:
        if next(self.number) < 2:
            self.world.refuse()

    def size(self, name: str) -> int | None:
        return None

    def put(self, path: Path, name: str) -> None:
        self._act()

    def remove(self, name: str) -> None: ...


def test_an_upload_says_what_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "weights").write_text("1")
    world = World()
    target = Down(world)
    upload(tmp_path / "out", "s3://birds/penguins", tmp_path / "j", {}, connect=lambda _: target, tries=world.tries)
    assert world.reported == [f"{DOWN}; up to 5 more tries follow, for about 71 s"]
