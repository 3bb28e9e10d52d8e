"""Deferred re-weighting: whether a training is long enough to come to it."""

from __future__ import annotations

from batchformer.lab.config.methods import MethodConfig

#: Methods that weight classes by how rare they are from ``hyper.reweight_epoch`` on.
DEFERRED = ("ldam", "ride")


def never_comes(method: str, hyper: MethodConfig, epochs: float) -> str:
    """What to say of a training that ends before its re-weighting begins; else nothing.

    >>> never_comes("ldam", MethodConfig(reweight_epoch=160), 2.5)
    're-weighting begins with epoch 160, and this training has 2.5: set --hyper.reweight-epoch'
    >>> never_comes("ldam", MethodConfig(reweight_epoch=160), 200)
    ''
    """
    if method not in DEFERRED or epochs > hyper.reweight_epoch:
        return ""
    return (
        f"re-weighting begins with epoch {hyper.reweight_epoch}, and this training has "
        f"{epochs:.3g}: set --hyper.reweight-epoch"
    )
