"""Compare SubsetSelector with common methods: recovery of the true subset of features, and prediction errors.

There are four parts. In each part, all methods select subsets of equal size:

- synthetic: correlated features (AR(1)), ten of a hundred with coefficients ±1, several signal-to-noise ratios;
- exact: a small version of this, with the best of all subsets by enumeration;
- diabetes: scikit-learn's data with squares and products, 64 features, 20 splits;
- search: only the gradient search, without exchanges, with several estimators, and their variances at the start.

    pip install abess pandas                         # one of the contenders
    python benchmarks/subset_selection.py            # a quarter of an hour on one core
    python benchmarks/subset_selection.py --markdown # the tables of the existing results
"""

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import sklearn
import torch
from sklearn.datasets import load_diabetes
from sklearn.feature_selection import RFE
from sklearn.linear_model import LinearRegression, OrthogonalMatchingPursuit, lars_path
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from torch import Tensor

import arms
from arms.sklearn import Regressions, SubsetSelector, improve, with_expected_size

RESULTS = Path(__file__).parent / "results" / "subset_selection.json"
Rows = list[dict[str, Any]]
Method = Callable[[Any, Any, int, int], Any]


def lasso(X: Any, y: Any, size: int, seed: int) -> Any:
    """Return the first subset on the path with this size, or the largest coefficients if the path skips this size."""
    _, _, path = lars_path(X, y, method="lasso")
    coefficients = next((column for column in path.T if (column != 0).sum() >= size), path[:, -1])
    return np.argsort(-np.abs(coefficients))[:size]


def omp(X: Any, y: Any, size: int, seed: int) -> Any:
    return OrthogonalMatchingPursuit(n_nonzero_coefs=size).fit(X, y).coef_.nonzero()[0]


def rfe(X: Any, y: Any, size: int, seed: int) -> Any:
    return RFE(LinearRegression(), n_features_to_select=size).fit(X, y).get_support(indices=True)


def _forward(regressions: Regressions, size: int) -> Tensor:
    mask = torch.zeros(len(regressions.gram), dtype=torch.float64)
    for _ in range(size):
        mask[regressions.with_one_more(mask).argmin()] = 1
    return mask


def forward(X: Any, y: Any, size: int, seed: int) -> Any:
    return _forward(Regressions.of(X, y[:, None]), size).nonzero().squeeze(-1).numpy()


def forward_exchanges(X: Any, y: Any, size: int, seed: int) -> Any:
    regressions = Regressions.of(X, y[:, None])
    found = improve(
        _forward(regressions, size), regressions, lambda left, _: left.log(), any_size=False
    )
    return found.nonzero().squeeze(-1).numpy()


def splicing(X: Any, y: Any, size: int, seed: int) -> Any:
    """Select by the abess package, which exchanges selected and other features (Zhu et al. 2020)."""
    from abess import LinearRegression as Splicing

    return Splicing(support_size=size).fit(X, y).coef_.nonzero()[0]


def subset_selector(X: Any, y: Any, size: int, seed: int) -> Any:
    return SubsetSelector(size, random_state=seed).fit(X, y).get_support(indices=True)


def best_of_all(X: Any, y: Any, size: int, seed: int) -> Any:
    regressions = Regressions.of(X, y[:, None])
    subsets = torch.tensor(list(itertools.combinations(range(X.shape[1]), size)))
    masks = torch.zeros(len(subsets), X.shape[1], dtype=torch.float64).scatter(1, subsets, 1.0)
    left = torch.cat([regressions.unexplained(some) for some in masks.split(5000)])
    return subsets[left.argmin()].numpy()


METHODS: dict[str, Method] = {
    "lasso": lasso,
    "rfe": rfe,
    "omp": omp,
    "forward": forward,
    "forward + exchanges": forward_exchanges,
    "abess": splicing,
    "SubsetSelector": subset_selector,
}


FRESH = 2000  # number of test rows


