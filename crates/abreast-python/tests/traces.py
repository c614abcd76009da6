"""Reads the recorded decode steps: docs/traces.md says what is in them."""

import json
import struct

import ml_dtypes
import numpy as np

TYPES = {
    "BF16": ml_dtypes.bfloat16,
    "F32": np.float32,
    "F64": np.float64,
    "I32": np.int32,
    "I64": np.int64,
}


def safetensors(path):
    data = path.read_bytes()
    (n,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + n]).items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            array = np.frombuffer(data[8 + n + start : 8 + n + end], TYPES[entry["dtype"]])
            tensors[name] = array.reshape(entry["shape"])
    return tensors


class Case:
    def __init__(self, case, tensors):
        self.id, self.core, self.case = case["id"], case["core"], case
        self.inputs = {name: tensors[tensor].copy() for name, tensor in case["inputs"].items()}
        for name, patches in case.get("patches", {}).items():
            array = self.inputs[name]
            flat = array.reshape(-1).view(f"u{array.itemsize}")
            for at, raw in patches:
                flat[at] = raw
        self.outputs = {n: t if t == "zeros" else tensors[t] for n, t in case["outputs"].items() if t == "zeros" or t in tensors}

    def __getitem__(self, key):
        return self.case[key]

    def get(self, key, default=None):
        return self.case.get(key, default)


def load(folder, name):
    """The cases of a file, and the groups that are one joint call."""
    manifest = json.loads((folder / name).read_text())
    tensors = {}
    for file in manifest["files"]:
        tensors |= safetensors(folder / file)
    cases = {case["id"]: Case(case, tensors) for case in manifest["cases"]}
    grouped = [group["cases"] for group in manifest.get("groups", [])]
    in_groups = {case for group in grouped for case in group}
    return [[cases[i] for i in group] for group in grouped] + [[c] for i, c in cases.items() if i not in in_groups]
