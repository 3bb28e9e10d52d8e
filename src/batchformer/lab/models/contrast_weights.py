"""One network's weights out of a checkpoint that holds more: MoCo's two encoders, their heads."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

#: What the names of a method's network begin with, in the order they are looked for: the query
#: encoder of MoCo-v2, that of MoCo-v3, and what other scripts and this package call a network.
NETWORKS = ("encoder_q.", "base_encoder.", "network.", "backbone.")
#: Networks among these whose classifier has been replaced by a projection.
WITH_PROJECTION = ("encoder_q.", "base_encoder.")
#: Where projections stand in those, by the family of network: ResNet, ViT.
PROJECTIONS = ("fc.", "head.")


def one_network(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], str]:
    """The weights of the one network that is wanted, and what of the others is said.

    Weights of which no name begins as a known network does are given back as they are.

    Args:
        weights: by names, without what wraps the whole.

    >>> import torch
    >>> one = torch.zeros(1)
    >>> both = {"encoder_q.conv1.weight": one, "encoder_k.conv1.weight": one, "queue": one}
    >>> found, words = one_network({**both, "encoder_q.fc.0.weight": one})
    >>> list(found), words
    (['conv1.weight'], 'of encoder_q alone, without encoder_k, encoder_q.fc, queue')
    """
    prefix = next((p for p in NETWORKS if any(name.startswith(p) for name in weights)), None)
    if prefix is None:
        return dict(weights), ""
    left, kept = set(), {}
    for name, value in weights.items():
        own = name.removeprefix(prefix)
        if own == name:
            left.add(name.partition(".")[0])
        elif prefix in WITH_PROJECTION and own.startswith(PROJECTIONS):
            left.add(prefix + own.partition(".")[0])
        else:
            kept[own] = value
    words = f"of {prefix.removesuffix('.')} alone"
    return kept, f"{words}, without {', '.join(sorted(left))}" if left else words
