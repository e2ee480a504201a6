"""The short form of `python -m bench`: ratios within one run, and counts. No absolute times, because machines differ.

The bounds are far from what docs/platform/performance.md measures on a quiet machine, because this machine may be busy.
They catch what costs twice as much as before.
"""

from __future__ import annotations

import pytest
from bench.creation import rounds, summary
from bench.life import lives
from bench.systems import Allranks, Raw, Shape
from bench.table import changes

pytestmark = pytest.mark.nightly

LARGE, MANY = Shape(1, 256), Shape(25, 4)


@pytest.fixture(scope="module")
def creation(programs):
    return summary(rounds(programs, (Raw, Allranks), (LARGE, MANY), 2), Raw.name)["allranks"]


@pytest.fixture(scope="module")
def life(programs):
    return lives(programs, (Allranks,), (MANY,))["allranks"][MANY.name]


@pytest.mark.parametrize(("shape", "ratio"), [(LARGE, 0.3), (MANY, 0.1)], ids=["one large job", "many small ones"])
def test_pods_are_created_nearly_as_fast_as_the_api_server_permits(creation, shape, ratio):
    assert creation[shape.name]["of_the_limit"] >= ratio


def test_a_pods_whole_life_costs_the_operator_a_fraction_of_what_it_costs_the_api_server(life):
    assert life["cpu_ms_per_pod"] < 0.5 * life["server_cpu_ms_per_pod"]


def test_writes_per_job_do_not_grow_with_the_changes_of_its_pods(life):
    made = life["writes_per_job"]["allranks"]
    assert (made["create pods"], made["create services"]) == (MANY.pods, 1)
    # The Service, and one status write per decision; pod counts in between where pods start slowly.
    assert changes(life) <= MANY.pods + 7
