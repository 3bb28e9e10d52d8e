"""Running means, what is worth going on for, and the routers' scores."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from batchformer.lab.methods.ride import ExpertRouters, running_means, worth_going_on


@settings(max_examples=30, deadline=None)
@given(experts=st.integers(2, 5), seed=st.integers(0, 100))
def test_means_and_targets_by_loops(experts: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(experts, 7, 3, generator=draw)
    y = torch.randint(3, (7,), generator=draw)
    means, worth = running_means(logits), worth_going_on(running_means(logits), y)
    assert worth.shape == (experts - 1, 7)
    for n in range(7):
        answers = []
        for e in range(experts):
            mean = sum(logits[i, n] for i in range(e + 1)) / (e + 1)
            torch.testing.assert_close(means[e, n], mean)
            answers.append(int(means[e, n].argmax()))
        for e in range(experts - 1):
            later = any(answer == y[n] for answer in answers[e + 1 :])
            assert bool(worth[e, n]) == (answers[e] != y[n] and later)


def test_scores_by_hand() -> None:
    torch.manual_seed(0)
    routers = ExpertRouters(experts=3, in_features=6, top=2, width=4)
    features, logits = torch.randn(5, 6), torch.randn(5, 3)
    for expert in range(2):
        layer = routers.hidden[expert]
        own = F.relu(features / features.norm(dim=1, keepdim=True) @ layer.weight.T + layer.bias)
        both = torch.cat((own, logits.sort(dim=1, descending=True).values[:, :2]), 1)
        expected = both @ routers.output.weight[0] + routers.output.bias
        torch.testing.assert_close(routers(expert, features, logits), expected)
    assert len(routers.hidden) == 2
