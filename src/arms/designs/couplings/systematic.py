r"""Systematic and stratified samples, with the smallest correlation that n bits can have.

A binary tree halves the categories from level to level. Node v has probability P_v. Of the n
samples, either floor(n P_v) or floor(n P_v) + 1 fall into node v. Let s_v = 1 in the second case.
The probability that s_v = 1 is x_v = n P_v - floor(n P_v). From the root downwards, the samples of
each node v are divided between its children l and r, by drawing (s_l, s_r):

    x_l + x_r < 1:   s_v = 0 -> (0, 0)
                     s_v = 1 -> (1, 0) with probability x_l / (x_l + x_r), else (0, 1)
    x_l + x_r >= 1:  s_v = 1 -> (1, 1)
                     s_v = 0 -> (0, 1) with probability (1 - x_l) / (2 - x_l - x_r), else (1, 0)

At the leaves, this gives the number S_k of samples of each category k. The categories are then
assigned to the samples in random order. The leave-one-out estimate r is corrected to the gradient
g = (n-1)/n h, where h is the solution of h = r + Cov(S) (h / p) / n^2. One pass up the tree and one
pass down solve this equation (docs/math).
"""

import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn.functional import pad

from arms.arguments import as_count, at_least_float32, in_function_transform
from arms.designs.base import BitCoupling, CategoryCoupling, flip, flip_counts
from arms.latents.categories import one_hot
from arms.random import indicator, indicator_below, uniform

MOST_ROTATED = 4  # more rotated samples are too similar, which increases the variance of flips


class SystematicBits(BitCoupling):
    def sample_bits(self, logits: Tensor, n: int, generator: Generator | None = None) -> Tensor:
        n = as_count(n, 2, "n")
        phi = at_least_float32(logits.detach())
        noise = uniform(n, phi, generator)
        # Selection sampling: the next sample is a one with probability (ones left) / (samples
        # left). The noise is multiplied by (samples left), which avoids the division.
        samples_left = torch.arange(n, 1, -1, dtype=phi.dtype, device=phi.device)
        noise[1:].mul_(samples_left.view(-1, *[1] * phi.ndim))
        first, *others = rows = noise.unbind(0)
        _, whole, part = _expected_ones(phi, n)
        left, ones = whole + indicator_below(first, part), []
        if torch.compiler.is_compiling() or in_function_transform():
            for scaled in others:
                ones.append((scaled < left).to(phi.dtype))
                left = left - ones[-1]
            noise = torch.stack([*ones, left])
        else:  # the same in place: the first row of the noise is no longer needed
            for sample, scaled in itertools.pairwise(rows):
                left.sub_(torch.lt(scaled, left, out=sample))
            rows[-1].copy_(left)
        return flip(noise, logits)  # the last sample is a one if a one is left

    def debias(self, logits: Tensor, n: int) -> Tensor:
        n = as_count(n, 2, "n")
        phi = at_least_float32(logits.detach())
        expected, whole, part = _expected_ones(phi, n)
        # q / P10 = nq (n-1) / E[S(n-S)], where E[S(n-S)] = nq (n-1) - S(S-1 + 2 part) with
        # S = floor(nq). The subtraction is accurate: it removes nothing if nq < 1, and at most
        # about half.
        lost = torch.addcmul(whole, whole, expected + part, value=-1)
        kept = torch.addcdiv(torch.ones_like(lost), lost, expected.clamp(min=1), value=1 / (n - 1))
        return (torch.sigmoid(phi.abs()) / kept).to(logits.dtype)

    def count_distribution(self, logits: Tensor, n: int) -> Tensor:
        _, whole, part = _expected_ones(logits.double(), as_count(n, 1, "n"))
        counts = torch.arange(n + 1, device=logits.device).view(-1, *[1] * logits.ndim)
        found = torch.where(counts == whole, 1 - part, torch.where(counts == whole + 1, part, 0.0))
        return flip_counts(found, logits)


