"""The site: a strict build, no external resources, and a page for every public name."""

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest
from docstring_parser import DocstringStyle, parse
from generators import colors, extension, filled, measured, pages, picture, protocols, speed
from sphinx.pycode import ModuleAnalyzer

import arms
import arms.bench
import arms.checks
import arms.designs
import arms.latents
import arms.sklearn
from arms.bench.report.paper import all_printed
from arms.estimators import registry

ROOT = Path(__file__).parents[2]
ON_CPU = "one CPU thread"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    options = ["--fail-on-warning", "--keep-going", "--quiet"]
    words = [sys.executable, "-m", "sphinx", *options, "--doctree-dir", str(folder / "doctrees")]
    done = subprocess.run(
        [*words, "docs", str(folder / "html")],
        cwd=ROOT, env=os.environ | {"PYTHONUTF8": "1"},
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "html"


def test_it_is_built_strictly_and_loads_nothing_from_elsewhere(site: Path) -> None:
    """All tests of the built site in one function, because otherwise every worker would build the site."""
    check_that_nothing_is_loaded(site)
    check_what_is_made_at_build_time(site)
    check_that_every_public_name_is_there(site)


def check_that_nothing_is_loaded(site: Path) -> None:
    every = list(site.rglob("*.html"))
    assert len(every) > 80
    loads = (
        r'<(?:script|img|iframe|source)[^>]*\ssrc="(?:https?:)?//|<link[^>]*\shref="(?:https?:)?//'
    )
    for page in every:
        html = page.read_text()
        assert re.findall(loads, html) == [], page
        check_formulas(html, page)
        text = re.sub(r"<pre>.*?</pre>", "", html, flags=re.DOTALL)
        assert "$$" not in text, page  # every formula was turned into MathML
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(\s*[\"']?(?:https?:)?//", style.read_text()), style
    assert (site / "_static" / "math.woff").stat().st_size > 50_000
    assert max(page.stat().st_size for page in every) < 1_000_000


PARTS = dict.fromkeys(("msup", "msub", "mfrac", "mover", "munder", "mroot"), 2) | {
    "msubsup": 3,
    "munderover": 3,
}


def check_formulas(html: str, page: Path) -> None:
    """Browsers misrender a formula element with too many children."""
    for formula in re.findall(r"<math.*?</math>", html, flags=re.DOTALL):
        for element in ElementTree.fromstring(formula).iter():
            wanted = PARTS.get(element.tag.rpartition("}")[2], len(element))
            assert len(element) == wanted, f"{page}: {formula}"


def check_what_is_made_at_build_time(site: Path) -> None:
    choosing = (site / "choosing.html").read_text()
    assert '<svg class="decision"' in choosing
    for name in ("midpoint", "arms", "loorf", "reinmax", "st"):
        assert re.search(rf'<a class="reference internal" href="[^"]*/{name}.html">', choosing)
    linked = re.findall(r'<a href="(estimators/[^"]+)">', picture.draw())
    assert len(linked) == 6
    assert all((site / page).is_file() for page in linked)
    reproduced = (site / "reproduced.html").read_text()
    assert 'class="difference above beyond"' in reproduced
    assert reproduced.count('class="legend"') == 1
    assert next(site.glob("_downloads/*/vae_variance.json")).is_file()
    assert arms.__version__ in (site / "changelog.html").read_text()


@pytest.mark.parametrize("name", [*arms.ESTIMATORS, *arms.BIASED_ESTIMATORS])
def test_every_estimator_has_a_whole_page(name: str) -> None:
    estimator = arms.as_estimator(name, 8)
    text = pages.Text.of(estimator)
    assert "$$" in text.formula
    assert text.why.startswith("Unbiased because" if estimator.unbiased else "Biased because")
    assert len(text.why) > 60
    assert text.reference
    page = pages.estimator_pages()[f"estimators/{pages.folder(name)}/{name}.md"]
    cost = page.split("## Cost")[1].split("## Measured")[0]
    needs = estimator.design.needs
    if needs.evaluations is not None:
        assert re.search(rf"\| 8 \| {needs.evaluations} \| {needs.derivatives} \|", cost)
    made = eval(pages.in_python(name), {"arms": arms})
    assert made.design.needs == needs
    # Networks of two estimators are never equal, and exact ignores the number of samples.
    unlike = ("num_samples", "relaxation", "control")
    assert strip(str(made), unlike) == strip(str(estimator), unlike)
    for listed in ("index", pages.group(name)):
        listing = pages.estimator_pages()[f"estimators/{listed}.md"]
        assert f"[`{name}`]({pages.folder(name)}/{name}.md)" in listing
    assert f"\n{pages.folder(name)}/{name}\n" in listing  # the navigation


def strip(text: str, names: tuple[str, ...]) -> str:
    """Return the text of an object without the values of these fields."""
    return re.sub(rf"\b({'|'.join(names)})=\w+(\(\))?", r"\1", text)


def test_every_alias_is_in_the_list_of_estimators() -> None:
    index = pages.estimator_pages()["estimators/index.md"].split("## Other names")[1]
    listed = dict(re.findall(r"^\| `([\w-]+)` \| \[`([\w-]+)`\]", index, flags=re.MULTILINE))
    assert listed == {**registry.ALIASES, **registry.PAPER_FORMS}


@pytest.mark.parametrize("name", list(arms.designs.COUPLINGS))
def test_every_coupling_has_a_page(name: str) -> None:
    page = pages.coupling_pages()[f"couplings/{name}.md"]
    assert "## Correlation" in page
    assert "## How" in page
    assert f"arms.designs.{arms.designs.COUPLINGS[name]()!r}" in page


def test_correlations_are_right() -> None:
    # By hand: two bits of p = 1/2 at their most negative are each other's complement; four hold two ones, -1/3.
    (half,) = [
        line
        for line in pages.correlations(arms.designs.Systematic()).splitlines()
        if line.startswith("| 0.5 ")
    ]
    assert half.startswith("| 0.5 | \u22121.000 (\u22121.000) | \u22120.333 (\u22120.333) |")


# ---- the API reference


def parameters_with_docs(thing: Any) -> set[str]:
    """Return the arguments that the docstrings of a class, of its fields, of its __init__ or of a function explain."""
    documented = [thing, getattr(thing, "__init__", None)]
    texts = [parse(inspect.getdoc(one) or "", DocstringStyle.GOOGLE) for one in documented]
    found = {parameter.arg_name for text in texts for parameter in text.params}
    if inspect.isclass(thing):
        for kind in thing.__mro__:  # a page shows inherited fields too
            if kind.__module__.startswith("arms."):
                documented_fields = ModuleAnalyzer.for_module(kind.__module__).find_attr_docs()
                found |= {field for owner, field in documented_fields if owner == kind.__name__}
    return found


PUBLIC = [
    (module, name)
    for module in (arms, arms.designs, arms.checks, arms.nn, arms.bench, arms.sklearn)
    for name in module.__all__
    if not inspect.ismodule(getattr(module, name))
]


@pytest.mark.parametrize(
    ("module", "name"), PUBLIC, ids=lambda part: getattr(part, "__name__", part)
)
def test_every_public_name_is_documented(module: ModuleType, name: str) -> None:
    thing = getattr(module, name)
    if not callable(thing):
        return
    assert thing.__doc__
    arguments = {
        each for each in inspect.signature(thing).parameters if each not in ("args", "kwargs")
    }
    assert arguments - parameters_with_docs(thing) == set()


def test_the_api_reference_has_every_public_name_once() -> None:
    texts = [path.read_text() for path in (ROOT / "docs" / "api").glob("*.md")]
    listed = re.findall(r"^\.\. \S+:: (\S+)$", "\n".join(texts), flags=re.MULTILINE)
    wanted = {f"{module.__name__}.{name}" for module, name in PUBLIC}
    wanted |= {f"arms.latents.{name}" for name in capabilities()}
    assert sorted(listed) == sorted(wanted - {"arms.checks.variance"})  # it is arms.variance


def capabilities() -> Iterator[str]:
    """Yield the names of the capabilities that a latent may have."""
    for name in arms.latents.__all__:
        found = getattr(arms.latents, name)
        is_class = inspect.isclass(found) and issubclass(found, arms.Latent)
        if is_class and found.__module__ == "arms.latents.base" and found is not arms.Latent:
            yield name


def check_that_every_public_name_is_there(site: Path) -> None:
    html = "".join(page.read_text() for page in (site / "api").glob("*.html"))
    there = set(re.findall(r'<dt class="sig sig-object py" id="([^"]+)">', html))
    wanted = {f"{module.__name__}.{name}" for module, name in PUBLIC} - {"arms.checks.variance"}
    assert wanted - there == set()


# ---- the parts


def test_a_docstring_becomes_restructured_text() -> None:
    lines = [
        "Sum |x|.",
        "",
        "$$ x^2,",
        "   |y| $$",
        "",
        "See `|a|` and docs/bound.md.",
        "",
        ">>> 1 | 2",
        "3",
    ]
    extension.restructured(None, "function", "f", None, None, lines)
    made = " ".join("\n".join(lines).split())
    assert made == ("Sum \\|x\\|. .. math:: x^2, |y| See `|a|` and :doc:`/bound`. >>> 1 | 2 3")
    words = ["Time: of one step."]
    extension.restructured(None, "attribute", "f", None, None, words)
    assert words == [": Time: of one step."]


def test_differences_are_colored_by_their_standard_errors() -> None:
    cells = [
        "+0.42 (+0.9)",
        "\u22120.25 (\u22121.8)",
        "<strong>+1.11 (+8.6)</strong>",
        "not one (x)",
    ]
    html = colors.colored(
        "<table>" + "".join(f"<td><p>{cell}</p></td>" for cell in cells) + "</table>"
    )
    assert html.startswith('<p class="legend">')
    assert '<td class="difference above within-1"><p>+0.42' in html
    assert '<td class="difference below within-2"><p>\u22120.25' in html
    assert '<td class="difference above beyond"><p><strong>+1.11' in html
    assert "<td><p>not one" in html
    with pytest.raises(ValueError, match="has none"):
        colors.colored("<table></table>")


def test_pages_made_from_code_are_committed() -> None:
    made = {**pages.estimator_pages(), **pages.coupling_pages()}
    folders = [ROOT / "docs" / "estimators", ROOT / "docs" / "couplings"]
    there = {
        path.relative_to(ROOT / "docs").as_posix(): path.read_text()
        for folder in folders
        for path in folder.rglob("*.md")
    }
    assert there == made, "python docs/generators"


def test_pages_of_the_repository_hold_the_tables_that_the_site_makes() -> None:
    texts = [path.read_text() for path in (ROOT / "docs").rglob("*.md")]
    places = [found[1] for text in texts for found in filled.PLACE.finditer(text)]
    assert sorted(places) == sorted([*filled.TABLES, "picture: choosing"])
    for text in texts:
        assert filled.in_repository(text) == text, "python docs/generators"
        assert len(re.findall(r"<!-- (?:measured|picture):", text)) == len(
            filled.PLACE.findall(text)
        )


def test_measured_tables_hold_the_numbers_of_their_files() -> None:
    # By hand, from the rows of vae_variance.json and toy_variance.json.
    rows = [
        row
        for row in measured.result("vae_variance")["rows"]
        if (row["budget"], row["steps"]) == (6, 20_000)
    ]
    (linear,) = [r for r in rows if (r["network"], r["estimator"]) == ("linear", "midpoint")]
    (line,) = [text for text in measured.variance_table().splitlines() if "[`midpoint`]" in text]
    assert f"| 5 | 5 | {linear['ratio']:.3f} |" in line
    (st,) = [r for r in rows if (r["network"], r["estimator"]) == ("linear", "st")]
    assert f"| {st['bias']:.3f} ± {st['bias_error']:.3f} |" in measured.bias_table()
    assert (
        f"| 4 | 1.05 | 0.84 | 1.00 | 0.31 | {measured.result('toy_variance')['ratios']['4']['arms']:.2f} |"
        in measured.toy_table()
    )
    assert (
        "`arm` has the lowest variance among the unbiased, derivative-free estimators in none of the 18"
        in measured.about("arm")
    )
    assert (
        "`arms` has the lowest variance among the unbiased, derivative-free estimators in 9 of the 18"
        in measured.about("arms")
    )
    assert (
        "`flips` has the lowest variance among the unbiased estimators in all 12 measured cases"
        in measured.about("flips")
    )
    assert (
        "`midpoint` has the lowest variance among the unbiased estimators in 8 of the 18 measured cases"
        in measured.about("midpoint")
    )


def test_times_of_bounds_are_those_of_the_form_that_was_measured() -> None:
    ratios = measured.result("estimator_overhead")["ratios"]
    assert "disarm-ms" not in ratios
    assert measured.overhead("disarm-ms") == ""
    unfolded = ratios["disarm-ms (unfolded)"] / ratios["loorf"]
    assert measured.overhead("disarm-ms (unfolded)") == f"{unfolded:.2f}"
    assert measured.overhead("vimco") == f"{ratios['vimco'] / ratios['loorf']:.2f}"


def cells(table: str) -> dict[str, list[str]]:
    """Return the rows of a table by their first cell."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {row[0]: row[1:] for row in rows}


def timed(name: str, **wanted: object) -> measured.Row:
    rows = measured.result(name)["rows"]
    (row,) = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    return dict(row)


def test_times_on_a_cpu_are_those_of_their_files() -> None:
    ratios = measured.result("estimator_overhead")["ratios"]
    alone = cells(speed.overhead_table())
    assert len(alone) == 2 + len(ratios) - 1  # two lines of heading; by hand is 1 by definition
    assert alone["`arms`"] == [f"{ratios['arms']:.2f}"]
    assert alone["`arms-ms-gaussian (unfolded)`"] == [
        f"{ratios['arms-ms-gaussian (unfolded)']:.2f}"
    ]
    floor = ratios["relax's floor"]
    assert alone["the evaluations of `relax` alone"] == [f"{floor:.2f}"]
    steps = cells(speed.train_step_table())
    assert steps[""] == [
        "1 thread, R = 1",
        "1 thread, R = 5",
        "2 threads, R = 1",
        "2 threads, R = 5",
    ]
    for name in ("arms-gaussian", "arms-ms-dirichlet (unfolded)"):
        assert steps[f"`{name}`"] == [
            f"{timed('train_step', n=10, threads=threads, contender=f'{name} R={width}')['time / by hand']:.2f}"
            for threads in (1, 2)
            for width in (1, 5)
        ]


def test_times_on_a_gpu_are_those_of_their_files() -> None:
    steps = cells(speed.gpu_step_table())
    assert steps["nonlinear, n = 4"] == ["8,533", "29,606", "65,417", "92,616", "", "255,072"]
    last = timed("gpu_step_n10", network="linear", R=150)
    assert steps["linear, n = 10"][-2:] == [
        f"{last['run-steps/s']:,}",
        f"{last['floor run-steps/s']:,}",
    ]
    ratios = cells(speed.gpu_estimators_table())
    # By hand: 227.70 / 218.27 and 96.48 / 89.16 microseconds.
    assert ratios["`disarm-ms (unfolded)`"] == ["1.04", "1.08"]
    assert "`disarm-ms`" not in ratios
    archives = cells(speed.packs_table())
    assert archives["`disarm-ms (unfolded)`, `arms-ms-dirichlet (unfolded)`"] == [
        "30",
        "235",
        "286",
        "405",
        "495",
    ]
    moved = timed("precision", network="nonlinear", precision="medium", K=1)
    assert moved["moved by"] < 0
    shown = f"\u2212{-moved['moved by']:.3f} ± {moved['standard error']:.3f}"
    assert cells(speed.precision_table())["`medium`"][2] == shown
    assert cells(speed.precision_table())["std of the seeds"] == ["0.11", "0.05", "0.20", "0.13"]


def test_rows_of_the_protocols_say_what_made_them() -> None:
    found = measured.result("published_protocols")
    rows = found["rows"] + found["times"]
    assert list(dict.fromkeys(row["command"] for row in rows)) == found["command"].splitlines()
    for row in rows:
        assert re.search(r"--output [\w-]+\.json", row["command"])
        assert ("--device cpu" in row["command"]) == (row["device"] == ON_CPU)
        assert ("+cpu" in row["torch"]) == (row["device"] == ON_CPU)
    assert {row["device"] for row in found["times"]} == {ON_CPU}


def test_losses_at_equal_time_are_read_from_the_curves() -> None:
    rows = measured.result("published_protocols")
    keys = {"categories": 8, "latents": 4, "num_samples": 1}
    same = [row for row in rows["rows"] if all(row[key] == keys[key] for key in keys)]
    (flips,) = [row for row in same if row["estimator"] == "flips"]
    times = [row for row in rows["times"] if all(row[key] == keys[key] for key in keys)]
    by_name = {row["estimator"]: row["us per step"] for row in times}
    step = 96_000 * by_name["reinmax"] / by_name["flips"]
    before, after = [look for look in flips["curve"] if abs(look["step"] - step) < 2000]
    share = (step - before["step"]) / (after["step"] - before["step"])
    looks = zip(before["train"], after["train"], strict=True)
    loss = -fmean((1 - share) * early + share * late for early, late in looks)
    found = cells(protocols.reinmax_table().split("\n\n")[0])["`flips`, n = 1"]
    assert found[-2].startswith(f"{loss:.2f} ± ")


def test_seeds_that_collapsed_are_counted() -> None:
    assert protocols.losses([-124.0, -214.0, -125.0]) == "124.50 ± 0.71; 1 of 3 collapsed"
    assert protocols.losses([-214.0, -214.5]) == "2 of 2 collapsed"
    assert protocols.losses([-124.0, -125.0]) == "124.50 ± 0.71"
    assert protocols.losses(None) == ""


def test_times_in_the_words_of_the_page_on_speed_are_those_of_the_files() -> None:
    page = (ROOT / "docs" / "speed.md").read_text()
    assert not re.search(
        r"^\|", filled.PLACE.sub("", page), flags=re.MULTILINE
    )  # every table is made of a file
    page = " ".join(page.split())
    files = ("gpu_step_n4", "gpu_step_n10", "gpu_estimators_r25", "gpu_estimators_r5")
    starts = [measured.result(name)["rows"][0]["start s"] for name in files]
    first = {
        row["estimator"]: row["start s"] for row in reversed(measured.result("gpu_packs")["rows"])
    }
    starts += first.values()  # a process for each ensemble
    assert f"after {min(starts):.0f} to {max(starts):.0f} seconds" in page
    # By hand: 5.7 thousand seconds are (445.29 + 693.99 + 708.29 + 1004.84) / 2 * 4 microseconds a million times.
    assert speed.hours(["relax"]) == pytest.approx(5704.82 / 3600)
    hours = {archive: speed.hours(archive) for archive in speed.packs()}
    relax = hours.pop(("relax",))
    assert (
        f"take {sum(hours.values()):.1f} hours in total on one H200. `relax` takes another {relax:.1f}"
        in page
    )
    trained = (
        len(all_printed()) // 2
    )  # a run has a number on the training set and one on the test set
    assert (
        f"{trained} configurations with five seeds, which is {trained * 5} trainings of a million steps"
        in page
    )
    precision = measured.result("precision")
    assert f"after {precision['steps']:,} steps" in page
    assert f"{precision['replicas']} seeds on the same noise" in page


def test_the_table_of_agreement_is_that_of_its_file() -> None:
    # By hand, for arms-dirichlet: the mean of -143.710, -143.421 and -143.685, and their standard deviation.
    assert "| \u2212143.61 ± 0.16 | " in measured.agreement_table()
    settings = measured.result("mnist_agreement")["settings"]
    assert settings == {"steps": 10_000, "num_samples": 4, "seeds": 3, "window": 1000}


def test_what_the_recipe_of_relax_says_was_measured() -> None:
    assert 2.75 < float(measured.overhead("relax")) < 3.5  # "some three times as long"
    bounds = (ROOT / "docs" / "measurements" / "time_to_bound.md").read_text()
    tables = re.split(r"\n(?=dynamic-mnist|omniglot)", bounds)[1:5]
    assert len(tables) == 4
    for table in tables:
        bound = {
            name: float(cells.split(" | ")[3].split(" ± ")[0])
            for name, cells in re.findall(
                r"^\| (midpoint|relax) \| (.*)$", table, flags=re.MULTILINE
            )[:2]
        }
        assert bound["midpoint"] > bound["relax"]
