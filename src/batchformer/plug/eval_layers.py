"""Does eval take the same layers as the plain rows of training?"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from batchformer.plug.evidence import Seen
from batchformer.plug.observe import gradients, reachable
from batchformer.plug.outputs import Layout, as_rows, named_outputs


def other_layers_in_eval(
    model: nn.Module, seen: Seen, layout: Layout, frozen: set[int]
) -> str | None:
    """Which weight eval and training do not share; None if they share all, or cannot be compared.

    Where values differ, weights decide: a model may scale its outputs in eval, or give
    probabilities there. Norms have the statistics of the training passes meanwhile.

    Args:
        layout: where the outputs in eval have their rows.
        frozen: ids of the parameters that the user has frozen, such as those of a teacher.
    """
    plain = seen.plain_rows(seen.base)
    if not plain or seen.unsteady or seen.base.noisy or seen.no_gradients is not None:
        return None
    batch, modes = seen.experiment.batch, [(m, m.training) for m in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            outputs = [tensor for _, tensor in named_outputs(batch.run(model))]
        if _has_equal(as_rows(outputs, batch.rows, layout), plain[0]):
            return None
        with torch.enable_grad():
            in_eval = reachable([tensor for _, tensor in named_outputs(batch.run(model))])
    finally:
        model.train()  # drops what some modules cache in eval
        for module, mode in modes:
            module.training = mode
    again = seen.experiment.run()  # weights may have been moved since the first pass
    names = {id(p): name for name, p in model.named_parameters()}
    trained = reachable(again.outputs)
    shared = names.keys() & in_eval.keys() & trained.keys()
    matrices = {key for key, (p, _) in in_eval.items() if p.ndim >= 2 and key in names}
    if not matrices & shared:  # another network altogether: an average of the weights, a teacher
        return None
    for key in in_eval:
        if key in matrices - shared - frozen:
            return f"eval uses {names[key]}, which training does not"
    if seen.unshared is not None:
        return None
    alone = _before_classifier(seen.plain_rows(again)[0], names, shared)
    return f"training uses {names[alone]}, which eval does not" if alone is not None else None


def _has_equal(outputs: Sequence[Tensor], plain: Tensor) -> bool:
    """Whether one of the outputs, (N, features) each, has the values of the plain rows."""
    tolerance = max(1e-3, 4 * torch.finfo(plain.dtype).eps)
    expected = plain.detach().double()
    scale = max(float(expected.abs().max()), 1e-12)
    return any(
        rows.shape == plain.shape
        and float((rows.double() - expected).abs().max()) <= tolerance * scale
        for rows in outputs
    )


def _before_classifier(plain: Tensor, names: dict[int, str], shared: set[int]) -> int | None:
    """The id of a weight that acts on plain rows before the classifier, and is not shared.

    What stands after the classifier, such as a learned correction of logits, may be left out in
    eval on purpose.
    """
    found = reachable([plain])
    last = next((d for key, (p, d) in found.items() if p.ndim >= 2 and key in shared), None)
    if last is None:
        return None
    suspects = [
        (key, p)
        for key, (p, distance) in found.items()
        if key in names and key not in shared and distance > last and p.numel() > 1
    ]
    suspects.sort(key=lambda suspect: -suspect[1].ndim)  # a matrix is a layer's best name
    acting = gradients([plain], [p for _, p in suspects])
    return next((key for (key, _), acts in zip(suspects, acting, strict=True) if acts), None)
