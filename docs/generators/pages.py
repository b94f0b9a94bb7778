"""Pages made of the code: one for each estimator and coupling, the lists of them, the API reference, the changelog."""

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cache, partial

import torch

import arms
import arms.bench
import arms.checks
import arms.sklearn
from generators import measured
from generators.measured import table
from generators.repository import ROOT
from generators.words import capital, typeset

COUNTS = (2, 4, 8, 16)
"""Samples, where cost is shown."""
LATENT_WORDS = {arms.Latent: "bits, categories", arms.Bernoulli: "bits", arms.OneHot: "categories"}
ASKS = {
    "none": "values only: it may be a black box",
    "extra": "values, and df/db at the points that are not samples",
    "all": "values, and df/db at all points",
    "twice": "values, and df/db at the points that are not samples, differentiable once more while it learns",
}
BECAUSE = re.compile(r"(?:Unbiased|Biased) because")


@dataclass(frozen=True)
class Text:
    """The docstring of an estimator's module, taken apart."""

    title: str
    formula: str
    why: str
    reference: str

    @classmethod
    def of(cls, estimator: arms.Estimator) -> "Text":
        module = inspect.getmodule(type(estimator))
        doc = inspect.cleandoc((module and module.__doc__) or "")
        title, _, rest = doc.partition("\n")
        body, _, reference = rest.partition("\nReference:")
        start = BECAUSE.search(body)
        formula, why = (body[: start.start()], body[start.start() :]) if start else (body, "")
        return cls(_sentence(title), formula.strip(), why.strip(), " ".join(reference.split()))


def _sentence(title: str) -> str:
    """Return the first line of a docstring without the name in front.

    >>> _sentence("ARM: augment-REINFORCE-merge, antithetic pairs.")
    'Augment-REINFORCE-merge, antithetic pairs.'
    """
    return capital(re.sub(r"^[A-Z][A-Z-]+(?: and [A-Z-]+)?: ", "", title))


# ---- estimators


def factories() -> dict[str, Callable[[int], arms.Estimator]]:
    """Return every registered estimator."""
    return {**arms.ESTIMATORS, **arms.BIASED_ESTIMATORS}


def smallest(name: str) -> arms.Estimator:
    """Return the estimator of that name with the fewest samples that it takes."""
    for n in range(1, 9):
        try:
            return factories()[name](n)
        except ValueError:
            continue
    raise ValueError(f"{name} takes none of 1 to 8 samples")


def folder(name: str) -> str:
    """Return where in the site the page of an estimator is."""
    if name in arms.BIASED_ESTIMATORS:
        return "biased"
    return "bound" if smallest(name).target.direct else "expectation"


@cache
def estimator_pages() -> dict[str, str]:
    """Return the pages of all estimators, and their list, by path."""
    pages = {f"estimators/{folder(name)}/{name}.md": estimator_page(name) for name in factories()}
    return {"estimators/index.md": estimator_index(), **pages}


def estimator_page(name: str) -> str:
    """Return the page of one estimator."""
    estimator = factories()[name](8)
    text = Text.of(estimator)
    label = "Why it is unbiased" if estimator.unbiased else "Why it is biased"
    parts = [
        f"# {name}",
        typeset(text.title),
        facts(name, estimator),
        "## Formula",
        _links(typeset(text.formula)),
        f"## {label}",
        _links(typeset(text.why)),
        "## Cost",
        cost(name),
        "## Measured",
        measured.about(name),
        "## Use",
        f"```python\n{example(name)}```",
        "## Reference",
        _links(text.reference) + coupling_reference(estimator),
    ]
    return "\n\n".join(parts) + "\n"


def coupling_reference(estimator: arms.Estimator) -> str:
    """Return a sentence about the coupling, where it is from elsewhere than the estimator."""
    said = reference(estimator).partition("; coupling: ")[2]
    return f" The coupling: {said}." if said else ""


def facts(name: str, estimator: arms.Estimator) -> str:
    """Return what is to be known of an estimator at a glance."""
    rows = [
        ["gradient", "unbiased" if estimator.unbiased else "**biased**"],
        ["of", "E[log (1/K) Σ w], the multi-sample bound" if estimator.target.direct else "E[f(b)]"],
        ["latents", latents_of(estimator)],
        ["n", counts_of(name)],
        ["asks of f", ASKS[estimator.slopes] if latent_evaluations(name) else "its values at all states"],
        ["learns", "yes: keep the object, and train its parameters" if estimator.has_parameters else "nothing"],
        ["in Python", f"[`{in_python(name)}`][arms.{type(estimator).__name__}]"],
    ]
    if known := coupling_name(getattr(estimator, "coupling", None)):
        rows.insert(-1, ["coupling", f"[{known}](../../couplings/{known}.md)"])
    return table(["", ""], rows, left=2)