def _expected_ones(phi: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return three tensors: n q, the whole part of n q, and the fractional part of n q.

    Here q = min(p, 1-p), and p is the sigmoid of the logits `phi`.
    """
    expected = torch.sigmoid(-phi.abs()) * n
    whole = expected.floor()
    return expected, whole, expected - whole


@dataclass(frozen=True)
class Systematic(SystematicBits, CategoryCoupling):
    r"""Put S ones on a random subset of the n samples, where S is floor(nq) or floor(nq) + 1.

    $$ P_{10} = \frac{E[S(n-S)]}{n(n-1)}, \qquad E[S] = nq $$

    q is the probability of a one, and P_10 is the probability that a given pair of samples is
    (1, 0). No integer random variable with mean nq has a smaller variance than S. Therefore no n
    exchangeable Bernoulli(q) samples have a smaller correlation. With K categories, each category k
    has floor(n p_k) samples or one more. The same holds for each node of a tree over the
    categories. Time and memory are linear in K.
    Reference: this project (docs/math/systematic.md).

    >>> Systematic().correlation(torch.zeros(1), n=4)  # two ones and two zeros, always
    tensor([-0.3333])
    """

    def sample_categories(
        self, logits: Tensor, n: int, generator: Generator | None = None
    ) -> Tensor:
        probs = torch.softmax(at_least_float32(logits.detach()), -1)
        ends = _counts(probs, as_count(n, 2, "n"), generator).cumsum(-1)
        place = torch.arange(n, dtype=ends.dtype, device=ends.device)
        in_order = torch.searchsorted(ends, place + torch.zeros_like(ends[..., :1]), right=True)
        # Each latent needs its own order. A shared order would make the latents dependent.
        order = uniform(n, probs[..., 0], generator).argsort(0)
        return one_hot(in_order.movedim(-1, 0).gather(0, order), logits)

    def undo_categories(self, logits: Tensor, n: int, grad: Tensor) -> Tensor:
        probs = torch.softmax(at_least_float32(logits.detach()), -1)
        tree, r = _Tree.of(probs, n), _categories_first(grad)
        x = tree.levels[0]
        # The diagonal p - x (1 - x)/n^2, divided by p. If n p < 1, x/p is n.
        x_over_p = torch.where(tree.whole > 0, x / tree.probs, float(n))
        diagonal = 1 - x_over_p * (1 - x) / n**2
        scaled = x_over_p / diagonal
        nodes, alpha, beta = [], x * scaled, r * scaled
        for level in range(len(tree.many)):
            nodes.append(_Nodes.of(tree, level, alpha, beta))
            alpha, beta = nodes[-1].up()
        tau = torch.zeros_like(beta)
        for node in reversed(nodes):
            tau = node.down(tau)
        found = torch.addcmul(r, tau, x, value=-1) / diagonal * ((n - 1) / n)
        return found[: logits.shape[-1]].movedim(0, -1)

    def category_probabilities(self, probs: list[float], n: int) -> list[float]:
        width = 1 << (len(probs) - 1).bit_length()
        x, counts = _count_chances([n * p for p in probs] + [0.0] * (width - len(probs)))
        chances = counts[round(x)]
        found = []
        for one in itertools.product(range(len(probs)), repeat=n):
            count = tuple(one.count(k) for k in range(width))
            orders = math.factorial(n) // math.prod(map(math.factorial, count))
            found.append(chances.get(count, 0.0) / orders)
        return found


@dataclass(frozen=True)
class Cyclic(Systematic):
    r"""Systematic samples. Up to four samples of bits are rotated instead of shuffled.

    $$ b_i = 1[\mathrm{frac}(u + i/n) < p], \qquad u \text{ uniform} $$

    This takes one random number u per latent instead of n. The number of ones has the same
    distribution as with `Systematic`, and a pair of samples is (1, 0) as often as (0, 1). The same
    factor therefore corrects the leave-one-out estimate. Four samples are not exchangeable, because
    the correlation of two samples depends on their positions. More than four samples of bits, and
    all samples of categories, are drawn by `Systematic`.

    >>> Cyclic().sample_bits(torch.zeros(1), 4).sum(0)  # always
    tensor([2.])
    """

    def sample_bits(self, logits: Tensor, n: int, generator: Generator | None = None) -> Tensor:
        if n > MOST_ROTATED:
            return super().sample_bits(logits, n, generator)
        probs = torch.sigmoid(at_least_float32(logits.detach()))
        shifts = torch.arange(as_count(n, 2, "n"), dtype=probs.dtype, device=probs.device) / n
        at = uniform(1, probs, generator) + shifts.view(-1, *[1] * probs.ndim)
        return indicator_below(at.frac_(), probs).to(logits.dtype)

    def bit_probabilities(self, logits: Tensor, n: int) -> Tensor | None:
        if n > MOST_ROTATED:
            return super().bit_probabilities(logits, n)
        probs = torch.sigmoid(logits.detach().double())
        shifts = (torch.arange(n, dtype=torch.float64) / n).view(-1, *[1] * logits.ndim)
        ends = torch.cat([(-shifts + one).remainder(1) for one in (probs, 0 * probs)])
        cuts = torch.cat([ends, torch.ones_like(ends[:1])]).sort(0).values  # where a bit changes
        middle = (cuts[1:] + cuts[:-1]) / 2
        code = torch.zeros_like(middle, dtype=torch.long)
        for shift in shifts:
            code = 2 * code + ((middle + shift).frac() < probs)
        return torch.zeros(2**n, *logits.shape).double().scatter_add_(0, code, cuts.diff(dim=0))


def _categories_first(tensor: Tensor) -> Tensor:
    """Move the last axis to the front, and pad this axis with zeros to a length of a power of two.

    The axis contains the categories.
    """
    count = tensor.shape[-1]
    padded = pad(tensor, (0, (1 << (count - 1).bit_length()) - count))
    return padded.movedim(-1, 0).contiguous()


class _Tree(NamedTuple):
    """The binary tree of the module docstring, for drawing counts and for the correction.

    The first axis of each tensor contains the nodes of one level, because slices of this axis are
    fast.
    """

    n: int
    probs: Tensor  # [K', *batch, d]; impossible categories make K' a power of two
    whole: Tensor  # floor(n p)
    levels: list[Tensor]  # x_v of every level, from the categories to the root
    many: list[Tensor]  # for each level above the categories: 1 if x_l + x_r >= 1, otherwise 0

    @classmethod
    def of(cls, probs: Tensor, n: int) -> "_Tree":
        probs = _categories_first(probs)
        expected = n * probs
        whole = expected.floor()
        levels, many = [expected - whole], []
        while len(levels[-1]) > 1:
            both = levels[-1][0::2] + levels[-1][1::2]
            many.append(both.floor())
            levels.append(both - many[-1])
        return cls(n, probs, whole, levels, many)


class _Nodes(NamedTuple):
    """All pairs of sibling nodes on one level of the tree, in the solution of A y = b.

    Here A = diag p - Cov(S)/n^2, and b is the leave-one-out estimate. Each pair consists of the
    left child l and the right child r of a node v. A_v is the block of A for the categories below
    v, and b_v is the part of b for these categories. The vector w_v is x_v times the increase in
    the expected counts below v if s_v is 1 instead of 0. The recursion computes
    alpha_v = w_v' A_v^-1 w_v and beta_v = w_v' A_v^-1 b_v from alpha and beta of the two children,
    because A_v = blockdiag(A_l, A_r) + c (w_l w_r' + w_r w_l') and w_v = (f_l w_l, f_r w_r). All
    quantities are relative to x_v, so they remain bounded as p goes to zero (docs/math/debias.md).
    """

    alpha: Tensor
    beta: Tensor
    f: Tensor
    c: Tensor
    c_alpha: Tensor
    determinant: Tensor

    @classmethod
    def of(cls, tree: _Tree, level: int, alpha: Tensor, beta: Tensor) -> "_Nodes":
        x, many, parent = _by_pairs(tree.levels[level]), tree.many[level], tree.levels[level + 1]
        # If x_l + x_r >= 1, the children share the zeros: scale by 1 - x here, and by x afterwards.
        turned = (1 - x) / x.clamp(min=torch.finfo(x.dtype).tiny)
        turn = torch.lerp(torch.ones_like(x), turned, many.unsqueeze(1))
        back = torch.lerp(torch.ones_like(many), parent / (1 - parent), many)
        c = turn[:, 0] * turn[:, 1] / tree.n**2
        alpha, beta, f = _by_pairs(alpha), _by_pairs(beta), back.unsqueeze(1) * turn
        c_alpha = c.unsqueeze(1) * alpha
        return cls(alpha, beta, f, c, c_alpha, 1 - c_alpha[:, 0] * c_alpha[:, 1])

    def up(self) -> tuple[Tensor, Tensor]:
        """Return alpha and beta of the parents, which are the nodes of the next level."""
        own = self.f * self.alpha
        both = (self.f * own).sum(1)
        alpha = torch.addcmul(both, self.c * own[:, 0], own[:, 1], value=-2) / self.determinant
        left, right = self._along(self.beta)
        return alpha, self.f[:, 0] * left + self.f[:, 1] * right

    def down(self, tau: Tensor) -> Tensor:
        """Return the numbers tau of the child nodes, given the numbers tau of their parents.

        For each node v, tau_v w_v is subtracted from b_v.
        """
        own = tau.unsqueeze(1) * self.f
        left, right = self._along(torch.addcmul(self.beta, own, self.alpha, value=-1))
        other = torch.stack([self.c * right, self.c * left], 1)
        return (own + other).flatten(0, 1)

    def _along(self, beta: Tensor) -> tuple[Tensor, Tensor]:
        """Solve two linear equations for the inner products w_l . y_l and w_r . y_r.

        `beta` contains the right-hand sides, for l and for r.
        """
        (of_left, of_right), (left, right) = self.c_alpha.unbind(1), beta.unbind(1)
        along_left = torch.addcmul(left, of_left, right, value=-1) / self.determinant
        return along_left, torch.addcmul(right, of_right, left, value=-1) / self.determinant


def _by_pairs(of_children: Tensor) -> Tensor:
    return of_children.reshape(len(of_children) // 2, 2, *of_children.shape[1:])


def _counts(probs: Tensor, n: int, generator: Generator | None) -> Tensor:
    """Draw how many of the n samples fall into each category, `[*batch, d, K]`."""
    tree = _Tree.of(probs, n)
    noise = uniform(1, tree.levels[0], generator)[0]
    tiny = torch.finfo(probs.dtype).tiny
    s = indicator(tree.levels[-1] - 0.5)  # x of the root is 0 or 1, up to rounding
    for x, many in zip(reversed(tree.levels[:-1]), reversed(tree.many), strict=True):
        left, right = x[0::2], x[1::2]
        both = left + right
        if_few = s * (left / both.clamp(min=tiny))
        if_many = torch.lerp((1 - right) / (2 - both), torch.ones_like(s), s)
        noise, now = noise[len(s) :], noise[: len(s)]
        s_left = indicator(torch.lerp(if_few, if_many, many) - now)
        s = torch.stack([s_left, s + many - s_left], 1).flatten(0, 1)
    return (tree.whole + s)[: probs.shape[-1]].movedim(0, -1).contiguous()


def _count_chances(expected: list[float]) -> tuple[float, list[dict[tuple[int, ...], float]]]:
    """Return x_v of a node v, and the probabilities of the counts of the categories below v.

    The module docstring defines x_v and s_v. `expected` are the expected counts n p of these
    categories. The second result is two dictionaries, one for s_v = 0 and one for s_v = 1. Each
    maps a tuple of counts to its probability, given s_v.
    """
    if len(expected) == 1:
        whole = int(expected[0])
        return expected[0] - whole, [{(whole,): 1.0}, {(whole + 1,): 1.0}]
    half = len(expected) // 2
    (left, of_left), (right, of_right) = map(_count_chances, (expected[:half], expected[half:]))
    both = left + right
    if both < 1:
        either = [(left / both, 1, 0), (right / both, 0, 1)] if both else []
        splits = [[(1.0, 0, 0)], either]
    else:
        rest = 2 - both
        splits = [[((1 - left) / rest, 0, 1), ((1 - right) / rest, 1, 0)], [(1.0, 1, 1)]]
    found: list[dict[tuple[int, ...], float]] = [{}, {}]
    for chances, ways in zip(found, splits, strict=True):
        for chance, s, t in ways:
            for (a, p), (b, q) in itertools.product(of_left[s].items(), of_right[t].items()):
                chances[a + b] = chances.get(a + b, 0.0) + chance * p * q
    return both - (both >= 1), found


@dataclass(frozen=True)
class Stratified(SystematicBits, CategoryCoupling):
    r"""Draw one uniform number from each of n strata, and take the category at each number.

    The numbers are u_i = (pi(i) + U_i)/n, with a random permutation pi for every latent and uniform
    numbers U_i. Let c_s be the distribution of the sample from stratum s, and let w_s(k) =
    c_s(k) / (n p_k) be the share of category k that lies in stratum s. The rows of W are the w_s.
    The leave-one-out estimate r from these samples is corrected to

    $$ g_k = r_k - n\,p_k \sum_s w_s(k)\,v_s, \qquad
       \big((n-1) I + n\,W \mathrm{diag}(p)\,W'\big)\,v = W r. $$

    There are n equations for any number of categories. For bits, this is the systematic coupling.
    With more than two categories, the systematic coupling is better in most cases.
    Reference: this project (docs/math/debias.md).

    >>> samples = Stratified().sample_categories(torch.zeros(1, 4), 8)
    >>> samples.sum(0)  # two of each, always
    tensor([[2., 2., 2., 2.]])
    """

    def sample_categories(
        self, logits: Tensor, n: int, generator: Generator | None = None
    ) -> Tensor:
        n = as_count(n, 2, "n")
        ends = _ends(logits)
        stratum = uniform(n, ends[..., 0], generator).argsort(0)
        u = (stratum + uniform(n, ends[..., 0], generator)) / n
        # Rounding may leave the last end below 1, so the last possible category is extended.
        ends = torch.where(ends >= ends[..., -1:], torch.inf, ends)
        place = torch.searchsorted(ends, u.movedim(0, -1).contiguous(), right=True)
        return one_hot(place.movedim(-1, 0), logits)

    def undo_categories(self, logits: Tensor, n: int, grad: Tensor) -> Tensor:
        ends, probs = _ends(logits), torch.softmax(at_least_float32(logits.detach()), -1)
        shares, n_probs = _shares(ends, as_count(n, 2, "n")), n * probs.to(ends.dtype)
        matrix = (shares * n_probs.unsqueeze(-2)) @ shares.mT
        matrix = matrix + (n - 1) * torch.eye(n, dtype=ends.dtype, device=ends.device)
        right = shares @ grad.to(ends.dtype).unsqueeze(-1)
        taken: Tensor = shares.mT @ torch.linalg.solve(matrix, right)
        return (grad - n_probs * taken.squeeze(-1)).to(grad.dtype)

    def category_probabilities(self, probs: list[float], n: int) -> list[float]:
        ends = [0.0, *itertools.accumulate(probs[:-1]), 1.0]

        def in_stratum(s: int, k: int) -> float:
            return max(0.0, n * (min(ends[k + 1], (s + 1) / n) - max(ends[k], s / n)))

        found, orders = [], list(itertools.permutations(range(n)))
        for one in itertools.product(range(len(probs)), repeat=n):
            chances = [math.prod(map(in_stratum, order, one)) for order in orders]
            found.append(sum(chances) / len(orders))
        return found


def _ends(logits: Tensor) -> Tensor:
    """Return the cumulative probabilities of the categories, `[*batch, d, K]`.

    The result is in float64, because small probabilities would vanish in float32.
    """
    return torch.softmax(logits.detach().double(), -1).cumsum(-1)


def _shares(ends: Tensor, n: int) -> Tensor:
    """Return the share of each category that lies in each of n strata, `[*batch, d, n, K]`."""
    right = ends.unsqueeze(-2)
    left = pad(right, (1, -1))
    edges = torch.arange(n + 1, dtype=ends.dtype, device=ends.device).unsqueeze(-1) / n
    # `within` contains, for each edge, where each category's interval ends if it is cut off at this
    # edge. Differences between neighboring edges are the lengths of the overlaps.
    within = torch.minimum(torch.maximum(edges, left), right)
    overlaps = within[..., 1:, :] - within[..., :-1, :]
    return overlaps / overlaps.sum(-2, keepdim=True).clamp(min=torch.finfo(ends.dtype).tiny)
