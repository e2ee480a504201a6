"""Formats the benchmark results as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Row = Iterable[Any]


def markdown(found: Mapping[str, Any], judged: bool = True) -> str:
    """One table per measured part, and the targets."""
    parts = {
        "creation": _creation,
        "apart": _apart,
        "life": _life,
        "latency": _latency,
        "recovery": _recovery,
        "scale": _scale,
        "day": _day,
    }
    texts = [_machines(found)]
    texts += [write(found[name]) for name, write in parts.items() if name in found]
    texts += (
        [table(["target", "bound", "measured", "reached"], rows)] if judged and (rows := list(targets(found))) else []
    )
    return "\n\n".join(texts) + "\n"


def table(head: Row, rows: Iterable[Row]) -> str:
    lines = [[str(cell) for cell in row] for row in (head, *rows)]
    lines.insert(1, ["---"] + ["---:"] * (len(lines[0]) - 1))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _machines(found: Mapping[str, Any]) -> str:
    """The machine of the run, then those of parts measured in later runs."""
    lines = [_machine(found["machine"])]
    lines += [f"{part}: {_machine(of)}" for part, of in found.get("added", {}).items()]
    return "  \n".join(lines)


def _machine(of: Mapping[str, Any]) -> str:
    versions = {"Python": of["python"], **of.get("versions", {})}
    return (
        f"{of['date']}, commit {of['commit']}, {of['cores']} cores ({of['processor']}), {of['memory_gb']} GB, "
        f"{', '.join(map(' '.join, versions.items()))}, load {of['load']} at the start"
    )


def _creation(of: Mapping[str, Any], head: str = "jobs x pods, submitted -> all pods exist") -> str:
    shapes = list(next(iter(of.values())))
    rows = []
    for system, by_shape in of.items():
        cells = []
        for shape in shapes:
            one = by_shape.get(shape)
            if one is None:
                cells.append("-")
                continue
            spread = f" ({one['from']:.2f} to {one['to']:.2f})" if one["rounds"] > 1 else ""
            ratio = f", **{one['of_the_limit']:.2f}**" if "of_the_limit" in one else ""
            cells.append(f"{one['seconds']:.2f} s{spread}{ratio}")
        rows.append([system, *cells])
    text = table([head, *shapes], rows)
    costs = [
        [system, *(f"{one['cpu_seconds']:.2f} + {one['server_cpu_seconds']:.2f} s" for one in by_shape.values())]
        for system, by_shape in of.items()
    ]
    return f"{text}\n\n{table(['CPU time: own process + etcd and API server', *shapes], costs)}"


def _apart(of: Mapping[str, Any]) -> str:
    return _creation(of, "the same, with cores for the API server and etcd alone")


_CREATIONS = {"creation": _creation, "apart": _apart}


def _life(of: Mapping[str, Any]) -> str:
    rows = [
        [
            f"{system}, {shape}",
            f"{one['cpu_ms_per_pod']:.2f} ms",
            f"{one['server_cpu_ms_per_pod']:.2f} ms",
            f"{changes(one):g}",
            f"{one['memory_mb_idle']} MB",
            f"{one['memory_mb_peak']} MB",
        ]
        for system, by_shape in of.items()
        for shape, one in by_shape.items()
    ]
    head = [
        "full lifecycle",
        "CPU per pod",
        "server CPU per pod",
        "writes per job, without Events",
        "memory, idle",
        "memory, peak",
    ]
    return table(head, rows)


def targets(found: Mapping[str, Any]) -> Iterator[Row]:
    """The targets of docs/platform/performance.md and the measured values."""

    def row(what: str, bound: str, value: float, unit: str, reached: bool) -> Row:
        return what, bound, f"{value:g}{unit}", "yes" if reached else "**no**"

    for part, where in (("creation", ""), ("apart", ", server apart")):
        ours = found.get(part, {}).get("allranks", {})
        for shape, least in (("1 x 256", 0.9), ("1 x 1,000", 0.9), ("100 x 4", 0.7)):
            if shape in ours:
                ratio = ours[shape]["of_the_limit"]
                what = f"{shape}{where}: pods per second, relative to the limit"
                yield row(what, f">= {least}", ratio, "", ratio >= least)
        for shape, of in found.get(part, {}).get("Indexed Job, no throttle", {}).items():
            ratio = round(ours[shape]["seconds"] / of["seconds"], 2)
            yield row(f"{shape}{where}: time relative to an unthrottled Indexed Job", "<= 1", ratio, "", ratio <= 1)
    for shape, one in found.get("life", {}).get("allranks", {}).items():
        cpu = one["cpu_ms_per_pod"]
        yield row(f"{shape}: CPU time per pod, full lifecycle", "<= 1 ms", cpu, " ms", cpu <= 1)
        if peer := found["life"].get("training-operator, no throttle", {}).get(shape):
            ratio = round(cpu / peer["cpu_ms_per_pod"], 2)
            yield row(f"{shape}: CPU time per pod, relative to training-operator", "<= 1", ratio, "", ratio <= 1)
        pods = one["writes_per_job"]["allranks"]["create pods"]
        more = round(changes(one) - pods, 2)
        yield row(f"{shape}: writes per job of N pods, without Events", "<= N + 5", more, " more than N", more <= 5)
        yield row(f"{shape}: memory, idle", "<= 100 MB", one["memory_mb_idle"], " MB", one["memory_mb_idle"] <= 100)
    for what, one in found.get("latency", {}).get("pod_to_status", {}).items():
        if isinstance(one, dict):
            yield row(
                f"pod -> status, p50: {what.replace('_', ' ')}", "<= 100 ms", one["p50"], " ms", one["p50"] <= 100
            )
    if many := found.get("latency", {}).get("failed_to_replacements"):
        for rank, most in (("p50", 50), ("p99", 200)):
            took = many["a_replacement"][rank]
            what = f"{many['failing']} of {many['pods']:,} fail -> a replacement, {rank}"
            yield row(what, f"<= {most} ms", took, " ms", took <= most)
    for kind in ("one", "group"):
        if one := found.get("recovery", {}).get(kind, {}).get("observed_to_all_created"):
            yield row(f"failure -> replacements, {kind}: p50", "<= 50 ms", one["p50"], " ms", one["p50"] <= 50)
            yield row(f"failure -> replacements, {kind}: p99", "<= 200 ms", one["p99"], " ms", one["p99"] <= 200)
    for name, one in found.get("scale", {}).items():
        yield row(f"{name}: memory", "<= 150 MB", one["memory_mb"], " MB", one["memory_mb"] <= 150)
        start = one["cold_start"]["seconds"]
        yield row(f"{name}: cold start", "<= 10 s", start, " s", start <= 10)


def changes(one: Mapping[str, Any]) -> float:
    """Writes per job by the system itself, without Events."""
    return round(
        sum(count for by in own_writes(one).values() for change, count in by.items() if change != "create events"), 2
    )


OTHERS = (
    "Python", "bench", "kube-controller-manager/generic-garbage-collector",
    "kube-controller-manager/service-account-controller",
)  # fmt: skip


def own_writes(one: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Leaves out the kubelet's writes, the submitter's, and the controller manager's that every namespace causes."""
    return {who: by for who, by in one["writes_per_job"].items() if not who.startswith(OTHERS)}