def latents_of(thing: arms.Estimator | arms.Coupling) -> str:
    """Return the kinds of latents that an estimator or a coupling takes."""
    return ", ".join(dict.fromkeys(LATENT_WORDS[kind] for kind in thing.latents))


def counts_of(name: str) -> str:
    """Return which numbers of samples an estimator takes, found by trying."""
    if not latent_evaluations(name):
        return "has no meaning"

    def takes(n: int) -> bool:
        try:
            factories()[name](n)
        except ValueError:
            return False
        return True

    least = smallest(name).num_samples
    return f"{'' if takes(least + 1) else 'even, '}≥\u00a0{least}"


def latent_evaluations(name: str) -> bool:
    """Return whether n decides how many evaluations there are."""
    return smallest(name).evaluations is not None


def in_python(name: str) -> str:
    """Return the call that makes the estimator of that name."""
    factory = factories()[name]
    estimator = factory(8)
    given = factory.keywords if isinstance(factory, partial) else {}
    if not isinstance(factory, partial | type):  # a function: what is not at its default
        given = {field.name: getattr(estimator, field.name) for field in fields(estimator) if field.name == "tried"}
    words = [
        f"{key}={f'arms.{value!r}' if isinstance(value, arms.Coupling) else repr(value)}"
        for key, value in given.items()
    ]
    count = [] if estimator.evaluations is None else ["8"]
    return f"arms.{type(estimator).__name__}({', '.join([*count, *words])})"


def cost(name: str) -> str:
    """Return evaluations and derivatives at some n."""
    if not latent_evaluations(name):
        return "One evaluation for every joint state: 2^d of d bits, at most 65,536. No derivatives."
    rows = []
    for n in COUNTS:
        try:
            one = factories()[name](n)
        except ValueError:
            continue
        bound = [str(one.target.size)] if one.target.direct else []
        rows.append([str(n), str(one.evaluations), str(one.derivatives), *bound])
    bound = ["K of the bound"] if smallest(name).target.direct else []
    return table(["n", "evaluations of f", "of them differentiated", *bound], rows, left=0)


def example(name: str) -> str:
    """Return a short program that uses the estimator."""
    if smallest(name).target.direct:
        return (
            "import torch, arms\n\n"
            "logits = torch.zeros(5, 3, requires_grad=True)\n\n\n"
            "def log_weight(b):  # log p(x, b) - log q(b), q of the logits themselves\n"
            "    return b.cos().sum(-1) - arms.Bernoulli(logits).log_prob(b)\n\n\n"
            f'bound = arms.multi_sample_bound(log_weight, logits, "{name}", num_samples=8)  # [5]\n'
            "(-bound.mean()).backward()\n"
        )
    count = "" if not latent_evaluations(name) else ", num_samples=8"
    return (
        "import torch, arms\n\n"
        "logits = torch.zeros(5, 3, requires_grad=True)\n\n\n"
        "def f(b):  # [n, 5, 3] -> [n, 5]\n"
        "    return (b.sum(-1) - 1).square()\n\n\n"
        f'value = arms.expectation(f, logits, "{name}"{count})  # [5]\n'
        "(-value.mean()).backward()\n"
    )


def estimator_index() -> str:
    """Return the list of all estimators."""
    parts = [
        "# Estimators",
        "Every estimator by name, from its code. A page has its formula, why it is unbiased or not, and its cost.",
        "Which to take: [Choosing an estimator](../choosing.md). `arms estimators` prints this list too.",
        "Work is evaluations of f + those of them that are differentiated.",
    ]
    titles = {
        "expectation": "Of the expectation",
        "bound": "Of the multi-sample bound",
        "biased": "Biased baselines",
    }
    columns = ["name", "what", "n", "work at n = 8", "latents", "reference"]
    for where, title in titles.items():
        names = [name for name in factories() if folder(name) == where]
        rows = table(columns, [_index_row(name) for name in names], left=len(columns))
        parts += [f"## {title}", f'<div class="wide" markdown>\n\n{rows}\n\n</div>']
    return "\n\n".join(parts) + "\n"


