"""The page of `allranks verify`: the verdict, the kills with what followed, losses and checkpoints."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from allranks.local.verify.records import Evidence, FileResult, Run
from allranks.local.verify.verdict import Losses, Resumption, Verdict
from allranks.views.format.duration import elapsed
from allranks.views.format.table import Grid, cell

_ANSWERS = {"Yes": "yes", "No": "NO", "Unknown": "nothing can be said"}
_ENDINGS = {"Succeeded": "", "Failed": ", failed", "Stopped": ", ended there", "TimedOut": ", ended at the limit"}
_MOST_FILES = 20


def page(job: str, seed: int, evidence: Evidence, verdict: Verdict, directory: str) -> Iterator[str]:
    """Yield the lines of the page. The first one has the answer."""
    yield f"Can {job} be trusted to resume: {_ANSWERS[verdict.answer]}"
    yield ""
    for reason in verdict.reasons:
        yield f"  {cell(reason)}"
    if verdict.hint:
        yield f"  {cell(verdict.hint)}"
    yield ""
    yield f"Run without kills: {_run(evidence.unbroken)}"
    if evidence.killed:
        yield f"Run with kills:    {_run(evidence.killed)}; --seed {seed} repeats it"
        yield ""
        yield from Grid(["kill", "when", "killed", "went on at", "repeated", "left"], list(_kills(verdict))).plain()
        yield from _failures(evidence.killed)
        yield ""
        yield from _losses(verdict)
        yield from _files(evidence)
    yield ""
    yield f"Logs and checkpoints of both runs: {directory}"


def document(job: str, seed: int, evidence: Evidence, verdict: Verdict, directory: str) -> dict[str, Any]:
    """Return the page as JSON."""
    losses, first = verdict.losses, verdict.losses.first
    return {
        "job": job,
        "seed": seed,
        "trusted": verdict.answer,
        "reasons": list(verdict.reasons),
        "hint": verdict.hint,
        "directory": directory,
        "runs": {"unbroken": _run_document(evidence.unbroken), "killed": _run_document(evidence.killed)},
        "kills": [_kill_document(resumption) for resumption in verdict.resumptions],
        "losses": {
            "compared": losses.compared,
            "metrics": {name: {"tolerance": limit} for name, limit in losses.metrics.items()},
            "notReproducible": {name: _finite(difference) for name, difference in losses.varying.items()},
            "worst": _finite(losses.worst),
            "firstDifference": None
            if first is None
            else {
                "rank": first.rank,
                "step": first.step,
                "metric": first.metric,
                "unbroken": _finite(first.unbroken),
                "killed": _finite(first.killed),
                "relative": _finite(first.relative),
            },
        },
        "torn": list(evidence.torn),
        "checkpoints": [
            {
                "path": file.path,
                "pathWithKills": file.other,
                "result": file.result,
                "detail": file.detail,
                "worst": _finite(file.worst),
            }
            for file in evidence.files
        ],
    }


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _run(run: Run) -> str:
    last = max((start.last for start in run.starts), default=None)
    steps = "no step was reported" if last is None else f"up to step {last}"
    return f"{steps} in {elapsed(run.seconds)}{_ENDINGS[run.ending]}"


def _run_document(run: Run | None) -> dict[str, Any] | None:
    if run is None:
        return None
    return {
        "ending": run.ending,
        "seconds": round(run.seconds, 3),
        "starts": {
            rank: [{"attempt": start.attempt, "first": start.first, "last": start.last} for start in starts]
            for rank, starts in run.ranks.items()
        },
        "failures": [{"attempt": attempt, "message": text} for attempt, text in run.failures],
    }


def _kills(verdict: Verdict) -> Iterator[list[Any]]:
    for number, resumption in enumerate(verdict.resumptions, 1):
        kill = resumption.kill
        delay = f"{1000 * kill.delay:.0f} ms"
        when = f"{delay} after step {kill.step}" if kill.kind == "step" else f"{delay} into a save, step {kill.step}"
        after = "" if resumption.first is None else f"step {resumption.first}"
        left = [*(f"torn: {file}" for file in kill.torn), *(f"unfinished: {file}" for file in kill.unfinished)]
        if not left:
            left = ["complete checkpoint"] if kill.stored else ["no complete checkpoint"]
        yield [number, when, ", ".join(kill.ranks), after, resumption.repeated, "; ".join(left)]


def _kill_document(resumption: Resumption) -> dict[str, Any]:
    kill = resumption.kill
    return {
        "kind": kill.kind,
        "step": kill.step,
        "delaySeconds": round(kill.delay, 6),
        "killed": list(kill.ranks),
        "torn": list(kill.torn),
        "unfinished": list(kill.unfinished),
        "checkpointStored": kill.stored,
        "wentOnAtStep": resumption.first,
        "repeatedSteps": resumption.repeated,
    }


def _failures(run: Run) -> Iterator[str]:
    """Yield a line for the attempts that failed by themselves in the same way."""
    attempts: dict[str, list[str]] = {}
    for attempt, text in run.failures:
        attempts.setdefault(text, []).append(str(attempt))
    for text, numbers in attempts.items():
        yield f"  without a kill, attempt {' and '.join(numbers)}: {cell(text)}"


def _losses(verdict: Verdict) -> Iterator[str]:
    losses: Losses = verdict.losses
    for name, limit in losses.metrics.items():
        how = f"compared with a tolerance of {limit:g}" if limit else "compared bit by bit"
        yield f"Metric {cell(name)}: {how}"
    for name, difference in losses.varying.items():
        yield f"Metric {cell(name)}: not compared, because it differs by {100 * difference:.3g} % before the first kill"
    if losses.compared:
        first = losses.first
        text = (
            ("all are equal" if losses.worst == 0.0 else f"the largest difference is {100 * losses.worst:.3g} %")
            if first is None
            else f"the first that differs is {cell(first.metric)} of step {first.step}, the largest difference "
            f"{100 * losses.worst:.3g} %"
        )
        yield f"Values after a kill: {losses.compared}, {text}"


def _files(evidence: Evidence) -> Iterator[str]:
    if evidence.until is not None:
        yield f"Checkpoints: not compared, because both runs were ended at step {evidence.until}"
    elif evidence.files:
        yield "Checkpoints at the end:"
        rows = [[_name(file), file.result, _detail(file)] for file in evidence.files[:_MOST_FILES]]
        yield from Grid(["file", "result", "detail"], rows).plain()
        if len(evidence.files) > _MOST_FILES:
            yield f"  ... {len(evidence.files) - _MOST_FILES} more, see -o json"


def _name(file: FileResult) -> str:
    return file.path if file.path == file.other else f"{file.path} and {file.other}"


def _detail(file: FileResult) -> str:
    return f"{file.detail}, {100 * file.worst:.3g} %" if 0 < file.worst < math.inf else file.detail
