"""A combinatorial bandit: learn from clicks which 20 of 60 adverts to show.

Each round shows a page to each of several visitors, and reports how many of them bought. Adverts of one brand compete
with each other, so the best page does not consist of the best adverts. The reward is a black box: `arms.draw` draws the
pages, and `arms.attach` receives their rewards.

    python examples/bandit.py
"""

import argparse

import numpy as np
import torch

import arms

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--rounds", type=int, default=1500)
options = parser.parse_args()

ADVERTS, BRANDS, SLOTS, VISITORS = 60, 12, 20, 8
world = np.random.default_rng(0)
appeal, brand = world.gamma(2.0, 0.5, ADVERTS), world.integers(BRANDS, size=ADVERTS)
member = np.eye(BRANDS)[brand]  # [adverts, brands]


def worth(pages: np.ndarray) -> np.ndarray:
    """Return the mean reward of pages `[..., adverts]`: roots of the brands' appeals, minus a cost of extra adverts."""
    earned: np.ndarray = np.sqrt((pages * appeal) @ member).sum(-1) - np.maximum(
        pages.sum(-1) - SLOTS, 0
    )
    return earned


def greedy() -> np.ndarray:
    """Return a page from the known appeals, by repeatedly adding the advert that adds most."""
    page = np.zeros(ADVERTS)
    for _ in range(SLOTS):
        page[np.argmax([worth(np.maximum(page, one)) for one in np.eye(ADVERTS)])] = 1
    return page


def learn(estimator: str) -> tuple[list[float], np.ndarray]:
    """Return the mean worth of the pages in each tenth of the rounds, and the most likely page at the end."""
    noise, generator = np.random.default_rng(1), torch.Generator().manual_seed(1)
    logits = torch.full((ADVERTS,), -0.7, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.03)
    shown = []
    for _ in range(options.rounds):
        pages = arms.draw(logits, estimator, VISITORS, generator)
        earned = worth(pages.samples.numpy()) + noise.normal(size=VISITORS)
        optimizer.zero_grad()
        (-arms.attach(pages, earned.astype(np.float32))).backward()
        optimizer.step()
        shown.append(float(worth(pages.samples.numpy()).mean()))
    tenths = [float(np.mean(part)) for part in np.array_split(shown, 10)]
    return tenths, (logits > 0).numpy().astype(float)


print(f"known and greedy: {worth(greedy()):.2f};  the {SLOTS} most appealing: ", end="")
print(f"{worth((np.argsort(np.argsort(-appeal)) < SLOTS).astype(float)):.2f}")
print(
    f"{'worth of pages shown':22}"
    + "".join(f"{tenth:>4}0 %" for tenth in range(1, 11))
    + "   in the end"
)
for name in ("reinforce", "loorf", "arms"):
    tenths, page = learn(name)
    print(f"{name:22}" + "".join(f"{value:7.2f}" for value in tenths) + f"{worth(page):13.2f}")