def _index_row(name: str) -> list[str]:
    one = factories()[name](8)
    work = "all states" if one.evaluations is None else f"{one.evaluations} + {one.derivatives}"
    what = typeset(Text.of(one).title).replace("|", "\\|")
    if known := coupling_name(getattr(one, "coupling", None)):
        what = f"{what} Coupling: {known}."
    factory = factories()[name]
    given = factory.keywords if isinstance(factory, partial) else {}
    if told := [f"`{key}={value!r}`" for key, value in given.items() if key != "coupling"]:
        what = f"{what} With {', '.join(told)}."
    return [f"[`{name}`]({folder(name)}/{name}.md)", what, counts_of(name), work, latents_of(one), reference(one)]


def reference(estimator: arms.Estimator) -> str:
    """Return where an estimator comes from, and its coupling if that is from elsewhere."""
    coupling = getattr(estimator, "coupling", None)
    also = coupling.reference if isinstance(coupling, arms.Coupling) else ""
    known = not also or estimator.reference.startswith(also)
    return estimator.reference if known else f"{estimator.reference}; coupling: {also}"


def _links(text: str) -> str:
    """Return text of a docstring with mentions of pages as links; an estimator's page is two folders down."""
    text = text.replace("see `multi_sample`", "see [The multi-sample bound](../../bound.md)")
    return re.sub(r"docs/(\w+)\.md", r"[\1](../../\1.md)", text)


# ---- couplings


def coupling_name(coupling: arms.Coupling | None) -> str | None:
    """Return the registered name of a coupling, if it has one."""
    return next((name for name, make in arms.COUPLINGS.items() if type(make()) is type(coupling)), None)


@cache
def coupling_pages() -> dict[str, str]:
    """Return the pages of all couplings, and their list, by path."""
    return {"couplings/index.md": coupling_index()} | {
        f"couplings/{name}.md": coupling_page(name) for name in arms.COUPLINGS
    }


def coupling_page(name: str) -> str:
    """Return the page of one coupling: its own words, and the correlations that it reaches."""
    coupling = arms.COUPLINGS[name]()
    text = inspect.cleandoc(type(coupling).__doc__ or "").partition("\n>>>")[0]
    title, _, body = text.partition("\n\n")
    users = [
        f"[`{one}`](../estimators/{folder(one)}/{one}.md)"
        for one in factories()
        if coupling_name(getattr(smallest(one), "coupling", None)) == name
    ]
    rows = [
        ["latents", latents_of(coupling)],
        ["in Python", f"[`arms.{coupling!r}`][arms.{type(coupling).__name__}]"],
        ["estimators", ", ".join(users) or "`arms.ARMS(n, coupling=...)`"],
        ["reference", coupling.reference or "none: it is the absence of one"],
    ]
    parts = [f"# {name}", typeset(capital(title)), table(["", ""], rows, left=2)]
    if body.strip():
        parts += ["## How", typeset(body.strip())]
    parts += [
        "## Correlation",
        "Of two of the n samples of a bit, computed; the lowest that n exchangeable bits can have in brackets.",
        correlations(coupling),
        "## Use",
        f"```python\n{coupling_example(coupling)}```",
    ]
    return "\n\n".join(parts) + "\n"


def coupling_example(coupling: arms.Coupling) -> str:
    """Return a short program that uses the coupling."""
    return (
        "import torch, arms\n\n"
        "logits = torch.zeros(5, 3, requires_grad=True)\n"
        f"estimator = arms.ARMS(4, coupling=arms.{coupling!r})\n"
        "value = arms.expectation(lambda b: (b.sum(-1) - 1).square(), logits, estimator)\n"
        "(-value.mean()).backward()\n"
    )


def correlations(coupling: arms.BinaryCoupling) -> str:
    """Return the correlation at some p and n, with the lowest possible."""
    probs = torch.tensor([0.5, 0.3, 0.1, 0.01], dtype=torch.float64)
    counts = (2, 4, 8, 16)
    rho, least = ([one.correlation(probs.logit(), n) for n in counts] for one in (coupling, arms.Systematic()))
    rows = [
        [f"{p:g}", *(f"{_signed(found[i])} ({_signed(best[i])})" for found, best in zip(rho, least, strict=True))]
        for i, p in enumerate(probs.tolist())
    ]
    return table(["p", *(f"n = {n}" for n in counts)], rows, left=0)


def _signed(value: torch.Tensor) -> str:
    return f"{round(value.item(), 3) + 0.0:.3f}".replace("-", "\u2212")


