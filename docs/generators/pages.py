"""Pages made from the code: estimators, couplings, their lists.

python docs/generators    # writes them
"""

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import torch

import arms
import arms.designs
from arms.designs import BitCoupling, CategoryCoupling, Coupling
from arms.estimate import takes
from arms.estimators import ENTRIES, Estimator, num_samples_of, registry
from arms.estimators.registry import PAPER_FORMS, TABLE
from generators import measured
from generators.measured import table
from generators.words import capital, typeset

DOCS = Path(__file__).parents[1]
COUNTS = (2, 4, 8, 16)
"""Numbers of samples for which the cost is shown."""
EXAMPLES = {
    "bits": arms.Bits(torch.zeros(3)),
    "categories": arms.OneHot(torch.zeros(2, 3)),
    "subsets": arms.Subset(torch.zeros(4), k=2),
}
"""A latent of each kind, to find out which of them an estimator takes."""
TIERS = {
    "recommended": "recommended",
    "published": "published: included for comparison",
    "experimental": "experimental: new, and little used so far",
}
GROUPS = {
    "recommended": ("Recommended", "Unbiased estimators to start with."),
    "published": (
        "Published",
        "Unbiased estimators from papers, included for comparison and to reproduce results.",
    ),
    "biased": (
        "Biased",
        (
            "Estimators with low variance, whose mean is not the gradient. "
            "[Choosing an estimator](../choosing.md) shows the size of the bias."
        ),
    ),
    "experimental": ("Experimental", "New unbiased estimators with little use so far."),
}
"""The groups of estimators: title and introduction of the page of each."""
BECAUSE = re.compile(r"(Unbiased|Biased)\s+because")


@dataclass(frozen=True)
class Text:
    """The docstring of an estimator's module, divided into its parts."""

    title: str
    formula: str
    why: str
    reference: str

    @classmethod
    def of(cls, estimator: Estimator) -> "Text":
        module = inspect.getmodule(type(estimator))
        doc = inspect.cleandoc((module and module.__doc__) or "")
        title, _, rest = doc.partition("\n")
        body, _, reference = rest.partition("\nReference:")
        start = BECAUSE.search(body)
        formula = body[: start.start()] if start else body
        why = f"{start[1]} because{body[start.end() :]}" if start else ""
        return cls(_sentence(title), formula.strip(), why.strip(), " ".join(reference.split()))


def _sentence(title: str) -> str:
    """Return the first line of a docstring without the name in front.

    >>> _sentence("ARM: augment-REINFORCE-merge, antithetic pairs.")
    'Augment-REINFORCE-merge, antithetic pairs.'
    """
    return capital(re.sub(r"^[A-Z][A-Z-]+(?: and [A-Z-]+)?: ", "", title))


# ---- estimators


def factories() -> dict[str, Callable[..., Estimator]]:
    """Return every registered estimator, the unbiased ones first."""
    return {**arms.ESTIMATORS, **arms.BIASED_ESTIMATORS}


def smallest(name: str) -> Estimator:
    """Return the estimator of that name with the fewest samples that it takes."""
    for n in range(1, 9):
        try:
            return factories()[name](n)
        except ValueError:
            continue
    raise ValueError(f"{name} takes none of 1 to 8 samples")


def folder(name: str) -> str:
    """Return the folder of the site that holds the page of an estimator."""
    if name in arms.BIASED_ESTIMATORS:
        return "biased"
    return "bound" if smallest(name).target.subtracts_log_q else "expectation"


@cache
def estimator_pages() -> dict[str, str]:
    """Return the pages of all estimators, and their list, by path."""
    pages = {f"estimators/{folder(name)}/{name}.md": estimator_page(name) for name in factories()}
    groups = {f"estimators/{of}.md": group_page(of) for of in GROUPS}
    return {"estimators/index.md": estimator_index(), **groups, **pages}


def _as_sentence(found: re.Match[str]) -> str:
    """Return the beginning of a reason as a sentence with a subject."""
    return f"The estimate is {found[1].lower()} because"


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
        _links(typeset(BECAUSE.sub(_as_sentence, text.why, count=1))),
        "## Cost",
        cost(name),
        "## Measured",
        measured.about(name),
        "## Use",
        f"```python\n{example(name)}```",
        "## Reference",
        _links(text.reference) + coupling_sentence(estimator),
    ]
    return "\n\n".join(parts) + "\n"


def coupling_of(estimator: Estimator) -> Coupling | None:
    """Return the coupling that an estimator draws its samples with, if there is one."""
    for holder in (estimator, estimator.design):
        if isinstance(found := getattr(holder, "coupling", None), Coupling):
            return found
    inner = getattr(estimator, "inner", None)
    return coupling_of(inner) if isinstance(inner, Estimator) else None


