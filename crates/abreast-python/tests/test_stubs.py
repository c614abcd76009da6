"""Signatures, stubs and documentation are there, and agree."""

import ast
import importlib.util
import inspect
import pathlib

import pytest

import abreast
from abreast import _abreast, ops

FOLDER = pathlib.Path(abreast.__file__).parent


def test_the_package_is_typed():
    assert (FOLDER / "py.typed").exists()
    assert set(abreast.__all__) <= set(dir(abreast))


def stub():
    return ast.parse((FOLDER / "_abreast.pyi").read_text())


def test_the_stub_names_what_the_native_module_has():
    native = {name for name in dir(_abreast) if not name.startswith("__")} - {"_abreast"}
    native.add("__version__")
    named = {node.name for node in stub().body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    named |= {node.target.id for node in stub().body if isinstance(node, ast.AnnAssign)}
    assert named == native


def test_the_stub_has_the_members_of_the_tensor():
    (tensor,) = [node for node in stub().body if isinstance(node, ast.ClassDef)]
    named = {node.name for node in tensor.body if isinstance(node, ast.FunctionDef)}
    members = {name for name in vars(abreast.Tensor) if not name.startswith("__") or "dlpack" in name}
    assert named == members


def test_every_operation_is_annotated_and_documented():
    for name in ops.__all__:
        function = getattr(abreast, name)
        signature = inspect.signature(function)
        assert signature.return_annotation is not inspect.Signature.empty
        for parameter in signature.parameters.values():
            assert parameter.annotation is not inspect.Parameter.empty, (name, parameter.name)
        assert "Returns:" in function.__doc__, name
        assert "stream" in signature.parameters
    for name in abreast.__all__:
        assert getattr(abreast, name).__doc__ or name.isupper() or name == "__version__", name


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_the_torch_module_takes_the_same_arguments():
    import abreast.torch

    for name in ops.__all__:
        here = list(inspect.signature(getattr(abreast, name)).parameters)
        there = list(inspect.signature(getattr(abreast.torch, name)).parameters)
        assert there == [p for p in here if p != "stream"], name


def test_importing_does_not_import_torch():
    import subprocess
    import sys

    code = "import sys, abreast; assert not {'torch', 'jax', 'numpy', 'cupy'} & set(sys.modules), sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
