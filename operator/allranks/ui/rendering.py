"""Renders pages, and reads their forms."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs, urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment

from allranks.ui.problems import Problem, ProblemDetails
from allranks.ui.state import USER
from allranks.version import __version__
from allranks.views.report import html

MOST_FIELDS = 100
"""Of a form."""


@functools.cache
def _environment() -> Environment:
    environment = html.environment("allranks.ui")
    environment.globals |= {"version": __version__, "user": USER.get}
    return environment


def warm_up() -> None:
    """Do in advance, while the API server lists the jobs, what the first request would wait for. Blocks."""
    for name in ("jobs", "job"):
        _environment().get_template(f"{name}.html.j2")


def render(name: str, **values: Any) -> HTMLResponse:
    return HTMLResponse(_environment().get_template(f"{name}.html.j2").render(**values))


def problem_page(problem: ProblemDetails, *, choose_namespace: bool = False) -> HTMLResponse:
    """Return the page of an error."""
    page = render("problem", problem=problem, live="", warning="", choose_namespace=choose_namespace)
    page.status_code = problem.status
    return page


def sign_in_page(problem: ProblemDetails | None, target: str) -> HTMLResponse:
    """Ask for a token. `target`: the address of the page that is shown afterwards."""
    page = render("sign_in", problem=problem, target=target, live="", warning="")
    page.status_code = problem.status if problem else 401
    return page


def stream_address(**query: str) -> str:
    """Return the address of the changes that concern a page."""
    return f"/api/v1/stream?{urlencode({key: value for key, value in query.items() if value})}"


def address_of_curves(jobs: Sequence[str]) -> str:
    """Return the address of the curves of jobs. `jobs`: jobs/NAMESPACE/NAME and so on."""
    return f"/api/v1/curves?{urlencode([('job', job) for job in jobs])}"


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form. Raises Problem if it has too many."""
    return form_fields(await request.body())


def form_fields(body: bytes) -> dict[str, str]:
    """Return the fields of a form. Raises Problem if it has too many."""
    try:
        fields = parse_qs(body.decode(errors="replace"), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        raise Problem(422, f"the form has more than {MOST_FIELDS} fields") from None
    return {key: values[0] for key, values in fields.items()}
