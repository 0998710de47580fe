"""How near an answer is to its reference, two distributions to each other, and a mean to its interval."""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

_ARTICLES = re.compile(r"\b(a|an|the)\b")


def words(text: str) -> list[str]:
    """SQuAD's normalisation: lower case, without punctuation and articles."""
    text = "".join(" " if c in string.punctuation else c for c in text.lower())
    return _ARTICLES.sub(" ", text).split()


def exact(answer: str, reference: str) -> float:
    """1 where the two are the same words."""
    return float(words(answer) == words(reference))


def token_f1(answer: str, reference: str) -> float:
    """F1 of the words, each counted as often as it is there."""
    a, b = words(answer), words(reference)
    if not a or not b:
        return float(a == b)
    both = sum((Counter(a) & Counter(b)).values())
    return 2 * both / (len(a) + len(b))


def kl_from_tops(p: Mapping[int, float], q: Mapping[int, float]) -> float:
    """A lower bound of KL(p || q), nats, from the log-probs of each one's most likely tokens.

    Tokens that both know are compared one by one, all others as one event; to join events can only lessen
    the divergence, so the bound is never too high, and near where the tops hold most of the mass.
    """
    common = p.keys() & q.keys()
    total = sum(math.exp(p[t]) * (p[t] - q[t]) for t in common)
    rest_p = max(1 - sum(math.exp(p[t]) for t in common), 0.0)
    rest_q = max(1 - sum(math.exp(q[t]) for t in common), 1e-12)
    if rest_p > 1e-12:
        total += rest_p * math.log(rest_p / rest_q)
    return max(total, 0.0)


def interval(
    values: Sequence[Sequence[float]], *, draws: int = 2000, seed: int = 0
) -> tuple[float, float, float]:
    """Mean and 95% interval of `values[question][seed]`: questions and seeds are drawn anew, both.

    The percentile bootstrap with two ways of drawing; with one seed only questions are drawn.
    """
    table = np.asarray(values, dtype=float)
    rng = np.random.default_rng(seed)
    n, k = table.shape
    # How often each question, and each seed, is drawn.
    rows = rng.multinomial(n, np.full(n, 1 / n), size=draws)
    columns = rng.multinomial(k, np.full(k, 1 / k), size=draws)
    means = ((rows @ table) * columns).sum(-1) / (n * k)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(table.mean()), float(low), float(high)
