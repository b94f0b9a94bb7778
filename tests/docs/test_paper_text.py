"""The paper about the software: two pages whose numbers, links and references agree with the repository."""

import re
from pathlib import Path

import yaml
from generators.measured import result

ROOT = Path(__file__).parents[2]
HEAD, TEXT = (ROOT / "paper" / "paper.md").read_text().split("---\n", 2)[1:]
ENTRIES = re.findall(r"^@\w+\{(\w+),$", (ROOT / "paper" / "paper.bib").read_text(), re.MULTILINE)


def test_it_has_the_parts_that_the_journal_wants() -> None:
    head = yaml.safe_load(HEAD)
    assert {"title", "tags", "authors", "affiliations", "date", "bibliography"} <= set(head)
    assert (ROOT / "paper" / head["bibliography"]).is_file()
    sections = re.findall(r"^# (.*)$", TEXT, flags=re.MULTILINE)
    assert {"Summary", "Statement of need", "State of the field", "References"} <= set(sections)
    assert 250 < len(TEXT.split()) < 1000


def test_every_reference_is_cited_and_there() -> None:
    assert sorted(ENTRIES) == sorted(set(ENTRIES))
    assert set(re.findall(r"@(\w+)", TEXT)) == set(ENTRIES)


def test_its_links_lead_to_files() -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", TEXT)
    assert len(links) > 8
    assert [link for link in links if not (ROOT / "paper" / link).is_file()] == []


def test_its_variances_are_those_of_the_file() -> None:
    rows = re.findall(r"^\| `([\w-]+)`.* \| (\d) \| (\S+) \| (\S+) \|$", TEXT, flags=re.MULTILINE)
    assert len(rows) == 4
    for name, evaluations, *ratios in rows:
        for network, ratio in zip(("linear", "nonlinear"), ratios, strict=True):
            (found,) = [
                row
                for row in result("vae_variance_seed1")["rows"]
                if (row["network"], row["steps"], row["budget"]) == (network, 20_000, 6)
                and row["estimator"] == name
            ]
            assert (f"{found['ratio']:.3f}", str(found["evaluations"])) == (ratio, evaluations)


def test_its_other_numbers_are_those_of_the_files() -> None:
    text, toy = " ".join(TEXT.split()), result("toy_variance")["ratios"]["10"]
    assert f"have {toy['arms']:.3f} of the variance of independent ones" in text
    assert f"those of the Dirichlet copula {toy['arms-dirichlet']:.2f}" in text
    total = re.findall(
        r"\| all \| (\d+) \| \*\*(\d+)\*\*", (ROOT / "docs/reproduced.md").read_text()
    )
    assert f"reran {total[0][1]} of the {total[0][0]} numbers" in text
