"""Tables of the page on speed, read from the committed result files."""

from collections.abc import Iterable, Sequence
from typing import Any

from generators.measured import NETWORKS, ROOT, Row, result, table

MINUS = "\u2212"
NOT_MEASURED = "Not measured yet."


def _one(rows: Iterable[Row], **wanted: Any) -> Row:
    """Return the only row with these facts."""
    (row,) = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    return row


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def overhead_table() -> str:
    """Return the time of a step of each estimator on a CPU, relative to a hand-written step."""
    ratios = dict(result("estimator_overhead")["ratios"])
    again, floor = ratios.pop("by hand again"), ratios.pop("relax's floor")
    del ratios["by hand (loorf)"]  # 1, by definition
    lines = [
        [_code([name]), f"{ratio:.2f}"]
        for name, ratio in sorted(ratios.items(), key=lambda item: item[1])
    ]
    return table(
        ["", "time relative to hand-written"],
        [
            ["hand-written, repeated", f"{again:.2f}"],
            *lines,
            ["the evaluations of `relax` alone", f"{floor:.2f}"],
        ],
    )


def train_step_table() -> str:
    """Return the time of a step of `arms train` at ten samples, per replica, relative to a hand-written loop."""
    times = {
        (row["threads"], *row["contender"].rsplit(" R=", 1)): row["time / by hand"]
        for row in result("train_step")["rows"]
        if row["n"] == 10 and " R=" in row["contender"]
    }
    names = list(dict.fromkeys(name for _, name, _ in times))
    cases = list(dict.fromkeys((threads, replicas) for threads, _, replicas in times))
    columns = [
        f"{threads} thread{'s' * (threads > 1)}, R = {replicas}"
        for threads, replicas in sorted(cases)
    ]
    lines = [
        [
            _code([name]),
            *(f"{times[threads, name, replicas]:.2f}" for threads, replicas in sorted(cases)),
        ]
        for name in names
    ]
    return table(["", *columns], lines)


def peers_table() -> str:
    """Return milliseconds of a training step per replica, beside JAX, NumPyro and loops by hand."""
    if not _is_measured("peers"):
        return NOT_MEASURED
    rows = result("peers")["rows"]
    cases = list(dict.fromkeys((row["network"], row["cores"]) for row in rows))
    lines = []
    for name, replicas in sorted(
        dict.fromkeys((row["contender"], row["R"]) for row in rows), key=lambda one: one[1]
    ):
        found = [
            _one(rows, contender=name, R=replicas, network=network, cores=cores)["ms"]
            for network, cores in cases
        ]
        lines.append([_peer(name), str(replicas), *(f"{ms:.2f}" for ms in found)])
    columns = [f"{network}, {cores} core{'s' * (cores > 1)}" for network, cores in cases]
    source = "From [peers.json](../benchmarks/results/peers.json):"
    return f"{source}\n\n{table(['', 'R', *columns], lines)}"


def _peer(contender: str) -> str:
    """Return the name of a contender of `make peers` as the page has it."""
    kind, _, estimator = contender.partition(": ")
    names = {
        "products": "matrix products, oneDNN",
        "products, torch.mm": "matrix products, `torch.mm`",
        "arms train": f"`arms train`, `{estimator}`",
        "arms.expectation": f"`arms.expectation` in a loop, `{estimator}`",
    }
    return names.get(kind, contender)


def small_problem_table() -> str:
    """Return the time of a call on a small problem, relative to LOORF by hand."""
    if not _is_measured("small_problem"):
        return NOT_MEASURED
    rows = result("small_problem")["rows"]
    names = {"by hand (loorf)": "hand-written", "by hand, again": "hand-written, repeated"}
    lines = [
        [names.get(name) or _code([name]), f"{row['time / by hand']:.2f}", f"{row['least us']:.0f}"]
        for name, row in rows.items()
    ]
    return table(["", "time relative to hand-written", "µs"], lines)