@dataclass(frozen=True)
class Problem:
    """Return training rows, test rows, the true subset, and the variance of the noise."""

    X: Any
    y: Any
    fresh_X: Any
    fresh_y: Any
    truth: frozenset[int]
    noise: float

    @classmethod
    def draw(
        cls, rows: int, features: int, size: int, correlation: float, snr: float, seed: int
    ) -> Self:
        generator = np.random.default_rng(seed)
        between = correlation ** np.abs(np.subtract.outer(np.arange(features), np.arange(features)))
        X = generator.standard_normal((rows + FRESH, features)) @ np.linalg.cholesky(between).T
        subset = generator.choice(features, size, replace=False)
        coefficients = np.zeros(features)
        coefficients[subset] = generator.choice([-1.0, 1.0], size)
        noise = float(coefficients @ between @ coefficients) / snr
        y = X @ coefficients + np.sqrt(noise) * generator.standard_normal(len(X))
        scale, mean = X[:rows].std(0), X[:rows].mean(0)
        X, y = (X - mean) / scale, y - y[:rows].mean()
        return cls(X[:rows], y[:rows], X[rows:], y[rows:], frozenset(subset.tolist()), noise)

    def judge(self, subset: Any) -> list[float]:
        fit = LinearRegression().fit(self.X[:, subset], self.y)
        wrong = np.mean((fit.predict(self.fresh_X[:, subset]) - self.fresh_y) ** 2)
        share = len(self.truth & set(subset.tolist())) / len(self.truth)
        return [share == 1, share, 1 - fit.score(self.X[:, subset], self.y), wrong / self.noise]


def timed(method: Method, X: Any, y: Any, size: int, seed: int) -> tuple[Any, float]:
    """Return the subset and CPU seconds, which other processes do not affect."""
    start = time.process_time()
    return method(X, y, size, seed), time.process_time() - start


def recovery(methods: dict[str, Method], repeats: int, **case: Any) -> Rows:
    """Return a row for each method: exact support, F1 (at equal size, the share found), losses and time."""
    found: dict[str, list[list[float]]] = {name: [] for name in methods}
    for seed in range(repeats):
        problem = Problem.draw(**case, seed=seed)
        for name, method in methods.items():
            subset, seconds = timed(method, problem.X, problem.y, case["size"], seed)
            found[name].append([*problem.judge(subset), seconds])
    keys = ("exact", "F1", "unexplained", "error / noise")
    return [
        case
        | {"method": name, "repeats": repeats}
        | {key: round(float(mean), 4) for key, mean in zip(keys, np.mean(rows, 0), strict=False)}
        | {"seconds": round(float(np.median([row[-1] for row in rows])), 4)}
        for name, rows in found.items()
    ]


def diabetes(repeats: int) -> Rows:
    """Return a row for each size and method: R² on the held-out 30 % of the rows, averaged over splits."""
    X, y = load_diabetes(return_X_y=True)
    X = PolynomialFeatures(2, include_bias=False).fit_transform(StandardScaler().fit_transform(X))
    X = X[
        :, [j for j in range(X.shape[1]) if len(np.unique(X[:, j])) > 2 or j < 10]
    ]  # the square of sex is constant
    rows = []
    for size in (5, 10):
        found: dict[str, list[list[float]]] = {name: [] for name in METHODS}
        for seed in range(repeats):
            train_X, test_X, train_y, test_y = train_test_split(
                X, y, test_size=0.3, random_state=seed
            )
            scaler = StandardScaler().fit(train_X)
            train_X, test_X, mean = (
                scaler.transform(train_X),
                scaler.transform(test_X),
                train_y.mean(),
            )
            for name, method in METHODS.items():
                subset, seconds = timed(method, train_X, train_y - mean, size, seed)
                fit = LinearRegression().fit(train_X[:, subset], train_y)
                scores = [
                    1 - fit.score(train_X[:, subset], train_y),
                    fit.score(test_X[:, subset], test_y),
                ]
                found[name].append([*scores, seconds])
        for name, each in found.items():
            left, score, _ = np.mean(each, 0)
            rows.append(
                {"features": X.shape[1], "size": size, "method": name, "repeats": repeats}
                | {"unexplained": round(float(left), 4), "test R2": round(float(score), 4)}
                | {"seconds": round(float(np.median([one[-1] for one in each])), 4)}
            )
    return rows


SEARCHES = ["arms", "loorf", "disarm", "reinforce"]


def search(repeats: int) -> Rows:
    """Return the results of the gradient search alone for each estimator, with equal samples and steps."""

    def by(name: str) -> Method:
        return lambda X, y, size, seed: (
            SubsetSelector(size, estimator=name, exchange=False, random_state=seed)
            .fit(X, y)
            .get_support(indices=True)
        )

    methods = {name: by(name) for name in SEARCHES}
    return recovery(methods, repeats, rows=200, features=100, size=10, correlation=0.9, snr=10.0)


