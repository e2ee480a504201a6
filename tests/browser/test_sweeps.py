"""The page of a sweep of the cluster in Chromium. `test_ui.py` checks its accessibility."""

from __future__ import annotations

import re

import pytest

from browser.helpers import expect, see, serve_a_sweep

pytestmark = pytest.mark.nightly


def test_the_page_of_a_sweep_of_the_cluster_has_its_cost_and_leads_to_its_trials(open_page, api):
    serve_a_sweep(api)
    page = open_page("/sweeps")
    page.click("main >> text=team/herd")
    see(page, "38.50 EUR")
    see(page, "1 job is missing, and its GPU time is not counted: herd-7")
    see(page, "trial 1 stopped: loss 0.9 at step 30")
    page.get_by_role("link", name="5", exact=True).click()
    expect(page).to_have_url(re.compile("/jobs/team/herd-5$"))
