"""The examples, as they stand."""

import os
import pathlib
import subprocess
import sys

import pytest

FOLDER = pathlib.Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize("script", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_runs(script):
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    if done.stdout.startswith("SKIPPED"):
        pytest.skip(done.stdout)
    said = {
        "check_rows": "abreast: the law holds",
        "decode_four_requests": "alone the same: True",
        "own_cuda_memory": "the bits of the CPU",
    }
    assert said[script.stem] in done.stdout


def test_the_readme_can_be_pasted():
    readme = pathlib.Path(__file__).parents[3] / "README.md"
    if not readme.exists():
        pytest.skip("there is no README.md here")
    blocks = [block.split("```")[0] for block in readme.read_text().split("```python\n")[1:]]
    assert blocks
    for block in blocks:
        if "torch" in block:
            pytest.importorskip("torch", reason="PyTorch is not installed")
        exec(compile(block, "README.md", "exec"), {})