def _is_measured(name: str) -> bool:
    return (ROOT / "benchmarks" / "results" / f"{name}.json").exists()


def gpu_step_table() -> str:
    """Return run-steps per second on a GPU, by width of the ensemble."""
    rows = [*result("gpu_step_n4")["rows"], *result("gpu_step_n10")["rows"]]
    widths = sorted({row["R"] for row in rows})
    lines = []
    for network in NETWORKS:
        for n in (4, 10):
            mine = {row["R"]: row for row in rows if (row["network"], row["n"]) == (network, n)}
            speeds = [
                f"{mine[width]['run-steps/s']:,}" if width in mine else "" for width in widths
            ]
            lines.append([f"{network}, n = {n}", *speeds, f"{mine[1]['floor run-steps/s']:,}"])
    return table(["", *(f"R = {width}" for width in widths), "floor"], lines)


def precision_table() -> str:
    """Return by how many nats a lower precision moves the test bound."""
    rows = result("precision")["rows"]
    cases = [(network, count) for network in NETWORKS for count in (1, 100)]
    lines = []
    for precision in ("high", "medium"):
        found = [
            _one(rows, network=network, K=count, precision=precision) for network, count in cases
        ]
        moves = [
            f"{row['moved by']:+.3f} ± {row['standard error']:.3f}".replace("-", MINUS)
            for row in found
        ]
        lines.append([f"`{precision}`", *moves])
    found = [_one(rows, network=network, K=count, precision="highest") for network, count in cases]
    lines.append(["std of the seeds", *(f"{row['spread of seeds']:.2f}" for row in found)])
    return table(["", *(f"{network}, K = {count}" for network, count in cases)], lines)


def gpu_estimators_table() -> str:
    """Return the time of a step of each estimator on a GPU, relative to LOORF."""
    files = {width: result(f"gpu_estimators_r{width}")["rows"] for width in (25, 5)}
    names = [row["estimator"] for row in files[25]]
    ratios = {
        name: [
            _one(rows, estimator=name)["us/step"] / _one(rows, estimator="loorf")["us/step"]
            for rows in files.values()
        ]
        for name in names
    }
    lines = [
        [_code([name]), *(f"{ratio:.2f}" for ratio in both)]
        for name, both in sorted(ratios.items(), key=lambda item: item[1])
    ]
    return table(["", *(f"R = {width}" for width in files)], lines)


def packs_table() -> str:
    """Return the microseconds of a step of ensembles as wide as the paper's tables."""
    rows = result("gpu_packs")["rows"]
    cases = [(network, n) for network in NETWORKS for n in (4, 10)]
    lines = []
    for pack in packs():
        found = [_one(rows, estimator="+".join(pack), network=network, n=n) for network, n in cases]
        lines.append([_code(pack), str(found[0]["R"]), *(f"{row['us/step']:.0f}" for row in found)])
    return table(["", "R", *(f"{network}, n = {n}" for network, n in cases)], lines)


def packs() -> list[tuple[str, ...]]:
    """Return the ensembles that were timed, each as its estimators' names in the file."""
    return list(
        dict.fromkeys(tuple(row["estimator"].split("+")) for row in result("gpu_packs")["rows"])
    )


def hours(pack: Sequence[str]) -> float:
    """Return how long an ensemble takes for the paper's million steps on both networks, at n = 4, 6, 8 and 10.

    n = 6 and 8 were not measured, and are taken to lie on the line between 4 and 10.
    """
    rows = [row for row in result("gpu_packs")["rows"] if row["estimator"] == "+".join(pack)]
    assert sorted((row["network"], row["n"]) for row in rows) == [
        (network, n) for network in NETWORKS for n in (4, 10)
    ]
    seconds: float = sum(
        4 * row["us/step"] / 2 for row in rows
    )  # of a million steps: four times the mean of the ends
    return seconds / 3600
