"""Every private name of torch that the library uses, so that a new torch breaks one file.

torch may change these names in any release. ``tests/test_torch_private.py`` checks each of them
against the installed torch and says what would break; ``make test-lowest-torch`` does so against
the lowest torch that is supported. Names that are looked up on an object, such as a module's
hooks, are kept here as strings.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad, graph
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.modules.batchnorm import _NormBase as Norm
from torch.nn.modules.conv import _ConvNd as Conv
from torch.nn.modules.dropout import _DropoutNd as Dropout

__all__ = ["BatchNorm", "Conv", "Dropout", "Norm"]

F = TypeVar("F", bound=Callable[..., Any])

#: The dicts in which a module keeps its hooks.
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
#: The dicts in which a module keeps its parameters, buffers and children.
PARAMETERS, BUFFERS, CHILDREN = "_parameters", "_buffers", "_modules"
#: Where ``module.compile()`` keeps the compiled call, and ``torch.compile(module)`` the module.
COMPILED_CALL, COMPILED_MODULE = "_compiled_call_impl", "_orig_mod"
#: Where ``torch.compile(function)`` keeps the function.
COMPILED_FUNCTION = "_torchdynamo_orig_callable"
#: Where a state dict keeps the versions of the modules that it is from.
VERSIONS = "_metadata"
#: How often something was written into a tensor.
VERSION = "_version"
#: What a learning-rate scheduler sets on ``optimizer.step``.
SCHEDULED_STEP = "_wrapped_by_lr_sched"
#: What the first optimizer of a class, built or unpickled, sets on the ``step`` of that class.
BUILT_STEP = "hooked"
#: What ends the workers of a ``DataLoader``'s iterator.
END_WORKERS = "_shutdown_workers"

#: Operations on lists of tensors in one launch, as torch's own optimizers use them.
foreach_add, foreach_add_ = torch._foreach_add, torch._foreach_add_
foreach_sub, foreach_sub_ = torch._foreach_sub, torch._foreach_sub_
foreach_mul, foreach_mul_ = torch._foreach_mul, torch._foreach_mul_
foreach_lerp, foreach_lerp_ = torch._foreach_lerp, torch._foreach_lerp_
foreach_norm = torch._foreach_norm

#: A context in which operations on a tensor subclass skip its ``__torch_function__``.
DisableTorchFunctionSubclass = torch._C.DisableTorchFunctionSubclass


def compiler_is_imported() -> bool:
    """Whether ``torch.compile``'s machinery is loaded; its import takes a second."""
    return "torch._dynamo" in sys.modules


def uncompiled(function: F) -> F:
    """Keep ``torch.compile`` out of a function: a graph break, and the same results.

    This is ``torch.compiler.disable``, except that the compiler is imported only when needed.
    """
    return cast("F", torch._disable_dynamo(function))  # type: ignore[attr-defined]


def constant_when_compiled(function: F) -> F:
    """Let ``torch.compile`` call a function once, while it traces, and never in compiled code.

    This is ``torch.compiler.assume_constant_result`` without an import of the compiler.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@constant_when_compiled
def let_compiled_code_take(*kinds: type[Tensor]) -> None:
    """Let ``torch.compile`` accept these kinds of tensors in the first call of a function.

    Until torch 2.15, a check of that call (``_AnalyzeCustomOpInputOutputMode``) refuses every
    subclass that it does not know, although compiled code supports them.
    """
    from torch._functorch._aot_autograd import runtime_wrappers  # late: it imports the compiler

    known = getattr(runtime_wrappers, "HANDLED_TYPES", None)
    if known is not None:
        new = (kind for kind in kinds if kind not in known)
        runtime_wrappers.HANDLED_TYPES = (*known, *new)  # type: ignore[attr-defined]


def gradients_of(loss: Tensor, inputs: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """The gradients of a number with respect to these tensors; the graph is kept.

    ``torch.autograd.grad`` does the same, but suspends a ``TorchFunctionMode``. Here the mode stays
    active, so a checkpoint that runs a part of the model again in this call runs it as before.
    """
    ones = torch.ones_like(loss)
    return graph._engine_run_backward(
        (loss,), (ones,), True, False, tuple(inputs), True, accumulate_grad=False
    )


def is_transformed() -> bool:
    """Whether a transform of ``torch.func`` is active (vmap, grad, jvp)."""
    return bool(torch._C._are_functorch_transforms_active())


def is_forward_mode() -> bool:
    """Whether forward-mode differentiation is active."""
    return forward_ad._current_level >= 0
