"""Every private name of torch that we use exists in the installed torch, and does what we need."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

import batchformer

#: An expression that needs a private name, and what breaks without it.
NAMES = {
    "nn.modules.batchnorm._BatchNorm": "attach does not find BatchNorm layers (BatchNorm)",
    "nn.modules.batchnorm._NormBase": "check refuses norms of their own for streams (Norm)",
    "nn.modules.conv._ConvNd": "attach does not find convolutions (Conv)",
    "nn.modules.dropout._DropoutNd": "check does not switch dropout off (Dropout)",
    "nn.Module()._forward_hooks": "a hooked layer of an encoder is read, not called (HOOKS)",
    "nn.Module()._forward_pre_hooks": "a hooked layer of an encoder is read, not called (HOOKS)",
    "nn.Module()._backward_hooks": "a hooked layer of an encoder is read, not called (HOOKS)",
    "nn.Module()._backward_pre_hooks": "a hooked layer of an encoder is read, not called (HOOKS)",
    "nn.Module()._parameters": "large models are not tried without values (PARAMETERS)",
    "nn.Module()._buffers": "preserve_state does not restore buffers (BUFFERS)",
    "nn.Module()._modules": "detach does not remove BatchFormer (CHILDREN)",
    "nn.Module()._compiled_call_impl": "attach accepts a compiled module (COMPILED_CALL)",
    "torch.compile(nn.Identity())._orig_mod": "unwrap keeps compiled modules (COMPILED_MODULE)",
    "torch.compile(print_nothing)._torchdynamo_orig_callable": "DDP does not find the method of a "
    "compiled step (COMPILED_FUNCTION)",
    "torch.utils.data.dataloader._MultiProcessingDataLoaderIter._shutdown_workers": "workers that "
    "read images outlive an error (END_WORKERS)",
    "nn.Module().state_dict()._metadata": "export drops the versions of modules (VERSIONS)",
    "torch.ones(1)._version": "check computes the backbone again in every pass (VERSION)",
    "scheduled().step._wrapped_by_lr_sched": "attach accepts a scheduled optimizer "
    "(SCHEDULED_STEP)",
    "torch.optim.SGD([torch.zeros(1)]).step.hooked": "attach does not warn of an optimizer "
    "that was built before (BUILT_STEP)",
    "torch._C.DisableTorchFunctionSubclass": "TwoStreamTensor (DisableTorchFunctionSubclass)",
    **{
        f"torch._foreach_{name}": "the lab's optimizers and weight averages do not run"
        for name in ("add", "add_", "sub", "sub_", "mul", "mul_", "lerp", "lerp_", "norm")
    },
    "torch._dynamo": "large models are not tried without values (compiler_is_imported)",
    "torch._disable_dynamo": "collectives are compiled (uncompiled)",
    "torch.compiler.assume_constant_result(print_nothing)._dynamo_marked_constant": "a warning "
    "becomes part of compiled code (constant_when_compiled)",
    "torch.autograd.graph._engine_run_backward": "check fails on checkpointed models "
    "(gradients_of)",
    "torch._C._are_functorch_transforms_active": "kernels run inside torch.func (is_transformed)",
    "forward_ad._current_level": "kernels run in forward-mode differentiation (is_forward_mode)",
}


def scheduled() -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    return optimizer


def print_nothing() -> None: ...


@pytest.mark.parametrize("name", NAMES)
def test_the_name_exists(name: str) -> None:
    try:
        eval(name)
    except AttributeError as error:
        pytest.fail(f"torch {torch.__version__}: {error}. Without it: {NAMES[name]}.")


def test_what_is_active_is_seen() -> None:
    # Imported here: where a name is missing, the tests above say what breaks without it.
    from batchformer import torch_private

    assert not torch_private.is_transformed() and not torch_private.is_forward_mode()
    seen = []
    torch.func.vmap(lambda x: seen.append(torch_private.is_transformed()) or x)(torch.zeros(2))
    with forward_ad.dual_level():
        seen.append(torch_private.is_forward_mode())
    assert seen == [True, True]


def asks_for_private_name(call: ast.Call) -> bool:
    """Whether a call is ``getattr(x, "_name")`` or ``hasattr(x, "_name")``."""
    if ast.unparse(call.func) not in ("getattr", "hasattr"):
        return False
    name = call.args[1].value if isinstance(call.args[1], ast.Constant) else ""
    ours = ("_own_class", "_fields")  # the second is of named tuples
    return re.match("_[^_]", name) is not None and name not in ours


def test_no_other_file_uses_a_private_name() -> None:
    root = Path(batchformer.__file__).parent
    attribute = {name for text in NAMES for name in re.findall(r"\._\w+", text)}
    wrong = []
    for path in root.rglob("*.py"):
        if path.name == "torch_private.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
                names = [alias.name for alias in node.names if alias.name.startswith("_")]
            elif isinstance(node, ast.Attribute) and node.attr[0] == "_" != node.attr[1]:
                text = ast.unparse(node)
                names = [text] if f".{node.attr}" in attribute or text.startswith("torch.") else []
            elif isinstance(node, ast.Constant) and f".{node.value}" in attribute:
                names = [repr(node.value)]
            elif isinstance(node, ast.Call) and asks_for_private_name(node):
                names = [ast.unparse(node)]
            else:
                continue
            wrong += [f"{path.relative_to(root)}:{node.lineno} {name}" for name in names]
    assert not wrong, f"move these to torch_private.py: {wrong}"