def coupling_sentence(estimator: Estimator) -> str:
    """Return the reference of an estimator's coupling, as a sentence."""
    coupling = coupling_of(estimator)
    if coupling is None or not (said := coupling_text(coupling)[2]):
        return ""
    return f" Coupling: {_links(said)}"


def facts(name: str, estimator: Estimator) -> str:
    """Return the facts about an estimator, as a table."""
    bound = estimator.target.subtracts_log_q
    entry = ENTRIES[name]
    rows = [
        ["bias", "unbiased" if estimator.unbiased else "**biased**"],
        ["target", "E[log (1/K) Σ w], the importance-weighted bound" if bound else "E[f(b)]"],
        ["status", TIERS[entry.tier]],
        ["latents", latents_of(estimator)],
        ["number of samples n", counts_of(name)],
        ["f must provide", needs_of(estimator)],
        [
            "learned parameters",
            "yes: create the object once, and keep it for all steps"
            if _learns(estimator)
            else "none",
        ],
        [
            "in Python",
            f"[`{in_python(name)}`](../../api/estimators.md#arms.{_class_shown(estimator)})",
        ],
    ]
    if known := coupling_name(coupling_of(estimator)):
        rows.insert(-1, ["coupling", f"[{known}](../../couplings/{known}.md)"])
    if entry.aliases:
        rows.insert(3, ["other names", ", ".join(f"`{alias}`" for alias in entry.aliases)])
    return table(["", ""], rows, left=2)


def needs_of(estimator: Estimator) -> str:
    """Return what an estimator needs from the objective, in words."""
    needs = estimator.design.needs
    if needs.evaluations is None:
        return "its values at all states"
    if not needs.derivatives:
        return "values only, so f may be a black box"
    where = "all points" if needs.derivatives == needs.evaluations else "some of the points"
    again = "; df/db must be differentiable while parameters learn" if needs.second_order else ""
    return f"values, and df/db at {where}{again}"


def latents_of(estimator: Estimator) -> str:
    """Return the kinds of latents that an estimator takes, found by trying."""
    return ", ".join(kind for kind, latent in EXAMPLES.items() if takes(estimator, latent))


def counts_of(name: str) -> str:
    """Return which numbers of samples an estimator takes, found by trying."""
    if not has_count(name):
        return "ignored"

    def accepts(n: int) -> bool:
        try:
            factories()[name](n)
        except ValueError:
            return False
        return True

    least = num_samples_of(smallest(name))
    return f"{'' if accepts(least + 1) else 'even, '}≥\u00a0{least}"


def has_count(name: str) -> bool:
    """Return whether n decides how many evaluations there are."""
    return smallest(name).design.needs.evaluations is not None


def in_python(name: str) -> str:
    """Return a call that makes the estimator of that name, with eight samples."""
    factory = factories()[name]
    made = factory.func if isinstance(factory, partial) else factory
    if made is registry.flips:
        made = arms.Flips  # with the coupling that it has anyway
    shown = getattr(made, "__name__", "")
    if getattr(arms, shown, None) is not made:
        return f'arms.as_estimator("{name}", 8)'
    options = factory.keywords if isinstance(factory, partial) else {}
    words = [f"{key}={_in_code(value)}" for key, value in options.items()]
    return f"arms.{shown}({', '.join([*(['8'] if has_count(name) else []), *words])})"


def _in_code(value: object) -> str:
    return f"arms.designs.{value!r}" if isinstance(value, Coupling) else repr(value)


def _class_shown(estimator: Estimator) -> str:
    """Return the class of an estimator, or the base class if it is not public."""
    name = type(estimator).__name__
    return name if name in arms.__all__ else "Estimator"


def _learns(estimator: Estimator) -> bool:
    return any(True for _ in estimator.parameters())


def cost(name: str) -> str:
    """Return evaluations and derivatives for some numbers of samples."""
    if not has_count(name):
        return (
            "The estimator evaluates f once at each joint state, of which d bits have 2^d. At most 65,536 "
            "states are allowed. It needs no derivatives."
        )
    rows, bound = [], smallest(name).target.subtracts_log_q
    for n in COUNTS:
        try:
            one = factories()[name](n)
        except ValueError:
            continue
        needs = one.design.needs
        size = [str(one.target.size)] if bound else []
        rows.append([str(n), str(needs.evaluations), str(needs.derivatives), *size])
    columns = ["n", "evaluations of f", "of these, differentiated", *(["K"] if bound else [])]
    return table(columns, rows, left=0)