def relaxed(regressions: Regressions, z: Tensor) -> Tensor:
    """Return the log of the unexplained share. Between 0 and 1, the ridge penalty of a feature is (1 - z)/z."""
    root = z.clamp(min=1e-12).sqrt()
    block = regressions.gram * root.unsqueeze(-1) * root.unsqueeze(-2) + torch.diag_embed(
        1 - z + regressions.ridge
    )
    half: Tensor = torch.linalg.solve_triangular(
        torch.linalg.cholesky(block), regressions.cross * root.unsqueeze(-1), upper=False
    )
    return (1 - half.square().sum((-2, -1))).log()


def variances() -> Rows:
    """Return variance and time of one estimate at the start of a search."""
    problem = Problem.draw(rows=200, features=100, size=10, correlation=0.9, snr=10.0, seed=0)
    regressions = Regressions.of(problem.X, problem.y[:, None])
    logits = with_expected_size(torch.zeros(1, 100, dtype=torch.float64), 10)
    black_box = [("arms", 64), ("loorf", 64)]
    rows = []
    for (name, n), f in [
        *((one, lambda z: regressions.unexplained(z).log()) for one in black_box),
        (("midpoint-single", 42), lambda z: relaxed(regressions, z)),
        (("midpoint", 50), lambda z: relaxed(regressions, z)),
    ]:
        table = arms.variance(
            f, logits, [name], num_samples=n, repeats=50, generator=torch.Generator().manual_seed(0)
        )
        (row,) = table.rows
        rows.append(
            {
                "estimator": name,
                "samples": n,
                "variance": row.variance,
                "ms": round(row.milliseconds, 2),
            }
        )
    return rows


SYNTHETIC = list(itertools.product((0.7, 0.9), (1.0, 3.0, 10.0)))


def measure(repeats: int) -> dict[str, Rows]:
    parts: dict[str, Rows] = {"synthetic": []}
    for correlation, snr in SYNTHETIC:
        parts["synthetic"] += recovery(
            METHODS, repeats, rows=200, features=100, size=10, correlation=correlation, snr=snr
        )
        print(f"synthetic, correlation {correlation}, SNR {snr}: done", file=sys.stderr, flush=True)
    enumerated = METHODS | {"best of all": best_of_all}
    parts["exact"] = recovery(
        enumerated, repeats, rows=60, features=20, size=5, correlation=0.9, snr=5.0
    )
    parts["diabetes"] = diabetes(repeats)
    parts["search"] = search(repeats)
    parts["variances"] = variances()
    return parts


def markdown(result: dict[str, Any]) -> str:
    def table(rows: Rows, columns: dict[str, str]) -> list[str]:
        head = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
        return head + [
            "| " + " | ".join(form.format(row) for form in columns.values()) + " |" for row in rows
        ]

    case = {"correlation": "{0[correlation]}", "SNR": "{0[snr]:.0f}"}
    judged = {"method": "{0[method]}", "exact": "{0[exact]:.0%}", "F1": "{0[F1]:.3f}"}
    losses = {"unexplained": "{0[unexplained]:.4f}", "error / noise": "{0[error / noise]:.3f}"}
    spent = {"seconds": "{0[seconds]:.3f}"}
    real = {"size": "{0[size]}", "method": "{0[method]}", "test R²": "{0[test R2]:.3f}"}
    estimates = {
        "estimator": "{0[estimator]}",
        "samples": "{0[samples]}",
        "variance": "{0[variance]:.2e}",
    }
    tables = [
        table(result["synthetic"], case | judged | losses | spent),
        table(result["exact"], judged | losses | spent),
        table(result["diabetes"], real | {"unexplained": losses["unexplained"]} | spent),
        table(result["search"], judged | {"unexplained": losses["unexplained"]} | spent),
        table(result["variances"], estimates | {"ms": "{0[ms]:.1f}"}),
    ]
    return "\n\n".join("\n".join(lines) for lines in tables)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument(
        "--markdown", action="store_true", help="print the tables of the existing results"
    )
    options = parser.parse_args()
    if not options.markdown:
        torch.set_num_threads(1)
        head = {
            "command": " ".join(["python", *sys.argv]),
            "torch": torch.__version__,
            "sklearn": sklearn.__version__,
        }
        parts = {
            name: "[\n  " + ",\n  ".join(map(json.dumps, rows)) + "\n ]"
            for name, rows in measure(options.repeats).items()
        }
        body = ",\n ".join(f'"{name}": {text}' for name, text in parts.items())
        options.output.write_text(f"{json.dumps(head, indent=1)[:-2]},\n {body}\n}}\n")
    print(markdown(json.loads(options.output.read_text())))


if __name__ == "__main__":
    main()
