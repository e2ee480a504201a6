"""Formats the results of bench/train.py: medians, ratios, tables. No clock and no process, so that it can be tested."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

GOAL = 0.98
"""Minimum of bare step time divided by step time under allranks."""
Runs = Mapping[str, Sequence[Mapping[str, Any]]]
"""Measurements of one framework: one entry per start, by launch method (`bare`, `allranks`, `reports`, `one`)."""


def page(document: Mapping[str, Any]) -> str:
    """The page as Markdown. `document` is the output of `--json`."""
    launchers = {one["title"]: f"`{one['launcher']}`" for one in document["frameworks"].values()}
    runs = {one["title"]: document["results"][name] for name, one in document["frameworks"].items()}
    paragraphs = [about_the_machine(document)]
    timed = {title: of for title, of in runs.items() if "bare" in of}
    if timed:
        compared = [one for title, of in timed.items() for one in comparisons(title, launchers[title], of)]
        paragraphs += ["### Step time", step_table(compared), verdict(compared)]
        paragraphs += ["### Start-up of a rank", start_table(timed)]
        paragraphs += ["### Scaling from 1 to 2 ranks", scaling_table(timed)]
    saved = {title: of["saves"][0] for title, of in runs.items() if "saves" in of}
    if saved:
        paragraphs += ["### Checkpoint of 100 MB", save_table(saved)]
    return "\n\n".join(paragraphs)


def about_the_machine(document: Mapping[str, Any]) -> str:
    it = document["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in it["versions"].items())
    return (
        f"{it['date']}, commit {it['commit']}: {it['cores']} cores ({it['processor']}), load {it['load']:.1f} at the "
        f"start; {versions}. Starts: {document['starts']}, rounds per start: {document['rounds']}, steps per round: "
        f"{document['steps']}."
    )


@dataclass(frozen=True)
class Spread:
    """Values of one quantity in all rounds, or all starts."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.values)

    def text(self, factor: float = 1.0, digits: int = 1) -> str:
        """`41.2 (40.9 to 42.0)`: median, minimum and maximum."""
        low, high = min(self.values), max(self.values)
        return f"{self.median * factor:,.{digits}f} ({low * factor:,.{digits}f} to {high * factor:,.{digits}f})"


@dataclass(frozen=True)
class Comparison:
    """Step seconds in the same rounds, bare and under allranks."""

    title: str
    launcher: str
    bare: Spread
    ours: Spread

    @property
    def ratio(self) -> float:
        return self.bare.median / self.ours.median

    @property
    def by_round(self) -> Spread:
        return Spread(tuple(bare / ours for bare, ours in zip(self.bare.values, self.ours.values, strict=True)))

    @property
    def answer(self) -> str:
        return "yes" if self.ratio >= GOAL else "**no**"


def comparisons(title: str, launcher: str, runs: Runs) -> list[Comparison]:
    bare = step_seconds(runs["bare"])
    ways = {"allranks": title, "reports": f"{title}, with reports"}
    return [Comparison(name, launcher, bare, step_seconds(runs[way])) for way, name in ways.items()]


def step_seconds(runs: Sequence[Mapping[str, Any]], of: str = "steps") -> Spread:
    """The median step of each round of each start."""
    return Spread(tuple(median(steps) for run in runs for steps in run[of]))


def step_table(compared: Iterable[Comparison]) -> str:
    rows = []
    for one in compared:
        times = one.bare.text(1000), one.ours.text(1000)
        rows.append((one.title, one.launcher, *times, f"**{one.ratio:.3f}**", one.by_round.text(digits=3), one.answer))
    heads = ("", "bare launcher", "bare, ms", "under allranks, ms", "ratio", "ratio of each round", f"at least {GOAL}")
    return table(heads, rows)


def verdict(compared: Sequence[Comparison]) -> str:
    """One line that lists each ratio and whether it reaches the goal."""
    each = [f"{one.title} {one.ratio:.3f} {one.answer}" for one in compared]
    reached = sum(one.ratio >= GOAL for one in compared)
    return f"Ratio at least {GOAL}: {reached} of {len(compared)}. {'; '.join(each)}."


def start_table(frameworks: Mapping[str, Runs]) -> str:
    rows = []
    for title, runs in frameworks.items():
        row = [title]
        for key in ("started", "stepped"):
            bare, ours = (Spread(tuple(run[key] for run in runs[way])) for way in ("bare", "allranks"))
            row += [bare.text(digits=2), ours.text(digits=2), f"{ours.median - bare.median:+.2f}"]
        rows.append(row)
    what = ("bare, s", "under allranks, s", "difference, s")
    return table(("", *(f"first line: {w}" for w in what), *(f"first step done: {w}" for w in what)), rows)


def scaling_table(frameworks: Mapping[str, Runs]) -> str:
    """Weak scaling: the batch per rank is constant."""
    rows = []
    for title, runs in frameworks.items():
        samples = runs["one"][0]["samples"]
        one, two = step_seconds(runs["one"]).median, step_seconds(runs["allranks"]).median
        alone = step_seconds(runs["one"], "alone").median
        both = step_seconds(runs["allranks"], "alone").median  # both ranks compute, neither waits for the other
        rates = f"{samples / one:,.0f}", f"{2 * samples / two:,.0f}"
        times = f"**{2 * one / two:.2f}**", f"{2 * alone / both:.2f}"
        rows.append((title, *rates, *times, f"{(two - both) * 1000:,.1f}"))
    heads = (
        "1 rank, samples/s",
        "2 ranks, samples/s",
        "speedup",
        "speedup without all-reduce",
        "all-reduce, ms per step",
    )
    return table(("", *heads), rows)


def save_table(frameworks: Mapping[str, Mapping[str, Any]]) -> str:
    """One row per framework and way to save."""
    rows = []
    for title, run in frameworks.items():
        usual = run["usual"] * 1000
        for name, times in run["saves"].items():
            held, whole = (Spread(tuple(times[key])) for key in ("held", "all"))
            rows.append((title, f"`{name}`", f"{usual:,.0f}", held.text(1000, 0), whole.text(1000, 0)))
    return table(("", "saved with", "step without save, ms", "loop blocked, ms", "total delay, ms"), rows)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