def example(name: str) -> str:
    """Return a short program that uses the estimator."""
    start = "import torch, arms\n\nlogits = torch.zeros(5, 3, requires_grad=True)\n\n\n"
    if smallest(name).target.subtracts_log_q:
        return (
            f"{start}def log_joint(b):  # log p(x, b), [n, 5, 3] -> [n, 5]\n"
            "    return b.cos().sum(-1)\n\n\n"
            f'bound = arms.importance_bound(log_joint, logits, "{name}", num_samples=8)  # [5]\n'
            "(-bound.mean()).backward()\n"
        )
    count = ", num_samples=8" if has_count(name) else ""
    return (
        f"{start}def f(b):  # [n, 5, 3] -> [n, 5]\n"
        "    return (b.sum(-1) - 1).square()\n\n\n"
        f'value = arms.expectation(f, logits, "{name}"{count})  # [5]\n'
        "(-value.mean()).backward()\n"
    )


def group(name: str) -> str:
    """Return the group of an estimator: its tier, or biased."""
    return "biased" if name in arms.BIASED_ESTIMATORS else ENTRIES[name].tier


def members(of: str, bound: bool) -> list[str]:
    """Return the names of a group, for the bound or for the expectation."""
    return [
        name
        for name in factories()
        if group(name) == of and smallest(name).target.subtracts_log_q == bound
    ]


def group_page(of: str) -> str:
    """Return the list of one group, with the pages of its estimators in the navigation."""
    title, words = GROUPS[of]
    parts = [
        f"# {title}",
        words,
        "The column for work shows the evaluations of f, plus the number of these that are differentiated.",
    ]
    columns = ["name", "what", "n", "work at n = 8", "latents", "reference"]
    both = {"For the expectation": members(of, False), "For the bound": members(of, True)}
    for heading, names in both.items():
        if names:
            rows = table(columns, [_index_row(name) for name in names], left=len(columns))
            parts += [f"## {heading}", rows]
    pages = [f"{folder(name)}/{name}" for names in both.values() for name in names]
    return "\n\n".join([*parts, toctree(pages)]) + "\n"


def toctree(pages: Sequence[str]) -> str:
    """Return the directive that puts pages into the navigation."""
    return "\n".join(["```{toctree}", ":hidden:", "", *pages, "```"])


def estimator_index() -> str:
    """Return the list of all names by group."""
    rows = [
        [
            f"[{title}]({of}.md)",
            *(", ".join(map(linked, members(of, bound))) for bound in (False, True)),
        ]
        for of, (title, _) in GROUPS.items()
    ]
    parts = [
        "# Estimators",
        (
            "Every estimator has a page with its formula, the reason why it is unbiased or biased, its cost, "
            "and its measurements. [Choosing an estimator](../choosing.md) helps you pick one. "
            "`arms estimators` prints this list."
        ),
        table(["", "for the expectation", "for the bound"], rows, left=3),
        "## Other names",
        "These names from papers and earlier versions remain valid.",
        alias_table(),
        toctree(list(GROUPS)),
    ]
    return "\n\n".join(parts) + "\n"


def alias_table() -> str:
    """Return every alias, and the name and options that it stands for."""
    rows = [[f"`{alias}`", linked(entry.name)] for entry in TABLE for alias in entry.aliases]
    rows += [
        [f"`{alias}`", f"{linked(name)} with `folded=False`"] for alias, name in PAPER_FORMS.items()
    ]
    return table(["other name", "stands for"], rows, left=2)


def linked(name: str) -> str:
    """Return a link to the page of an estimator, from the list."""
    return f"[`{name}`]({folder(name)}/{name}.md)"


def _index_row(name: str) -> list[str]:
    one = factories()[name](8)
    needs = one.design.needs
    work = "all states"
    if needs.evaluations is not None:
        work = f"{needs.evaluations}\u00a0+\u00a0{needs.derivatives}"
    what = typeset(Text.of(one).title).replace("|", "\\|")
    if known := coupling_name(coupling_of(one)):
        what = f"{what} Coupling: {known}."
    factory = factories()[name]
    given = factory.keywords if isinstance(factory, partial) else {}
    if told := [f"`{key}={value!r}`" for key, value in given.items() if key != "coupling"]:
        what = f"{what} With {', '.join(told)}."
    entry = ENTRIES[name]
    return [linked(name), what, counts_of(name), work, latents_of(one), entry.reference]


def _links(text: str) -> str:
    """Return text of a docstring with the pages that it mentions as links, from two folders down."""
    text = re.sub(
        r"see\s+`arms\.estimators\.bound\.slots`", "see [the bound](../../bound.md)", text
    )
    return re.sub(r"docs/([\w/]+)\.md", r"[\1](../../\1.md)", text)


# ---- couplings


def coupling_name(coupling: Coupling | None) -> str | None:
    """Return the registered name of a coupling, if it has one."""
    registered = arms.designs.COUPLINGS.items()
    return next((name for name, make in registered if type(make()) is type(coupling)), None)


def coupling_text(coupling: Coupling) -> tuple[str, str, str]:
    """Return the first line, the body and the reference of a coupling's docstring."""
    doc = inspect.cleandoc(type(coupling).__doc__ or "").partition("\n>>>")[0]
    said, _, reference = doc.partition("Reference:")
    title, _, body = said.partition("\n\n")
    return title, body.strip(), " ".join(reference.split())


