"""What is made of result files inside a page: `<!-- measured: name -->`, what was made, `<!-- end -->`.

python docs/generators    # writes it into the pages
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from generators import flips, gates, measured, protocols, speed, studies

DOCS = Path(__file__).parents[1]
DIRECT_TERM, LINEAR = "benchmarks/direct_term.py", "direct_term_linear"
TABLES: Mapping[str, Callable[[], str]] = {
    "measured: variance": measured.variance_table,
    "measured: bias": measured.bias_table,
    "measured: toy": measured.toy_table,
    "measured: flips on VAEs": flips.vae_table,
    "measured: flips on the bound": flips.bound_table,
    "measured: flips per step": flips.step_table,
    "measured: flips on small objectives": flips.small_table,
    "measured: agreement": measured.agreement_table,
    "measured: estimators on a CPU": speed.overhead_table,
    "measured: training on a CPU": speed.train_step_table,
    "measured: peers": speed.peers_table,
    "measured: small problem": speed.small_problem_table,
    "measured: training on a GPU": speed.gpu_step_table,
    "measured: precision": speed.precision_table,
    "measured: estimators on a GPU": speed.gpu_estimators_table,
    "measured: packs": speed.packs_table,
    "measured: gates after 300 steps": partial(gates.gates_table, 300),
    "measured: gates after 6,000 steps": partial(gates.gates_table, 6000),
    "measured: protocol of RODEO": protocols.or_not_run(protocols.rodeo_table),
    "measured: protocol of ReinMax": protocols.or_not_run(protocols.reinmax_table),
    "measured: exact gradient of ReinMax's 8x4": protocols.or_not_run(protocols.exact_table),
    "measured: commands of protocols": protocols.or_not_run(protocols.command),
    "measured: direct term, nonlinear": partial(studies.printed, f"{DIRECT_TERM} show"),
    "measured: direct term, linear": protocols.or_not_run(
        partial(studies.printed, f"{DIRECT_TERM} show --result {studies.RESULTS}/{LINEAR}.json"),
        LINEAR,
    ),
}
PLACE = re.compile(r"<!-- ((?:measured|picture): [^>]*?) -->\n(.*?)<!-- end -->", re.DOTALL)


def in_site(text: str, make: Mapping[str, Callable[[], str]]) -> str:
    """Return a page of the site: what is made for it alone, in place of what a code host shows."""
    return PLACE.sub(lambda found: make[found[1]]() if found[1] in make else found[2], text)


def in_repository(text: str) -> str:
    """Return a page with its tables made again."""

    def place(found: re.Match[str]) -> str:
        if found[1] not in TABLES:
            return found[0]
        return f"<!-- {found[1]} -->\n\n{TABLES[found[1]]().strip()}\n\n<!-- end -->"

    return PLACE.sub(place, text)


def write() -> None:
    """Write the tables into the pages."""
    for page in DOCS.rglob("*.md"):
        page.write_text(in_repository(page.read_text()))