def _latency(of: Mapping[str, Any]) -> str:
    status, failures = of["pod_to_status"], of["failed_to_replacements"]
    rows = [
        [what, status["rounds"], f"{status[key]['p50']:.0f} ms", f"{status[key]['p99']:.0f} ms"]
        for what, key in (
            ("the last of 8 pods runs -> job Running", "last_pod_runs"),
            ("a pod failed -> attempt and root cause in status", "a_pod_failed"),
            ("the last of 8 pods succeeded -> job Succeeded", "last_pod_succeeded"),
        )
    ]
    many = f"{failures['failing']} of {failures['pods']:,} pods failed"
    rows += [
        [what, failures["rounds"], f"{failures[key]['p50']:.0f} ms", f"{failures[key]['p99']:.0f} ms"]
        for what, key in ((f"{many} -> replacement of each", "a_replacement"), (f"{many} -> all", "all_replacements"))
    ]
    return table(["from the response to the change until the watch event", "rounds", "p50", "p99"], rows)


def _recovery(of: Mapping[str, Any]) -> str:
    kinds = {"group": f"all {of['pods']} pods are replaced", "one": f"one of {of['pods']} pods is replaced"}
    plain = {"group": "plain_creations", "one": "plain_status_and_creation"}
    rows = []
    for kind, what in kinds.items():
        if kind not in of:
            continue
        one = of[kind]
        cells = [one["observed_to_status_written"], one["observed_to_all_created"], one[plain[kind]]]
        rows.append([what, one["rounds"], *(f"{cell['p50']:.0f} / {cell['p99']:.0f} ms" for cell in cells)])
    head = [
        "after the failure event, p50 / p99",
        "rounds",
        "-> status written",
        "-> last creation confirmed",
        "a plain client",
    ]
    return table(head, rows)


def _scale(of: Mapping[str, Any]) -> str:
    rows = [
        [
            f"{name}, {one['pods']:,} pods",
            f"{one['memory_mb_without_jobs']} -> {one['memory_mb']} MB",
            f"{one['idle']['core']:.1%}",
            f"{one['churn']['core']:.0%} (server {one['churn']['server_core']:.0%})",
            f"{one['churn']['settled_after_seconds']} s",
            f"{one['cold_start']['seconds']} s, {one['cold_start']['memory_mb']} MB",
            f"{one['cold_start_beside_removals']['seconds']} s",
        ]
        for name, one in of.items()
    ]
    head = [
        "at scale",
        "memory",
        "idle, CPU of one core",
        "1 % churn per second, CPU of one core",
        "settled after",
        "cold start",
        "cold start while churned pods are removed",
    ]
    return table(head, rows)


def _day(of: Mapping[str, Any]) -> str:
    sizes = ", ".join(f"{size:.0f}" for size in of["memory_mb"])
    return table(
        ["one day of jobs in sequence", "jobs", "pods", "memory after each tenth, MB", "last / first"],
        [[f"in {of['seconds']} s", f"{of['jobs']:,}", f"{of['pods']:,}", sizes, of["growth"]]],
    )