@cache
def coupling_pages() -> dict[str, str]:
    """Return the pages of all couplings, and their list, by path."""
    return {"couplings/index.md": coupling_index()} | {
        f"couplings/{name}.md": coupling_page(name) for name in arms.designs.COUPLINGS
    }


def coupling_page(name: str) -> str:
    """Return the page of one coupling: its docstring, and the correlations that it reaches."""
    coupling = arms.designs.COUPLINGS[name]()
    title, body, reference = coupling_text(coupling)
    users = [
        f"[`{one}`](../estimators/{folder(one)}/{one}.md)"
        for one in factories()
        if coupling_name(coupling_of(factories()[one](8))) == name
    ]
    shown = type(coupling).__name__
    rows = [
        ["latents", coupled_latents(coupling)],
        ["in Python", f"[`arms.designs.{coupling!r}`](../api/designs.md#arms.designs.{shown})"],
        ["estimators", ", ".join(users)],
        ["reference", _from_couplings(reference)],
    ]
    parts = [f"# {name}", typeset(capital(title)), table(["", ""], rows, left=2)]
    if body:
        parts += ["## How", _from_couplings(typeset(body))]
    if isinstance(coupling, BitCoupling):
        parts += [
            "## Correlation",
            "The exact correlation of two of the n samples of a bit.",
            "In parentheses: the lowest correlation that n exchangeable bits can have.",
            correlations(coupling),
        ]
    parts += ["## Use", f"```python\n{coupling_example(coupling)}```"]
    return "\n\n".join(parts) + "\n"


def _from_couplings(text: str) -> str:
    """Return text of a docstring with the pages that it mentions as links, from one folder down."""
    return re.sub(r"docs/([\w/]+)\.md", r"[\1](../\1.md)", text)


def coupled_latents(coupling: Coupling) -> str:
    """Return the kinds of latents that a coupling draws."""
    kinds = {"bits": BitCoupling, "categories": CategoryCoupling}
    return ", ".join(words for words, kind in kinds.items() if isinstance(coupling, kind))


def coupling_example(coupling: Coupling) -> str:
    """Return a short program that uses the coupling."""
    return (
        "import torch, arms\n\n"
        "logits = torch.zeros(5, 3, requires_grad=True)\n"
        f"estimator = arms.ARMS(4, coupling=arms.designs.{coupling!r})\n"
        "value = arms.expectation(lambda b: (b.sum(-1) - 1).square(), logits, estimator)\n"
        "(-value.mean()).backward()\n"
    )


def correlations(coupling: BitCoupling) -> str:
    """Return the correlation for some p and n, with the lowest possible one."""
    probs = torch.tensor([0.5, 0.3, 0.1, 0.01], dtype=torch.float64)
    counts = (2, 4, 8, 16)
    rho, least = (
        [one.correlation(probs.logit(), n) for n in counts]
        for one in (coupling, arms.designs.Systematic())
    )
    rows = []
    for i, p in enumerate(probs.tolist()):
        both = zip(rho, least, strict=True)
        cells = [f"{_signed(found[i])} ({_signed(best[i])})" for found, best in both]
        rows.append([f"{p:g}", *cells])
    return table(["p", *(f"n = {n}" for n in counts)], rows, left=0)


def _signed(value: torch.Tensor) -> str:
    return f"{round(value.item(), 3) + 0.0:.3f}".replace("-", "\u2212")


def coupling_index() -> str:
    """Return the list of all couplings."""
    rows = []
    for name, make in arms.designs.COUPLINGS.items():
        coupling = make()
        title, _, reference = coupling_text(coupling)
        what = typeset(title).replace("|", "\\|")
        row = [
            f"[`{name}`]({name}.md)",
            what,
            coupled_latents(coupling),
            _from_couplings(reference),
        ]
        rows.append(row)
    title, _, body = inspect.cleandoc(Coupling.__doc__ or "").partition("\n\n")
    parts = [
        "# Couplings",
        capital(typeset(title.partition(": ")[2])),
        table(["name", "what", "latents", "reference"], rows, left=4),
        typeset(body),
        toctree(list(arms.designs.COUPLINGS)),
    ]
    return "\n\n".join(parts) + "\n"


def write() -> None:
    """Write all pages into docs/, and remove those of names that are gone."""
    made = {**estimator_pages(), **coupling_pages()}
    for old in [*DOCS.glob("estimators/**/*.md"), *DOCS.glob("couplings/*.md")]:
        if old.relative_to(DOCS).as_posix() not in made:
            old.unlink()
    for path, text in made.items():
        (DOCS / path).parent.mkdir(parents=True, exist_ok=True)
        (DOCS / path).write_text(text)
