"""The subcommand audit: exit codes for verdicts, and one-line errors."""

from pathlib import Path

import pytest
from commands import Say

OWN = """
import torch, arms

def right(f, logits, n=4):
    p = torch.sigmoid(logits.detach())
    b = torch.bernoulli(p.expand(n, *p.shape))
    return ((f(b) - f(b).mean(0)).unsqueeze(-1) * (b - p)).sum(0) / (n - 1)

def short(f, logits):
    return right(f, logits) * 0.75

def one_row(f, logits):
    assert logits.ndim == 1
    return right(f, logits)

def relaxed(logits):
    return torch.nn.functional.gumbel_softmax(logits)

def best_of_two(rewards):
    return arms.weights(rewards, arms.BestOf(2))

def nothing(f, logits):
    return logits * 0

def endless(rewards):
    return rewards / 0

def leaves(rewards):
    raise SystemExit(0)

def pairs():
    return arms.Subset(torch.zeros(4), k=2)

number = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "audited_module.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "code", "verdict"),
    [
        (["right", "--draws", "20000"], 0, "right (gradient): no bias seen"),
        (["short", "--draws", "20000"], 1, "short (gradient): biased"),
        (
            ["nothing", "--draws", "2000"],
            1,
            "nothing (gradient): wrong mean, but the estimates hardly varied",
        ),
        (["one_row", "--no-batched", "--draws", "2000"], 0, "one_row (gradient): no bias seen"),
        (["short", "--latent", "audited_module:pairs", "--draws", "20000"], 1, "biased"),
        (["relaxed", "--kind", "sample", "--draws", "20000"], 1, "relaxed (sample): biased"),
        (["best_of_two", "--kind", "weights", "--draws", "20000"], 1, "(weights): biased"),
        (
            ["best_of_two", "--kind", "weights", "--best-of", "2", "--num-samples", "4"],
            0,
            "(weights): no bias seen",
        ),
    ],
)
@pytest.mark.usefixtures("folder")
def test_the_exit_code_is_the_verdict(say: Say, words: list[str], code: int, verdict: str) -> None:
    found, out, error = say("audit", f"audited_module:{words[0]}", *words[1:])
    assert (found, error) == (code, "")
    assert verdict in out.splitlines()[0]
    assert "by chance in one of 1,000,000 audits" in out
    assert "variance: relative to LOORF" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere:function"], "cannot find 'nowhere:function'"),
        (["audited_module:missing"], "has no attribute 'missing'"),
        (["right"], "expected a name in a module, such as my_module:make_model, got 'right'"),
        (["audited_module.py:right"], "did you mean audited_module:right?"),
        (["/some/where/mine:right"], "did you mean mine:right in the folder /some/where?"),
        (["./audited_module.py:right"], "did you mean audited_module:right?"),
        (["audited_module:number"], "function must be callable"),
        (["audited_module:relaxed"], "the function (function(objective, logits)"),
        (
            ["audited_module:endless", "--kind", "weights"],
            "returns must be finite, got NaN or infinity",
        ),
        (["audited_module:leaves", "--kind", "weights"], "raised SystemExit: 0"),
        (["audited_module:right", "--kind", "slope"], "invalid choice"),
        (["audited_module:right", "--draws", "10"], "--draws must be an integer >= 1000"),
        (["audited_module:right", "--latent", "dice"], 'must be "bits", "categories"'),
        (["audited_module:right", "--latent", "audited_module:number"], "or a latent"),
        (
            ["audited_module:relaxed", "--kind", "sample", "--best-of", "2"],
            "the target for kind='sample' must be arms.Expectation(), got BestOf(k=2)",
        ),
    ],
)
@pytest.mark.usefixtures("folder")
def test_what_cannot_be_audited_is_one_line(say: Say, words: list[str], message: str) -> None:
    code, _, error = say("audit", *words)
    assert code == 2
    assert message in error
    assert len(error.strip().splitlines()) == 1
