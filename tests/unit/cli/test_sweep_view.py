"""The table of a sweep, on a terminal and in a pipe."""

from __future__ import annotations

import io
from dataclasses import replace

from allranks.api.sweep_status import SweepStatus, Trial
from allranks.api.sweep_validation import parse_sweep
from allranks.cli.live.sweep_session import SweepView, trials_table
from allranks.core.facts.model import Event
from support.sweep_world import World
from unit.api.test_sweep import sweep

SWEEP = parse_sweep(sweep(trials=4, parallel=4, stop={"rule": "ASHA", "minSteps": 10}))


def done() -> SweepStatus:
    return World(SWEEP).run()


def test_the_table_has_a_row_for_each_trial_and_marks_the_best():
    status = done()
    lines = list(trials_table(SWEEP, status).plain())
    assert lines[0].split() == ["TRIAL", "BATCH", "LR", "PHASE", "STEP", "LOSS", "NOTE"]
    assert len(lines) == 5
    assert status.best is not None
    [best] = [line for line in lines if line.endswith("best")]
    assert best.split()[0] == str(status.best.trial)
    assert any(line.endswith("ASHA") for line in lines)


def test_a_long_table_keeps_the_active_trials():
    trials = [Trial(number=n, job=f"j-{n}", parameters={"lr": "1", "batch": "2"}, phase="Failed") for n in range(30)]
    trials[3] = replace(trials[3], phase="Running")
    numbers = [row[0] for row in trials_table(SWEEP, SweepStatus(trials=trials), 5).rows]
    assert numbers == [3, 26, 27, 28, 29]


def test_a_pipe_gets_a_line_for_each_event_and_no_table():
    out = io.StringIO()
    view = SweepView(SWEEP, out, live=False, quiet=False, colour=False)
    view.event(Event("TrialCreated", "trial 0: lr=1"))
    view.status(done())
    view.end(done())
    assert out.getvalue() == "trial 0: lr=1\n"


def test_a_terminal_gets_a_live_table_and_the_complete_one_at_the_end():
    out = io.StringIO()
    view = SweepView(SWEEP, out, live=True, quiet=False, colour=False)
    status = done()
    view.status(status)
    view.message("Ctrl-C: stopping")
    view.end(status)
    text = out.getvalue()
    assert "Ctrl-C: stopping" in text
    assert "search: 4/4 trials" in text
    assert text.rstrip().splitlines()[-1].split()[0] == "3"
