"""What the tests of the pages share."""

from __future__ import annotations

from datetime import UTC, datetime

from allranks.core.facts.rank_reports import STACKS_ANNOTATION, new_stack_request, stack_dump_id
from allranks.report.client import reason_for
from support.job_api import JobApi
from support.sweep_samples import a_sweep, trial_of, with_gpu_time
from support.ui_samples import event, stamp

JOB = "/jobs/team/penguins"
WAIT_MS = 300_000


def expect(locator):
    from playwright.sync_api import expect as of

    of.set_options(timeout=WAIT_MS)
    return of(locator)


def see(page, text: str, selector: str = "main") -> None:
    """Waits until the page shows the text."""
    expect(page.locator(selector)).to_contain_text(text, timeout=WAIT_MS)


def answer_with_stacks(api: JobApi, request: str = "") -> None:
    """The ranks of penguins print their stacks, as allranks.report does."""
    job = api.jobs["penguins"]
    if not request:
        request = new_stack_request(job["status"]["attempt"], datetime.now(UTC), 7)
        api.put({**job, "metadata": {**job["metadata"], "annotations": {STACKS_ANNOTATION: request}}})
    for place, where in enumerate(("all_reduce", "all_reduce", "load_batch")):
        reason = reason_for(stack_dump_id(request, 1))
        text = (
            f"allranks: rank {place} (pod penguins-worker-{place}-1): stacks, asked for because {reason}\n"
            "Thread MainThread (most recent call first):\n"
            f'  File "/app/train.py", line 40 in {where}\n'
            '  File "/app/train.py", line 88 in train\n  File "/app/train.py", line 120 in <module>\n'
        )
        api.logs[f"penguins-worker-{place}-1"] += [
            f"{stamp(0)[:19]}.000000000Z {line}\n".encode() for line in text.splitlines()
        ]


def serve_a_sweep(api: JobApi) -> None:
    """A sweep of the cluster whose trials have GPU time and a price, with Events; a job of it is deleted."""
    sweep = a_sweep("herd")
    for trial in sweep["status"]["trials"]:
        trial["job"] = f"herd-{trial['number']}"
        if trial["number"] != 7:
            api.put(with_gpu_time(trial_of(sweep, trial["job"], f"uid-{trial['job']}"), 1.5, 0.25))
    stopped = {
        "phase": "Stopped",
        "reason": "ASHA",
        "message": "loss 0.9 at step 30 is worse than that of the best 1/3",
    }
    sweep["status"]["trials"][1] |= stopped
    sweep["status"]["trials"][2] |= {"phase": "Failed", "reason": "Error(1)", "message": "ValueError: bad shape"}
    api.sweeps = [sweep]
    api.events.append(event("herd", "TrainingSweep", "TrialStopped", f"trial 1 stopped: {stopped['message']}"))
