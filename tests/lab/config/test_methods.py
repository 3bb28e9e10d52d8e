"""Settings of methods: every one has words for the help, and is checked however it is made."""

from __future__ import annotations

import ast
import dataclasses
import inspect

import pytest

from batchformer.lab.config.methods import MethodConfig


def test_every_setting_has_words_for_the_help() -> None:
    (made,) = ast.parse(inspect.getsource(MethodConfig)).body
    assert isinstance(made, ast.ClassDef)
    after = dict(zip(made.body, made.body[1:], strict=False))
    settings = [node for node in made.body if isinstance(node, ast.AnnAssign)]
    assert len(settings) == len(dataclasses.fields(MethodConfig))
    for node in settings:
        words = after.get(node)
        assert isinstance(words, ast.Expr) and isinstance(words.value, ast.Constant), (
            f"{ast.unparse(node.target)} has no words below it"
        )


def test_a_changed_copy_is_checked_like_a_new_one() -> None:
    with pytest.raises(ValueError, match=r"hyper\.swad-tolerance is 0, below 1"):
        dataclasses.replace(MethodConfig(), swad_tolerance=0)
