"""The page and its files: broken runs are listed, untrusted text is escaped, and nothing is fetched."""

import csv
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from numpy.typing import NDArray
from run_directories import make_run

from arms.bench.cli import sweep as verbs
from arms.bench.config import TrainConfig
from arms.bench.report import Collection, build_report
from arms.bench.report.figures import Curve, Panel, draw, style_of
from arms.bench.report.groups import Group, Setting
from arms.bench.report.page import Section, render
from arms.bench.report.tables import Cell, Table, latex, markdown, write_table

EVIL = "<script>alert(1)</script>"
PNG = b"\x89PNG\r\n\x1a\nrest"


class Tags(HTMLParser):
    """Collects every element of a page, and the visible text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.shown: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.shown.append(data)


# ---- broken runs


def test_broken_runs_are_listed_and_skipped(tmp_path: Path) -> None:
    make_run(tmp_path / "fine", TrainConfig(replicas=2))
    make_run(
        tmp_path / "unfinished", TrainConfig(seed=1, replicas=2, steps=50), records=3, finish=False
    )
    make_run(tmp_path / "half-line", TrainConfig(seed=2, replicas=2))
    with (tmp_path / "half-line" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "train_elbo": [1.0')
    make_run(tmp_path / "bad-result", TrainConfig(seed=3, replicas=2))
    (tmp_path / "bad-result" / "result.json").write_text("{")
    make_run(tmp_path / "wrong-count", TrainConfig(seed=4, replicas=2), {"train": {1: [1.0]}})
    (tmp_path / "bad-config").mkdir()
    (tmp_path / "bad-config" / "config.json").write_text('{"estimator": "none-such"}')
    (tmp_path / "no-config").mkdir()
    (tmp_path / "no-config" / "result.json").write_text("{}")
    (tmp_path / "odd-config").mkdir()
    (tmp_path / "odd-config" / "config.json").write_text('{"dataset": ["digits"]}')
    found = build_report([tmp_path, tmp_path / "missing"], tmp_path / "out" / "report.html")
    said = {Path(problem.where).name: problem.what for problem in found.problems}
    assert said.keys() == {
        *(
            "unfinished",
            "half-line",
            "bad-result",
            "wrong-count",
            "bad-config",
            "no-config",
            "odd-config",
            "missing",
        )
    }
    assert "3 of 50 steps" in said["unfinished"]
    assert "1 of 6 lines" in said["half-line"]
    assert "broken" in said["bad-result"]
    assert "2 numbers" in said["wrong-count"]
    assert "there is no estimator named 'none-such'" in said["bad-config"]
    assert "dataset must be a string" in said["odd-config"]
    assert "no such directory" in said["missing"]
    assert {run.path.name for run in found.runs} == {"fine", "half-line", "unfinished"}
    page = (tmp_path / "out" / "report.html").read_text()
    assert all(name in page for name in said)


def test_nothing_at_all_still_makes_a_page(tmp_path: Path) -> None:
    found = build_report([tmp_path / "missing"], tmp_path / "report.html")
    assert not found.runs
    assert "no such directory" in (tmp_path / "report.html").read_text()


def test_a_page_must_be_a_page(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must be a file.*report\.html"):
        build_report([], tmp_path)
    with pytest.raises(ValueError, match=r"must be an \.html file"):
        build_report([], tmp_path / "report.pdf")


# ---- the page


def evil_report(folder: Path) -> str:
    config = TrainConfig(dataset=EVIL, replicas=2)
    make_run(folder / "runs" / EVIL.replace("/", "_"), config, note=f"note {EVIL}")
    make_run(folder / "runs" / "<img src=x>", TrainConfig(seed=1, dataset=EVIL), finish=False)
    (folder / "runs" / "<b>broken").mkdir()
    (folder / "runs" / "<b>broken" / "config.json").write_text(json.dumps({"estimator": EVIL}))
    build_report([folder / "runs", folder / EVIL], folder / "report.html")
    return (folder / "report.html").read_text()


def test_text_from_outside_is_escaped_everywhere(tmp_path: Path) -> None:
    page = evil_report(tmp_path)
    assert EVIL not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    parsed = Tags(page)
    assert [tag for tag, _ in parsed.tags].count("script") == 1
    assert not any(tag == "img" for tag, _ in parsed.tags)
    for file in (tmp_path / "report_files").iterdir():
        assert re.fullmatch(r"[a-z0-9.-]+", file.name)
        assert EVIL not in file.read_text(errors="replace") or file.suffix in (".csv", ".tex")
    for file in (tmp_path / "report_files").glob("*.tex"):
        body = [line for line in file.read_text().splitlines() if not line.startswith("%")]
        assert EVIL not in "\n".join(body)


def test_names_of_curves_are_escaped_in_figures_too() -> None:
    name = f'arms ({EVIL}) $x$ "quoted" id="area" style="x"'
    style, points = style_of("arms"), [-2.0, -1.0]
    panel = Panel([Curve(name, style, [1, 2], points)], "", "step", xlim=(0, 2))
    group = Group(Setting("digits", "linear", 4, 10, "all"), [])
    drawing = draw([[panel]], ["svg"])["svg"]
    section = Section(group, [], {"train_elbo": panel}, [drawing], [])
    page = render(Collection([], []), [section], None, [])
    assert EVIL not in page
    parsed = Tags(page)
    assert name in "".join(parsed.shown)
    (plot,) = [attributes for _, attributes in parsed.tags if attributes.get("class") == "plot"]
    (curve,) = json.loads(plot["data-numbers"] or "")["curves"]
    assert (curve["name"], curve["x"], curve["y"]) == (name, [1, 2], [-2.0, -1.0])


def test_a_figure_on_the_page_is_the_one_in_the_file(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "a", TrainConfig(replicas=2), records=50)
    build_report([tmp_path / "runs"], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert len(page) < 100_000
    inline = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", page)]
    files = sorted((tmp_path / "page_files").glob("*.svg"), reverse=True)
    assert [file.stem.rpartition("all-")[2] for file in files] == [
        "train-elbo",
        "gradient-variance",
    ]
    for small, file in zip(inline, files, strict=True):
        whole = ElementTree.fromstring(file.read_text())
        texts = [
            [text.text for text in svg.iter() if text.tag.endswith("text")]
            for svg in (small, whole)
        ]
        assert texts[0] == texts[1]
        assert "arms" in texts[0]
        drawn = [
            points(svg, f".//*[@{key}='curve-0']//")
            for svg, key in ((small, "class"), (whole, "id"))
        ]
        assert len(drawn[0]) == len(drawn[1]) > 150
        assert np.abs(drawn[0] - drawn[1]).max() < 0.06


def points(svg: ElementTree.Element, where: str) -> NDArray[np.float64]:
    """Return all points of the longer paths in an element, in relative or absolute coordinates."""
    found = []
    for path in svg.findall(f"{where}{{*}}path"):
        numbers = np.array(re.findall(r"-?\d+(?:\.\d+)?", path.get("d") or ""), float)
        if len(numbers) > 60:
            pairs = numbers.reshape(-1, 2)
            found.append(pairs.cumsum(0) if "l" in (path.get("d") or "") else pairs)
    return np.concatenate(found)


def test_page_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "a", TrainConfig(replicas=2), note="a note on the data")
    (run.path / "samples.png").write_bytes(PNG)
    make_run(tmp_path / "runs" / "b", TrainConfig(estimator="loorf"))
    (tmp_path / "runs" / "b" / "samples.png").write_bytes(b"no picture")
    found = build_report([tmp_path / "runs"], tmp_path / "report.html")
    parsed = Tags((tmp_path / "report.html").read_text())
    for tag, attributes in parsed.tags:
        assert tag != "script" or "src" not in attributes
        for name in ("src", "href"):
            assert not re.match(r"(https?:)?//", attributes.get(name) or "")
    pictures = [attributes["src"] for tag, attributes in parsed.tags if tag == "img"]
    assert len(pictures) == 1
    assert str(pictures[0]).startswith("data:image/png;base64,")
    assert [problem.what for problem in found.problems] == [
        "samples.png is omitted, because it is larger than 4 MiB or not a PNG file"
    ]
    text = " ".join(parsed.shown)
    assert "2 runs · 3 replicas · data: digits" in text
    assert "a note on the data" in text


def test_files_beside_the_page_are_linked_and_there(tmp_path: Path) -> None:
    make_run(
        tmp_path / "runs" / "a",
        TrainConfig(dataset="dynamic-mnist", replicas=2, estimator="arms-dirichlet"),
    )
    make_run(
        tmp_path / "runs" / "b", TrainConfig(dataset="dynamic-mnist", replicas=2, estimator="loorf")
    )
    build_report([tmp_path / "runs"], tmp_path / "page.html")
    links = [a["href"] for tag, a in Tags((tmp_path / "page.html").read_text()).tags if tag == "a"]
    assert {Path(str(link)).suffix for link in links} == {".md", ".tex", ".csv", ".pdf", ".svg"}
    assert all((tmp_path / str(link)).stat().st_size > 0 for link in links)
    build_report([tmp_path / "runs"], tmp_path / "bare.html", files=False)
    assert not (tmp_path / "bare_files").exists()


def test_verb_tells_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "runs" / "a", TrainConfig(replicas=2))
    verbs.report(
        (tmp_path / "runs", tmp_path / "[bold]none"), output=tmp_path / "page.html", files=False
    )
    said = " ".join(capsys.readouterr().out.split())
    assert "1 run · 2 replicas · data: digits" in said
    assert "[bold]none" in said
    assert (tmp_path / "page.html").exists()
    with pytest.raises(ValueError, match="arms report needs a run directory"):
        verbs.report(())


def test_budgets_are_drawn_together_only_where_nothing_else_differs(tmp_path: Path) -> None:
    for n, steps in ((4, 10), (6, 10), (6, 20)):
        make_run(tmp_path / "runs" / f"{n}-{steps}", TrainConfig(num_samples=n, steps=steps))
    build_report([tmp_path / "runs"], tmp_path / "page.html")
    names = {
        file.name for file in (tmp_path / "page_files").iterdir() if file.name.startswith("budgets")
    }
    assert names == {"budgets-1-digits-linear-10-all.pdf", "budgets-1-digits-linear-10-all.svg"}
    links = [
        str(a["href"]) for tag, a in Tags((tmp_path / "page.html").read_text()).tags if tag == "a"
    ]
    assert {f"page_files/{name}" for name in names} <= set(links)
    assert [link for link in links if link.startswith("#")] == ["#c1", "#c2", "#c3"]


# ---- tables as files


def test_written_tables(tmp_path: Path) -> None:
    cells = [Cell(-1.25, 0.5, 3, best=True), None]
    table = Table("title | 50 %", "name", ["train K=1", "a_b"], [("arms|s", cells)])
    lines = markdown(table).splitlines()
    assert lines[4] == r"| arms\|s | **" + "\u2212" + "1.25 ± 0.50** |  |"
    tex = latex(table)
    assert r"arms|s & \textbf{$-$1.25 $\pm$ 0.50} &  \\" in tex
    assert r"a\_b" in tex
    assert r"\toprule" in tex
    paths = write_table(table, tmp_path)
    assert [path.read_text() for path in paths[:2]] == [markdown(table), tex]
    (row,) = list(csv.DictReader(paths[2].read_text().splitlines()))
    assert float(row["train K=1 mean"]) == -1.25
    assert (row["train K=1 std"], row["train K=1 replicas"], row["train K=1 best"]) == (
        "0.5",
        "3",
        "1",
    )
    assert row["a_b mean"] == ""