def coupling_index() -> str:
    """Return the list of all couplings."""
    rows = []
    for name, make in arms.COUPLINGS.items():
        coupling = make()
        title = inspect.cleandoc(type(coupling).__doc__ or "").partition("\n")[0]
        rows.append(
            [
                f"[`{name}`]({name}.md)",
                typeset(title).replace("|", "\\|"),
                latents_of(coupling),
                coupling.reference or "",
            ]
        )
    doc = inspect.cleandoc(inspect.getmodule(arms.Coupling).__doc__ or "")
    title, _, body = doc.partition("\n\n")
    parts = [
        "# Couplings",
        typeset(title.partition(": ")[2]),
        table(["name", "what", "latents", "reference"], rows, left=4),
        typeset(body),
    ]
    return "\n\n".join(parts) + "\n"


# ---- API reference

API = {
    "functions": ("Functions", "What most programs call.", (
        "expectation", "multi_sample_bound", "draw", "attach", "variance", "variance_loss",
        "as_estimator", "as_coupling", "as_latent", "relax_control", "rank_generator",
    )),
    "latents": ("Latents and targets", "What is random, and what is differentiated.", (
        "Latent", "Bernoulli", "OneHot", "Categorical", "Target", "Expectation", "MultiSampleBound",
    )),
    "estimators": ("Estimators", "A page for each that has a name: [Estimators](../estimators/index.md).", (
        "Estimator", "Draw", "Estimate", "ARMS", "LOORF", "Reinforce", "DisARM", "ARM", "ARTS", "Midpoint", "Repaired",
        "ARMSTaylor", "TreeDisARM", "Unordered", "REBAR", "RELAX", "Relaxation", "DoubleCV", "RODEO", "SteinControl",
        "Exact", "MultiSampleDisARM", "MultiSampleARMS", "MultiSampleLOORF", "MultiSampleMidpoint", "VIMCO",
        "MultiSampleReinforce", "StraightThrough", "SigmoidStraightThrough", "GumbelStraightThrough",
        "GappedStraightThrough", "ReinMax", "Concrete", "ExtraSample", "Stacked", "ESTIMATORS", "BIASED_ESTIMATORS",
    )),
    "couplings": ("Couplings", "A page for each: [Couplings](../couplings/index.md).", (
        "Coupling", "BinaryCoupling", "Systematic", "Stratified", "Dirichlet", "Gaussian", "Independent", "COUPLINGS",
    )),
}  # fmt: skip
"""The public names of `arms` by page; a test holds them against `arms.__all__`."""


@cache
def api_pages() -> dict[str, str]:
    """Return the pages of the API reference."""
    pages = {
        f"api/{page}.md": _api_page(title, words, [(arms, name) for name in names])
        for page, (title, words, names) in API.items()
    }
    checks = [(arms.checks, name) for name in arms.checks.__all__ if name != "variance"]
    words = "`arms.checks`: for our tests and for yours. `arms.variance` is among the [functions](functions.md)."
    pages["api/checks.md"] = _api_page("Checks", words, checks)
    bench = [(arms.bench, name) for name in arms.bench.__all__]
    words = "`arms.bench`, installed by `arms-grad[bench]`: VAEs, runs, reports."
    pages["api/bench.md"] = _api_page("The bench", words, bench)
    words = "`arms.sklearn`, installed by `arms-grad[sklearn]`: [what it is worth](../examples/subset_selection.md)."
    pages["api/sklearn.md"] = _api_page("scikit-learn", words, [(arms.sklearn, name) for name in arms.sklearn.__all__])
    listed = "\n".join(f"- [{text.partition(chr(10))[0][2:]}]({path[4:]})" for path, text in pages.items())
    index = "# API reference\n\nEvery public name, with its arguments. Everything else may change without notice.\n\n"
    return {"api/index.md": f"{index}{listed}\n", **pages}


def _api_page(title: str, words: str, names: Sequence[tuple[object, str]]) -> str:
    return "\n\n".join([f"# {title}", words, *(_api_block(module, name) for module, name in names)]) + "\n"


def _api_block(module: object, name: str) -> str:
    """Return the directive for one name, under the name that a user imports."""
    shown = f"{module.__name__}.{name}"  # type: ignore[attr-defined]
    thing = getattr(module, name)
    where = f"{thing.__module__}.{name}" if callable(thing) else shown
    return f'::: {where}\n    options:\n      heading: "{shown}"\n      toc_label: "{name}"'


def changelog() -> str:
    """Return the changelog, mentions of pages as links."""
    return re.sub(r"(?<![`\w/])docs/(\w+)\.md", r"[docs/\1.md](\1.md)", (ROOT / "CHANGELOG.md").read_text())
