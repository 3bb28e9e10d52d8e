"""InfoNCE as in MoCo-v2 and MoCo-v3: which of many keys belongs to a query?"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from batchformer.lab.losses import require_shapes, widened

PairList = Literal["all", "plain", "first_release", "readme"]


class StreamPair(NamedTuple):
    """Which stream's queries are contrasted with which stream's keys.

    ``"own_mixed"`` stands for the mixed queries of the same view, without gradients.
    """

    query: Literal["plain", "mixed"]
    key: Literal["plain", "mixed", "own_mixed"]


_AA, _AB = StreamPair("plain", "plain"), StreamPair("plain", "mixed")
_BA, _BB = StreamPair("mixed", "plain"), StreamPair("mixed", "mixed")
_OWN = StreamPair("plain", "own_mixed")
_LISTS: dict[PairList, tuple[tuple[StreamPair, ...], tuple[StreamPair, ...]]] = {
    "all": ((_AA, _AB, _BA, _BB),) * 2,
    "plain": ((_AA,),) * 2,
    "first_release": ((_AA, _AB, _BA, _BA), (_AA, _AB, _AA, _AB)),
    "readme": ((_AA, _AB, _BA, _BA, _OWN), (_AA, _AB, _AA, _AB, _OWN)),
}


def stream_pairs(kind: PairList, view: int) -> tuple[StreamPair, ...]:
    """The pairs of streams that are contrasted for the queries of one view.

    ``"all"``
        Every stream of the queries with every stream of the keys.
    ``"plain"``
        Plain queries with plain keys alone.
    ``"first_release"``
        The list of the first release of MoCo-v3 with BatchFormer, which repeats some pairs and
        lacks others; its author called that a typing error.
    ``"readme"``
        That list, and plain queries with the mixed queries of the same view: the code to which the
        README of the release points.

    Args:
        view: of the queries, 1 or 2.

    >>> [query + " " + key for query, key in stream_pairs("first_release", 2)]
    ['plain plain', 'plain mixed', 'plain plain', 'plain mixed']
    """
    return _LISTS[kind][view - 1]


def pair_divisor(kind: PairList, loss_scale: Literal["mean", "sum"]) -> int:
    """The divisor of the sum of a view's terms.

    ``"sum"`` adds the listed terms as the release of MoCo-v3 does. ``"mean"`` divides by the number
    of pairs of a view, so that the loss has the baseline's scale, ``ctr(q1, k2) + ctr(q2, k1)``.
    With ``"readme"`` both divide by 5, the pairs of a view, as that part of the release does.

    >>> pair_divisor("all", "mean"), pair_divisor("all", "sum"), pair_divisor("readme", "sum")
    (4, 1, 5)
    """
    return len(stream_pairs(kind, 1)) if loss_scale == "mean" or kind == "readme" else 1


def queue_contrast(
    queries: Tensor,
    keys: Tensor,
    queue: Tensor,
    temperature: float,
    valid: Tensor,
) -> Tensor:
    """MoCo-v2's loss: each query's own key against the queue; a scalar, the mean over queries.

    Cross-entropy of ``[q . k, q . queue] / temperature`` with the first as target. MoCo's queue
    starts with random keys, ours starts empty: keys that are not valid are left out of the loss,
    and without valid keys the loss is 0. It is computed in float32 or wider, also under autocast;
    shapes are static and nothing is read back from the device.

    Args:
        queries: (N, D), of length one: the caller normalises, as the queue holds normalised keys.
        keys: (N, D), of length one, of the same samples; compute them without gradients.
        queue: (Q, D), of length one, keys of earlier samples.
        valid: (Q,) booleans, False where the queue holds no key yet.

    >>> q, queue = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    >>> queue_contrast(q, q, queue, 1.0, torch.tensor([True]))  # log(e + 1) - 1
    tensor(0.3133)
    """
    both = {"queries": (queries, "N D"), "keys": (keys, "N D")}
    require_shapes("queue_contrast", **both, queue=(queue, "Q D"), valid=(valid, "Q"))
    q = widened(queries)
    with torch.autocast(q.device.type, enabled=False):
        others = (q @ queue.to(q.dtype).T).masked_fill(~valid, -math.inf)
    own = (q * keys.to(q.dtype)).sum(1, keepdim=True)
    scores = torch.cat((own, others), 1) / temperature
    return F.cross_entropy(scores, torch.zeros(len(q), dtype=torch.int64, device=q.device))


def batch_contrast(queries: Tensor, keys: Tensor, temperature: float, first: int = 0) -> Tensor:
    """MoCo-v3's loss: each query's own key against all other keys; a scalar, the mean over queries.

    ``2 T`` times the cross-entropy of ``norm(q) . norm(k)^T / T``; the key of query i is
    ``first + i``. It is computed in float32 or wider, also under autocast.

    Args:
        queries: (N, D), of any length: they are normalised here.
        keys: (M, D), likewise; compute them without gradients.
        first: index of the first query's key among the keys of all ranks.

    >>> q = torch.tensor([[3.0, 0.0]])
    >>> batch_contrast(q, torch.tensor([[0.0, 1.0], [2.0, 0.0]]), temperature=1.0, first=1)
    tensor(0.6265)
    """
    require_shapes("batch_contrast", queries=(queries, "N D"), keys=(keys, "M D"))
    if not 0 <= first <= len(keys) - len(queries):
        raise ValueError(
            f"batch_contrast: {len(keys)} keys are too few for {len(queries)} queries whose keys "
            f"begin at {first}."
        )
    q, k = (F.normalize(widened(rows), dim=1) for rows in (queries, keys))
    with torch.autocast(q.device.type, enabled=False):
        scores = q @ k.T / temperature
    own = torch.arange(first, first + len(q), device=q.device)
    return 2 * temperature * F.cross_entropy(scores, own)
