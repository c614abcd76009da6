#!/usr/bin/env python3
"""Turns the results.json of a run of peers on a GPU into the table that `abreast bench --peers` and `abreast report` read.

    python tools/peers/cuda_table.py results.json --base data/peers/h200.csv > peers.csv

Of the base, an earlier table, goals stay as they are, and so do the figures of peers that this run did not measure."""

import argparse
import csv
import json
import sys

COLUMNS = ["gpu", "op", "shape", "rows", "peer", "us", "goal_us", "bare_us"]
# The run's names of peers by ours; of several forms of one peer the fastest counts. Reads alone, the floor in practice, are no peer.
PEERS = {
    "triton": "Triton",
    "triton-split": "Triton",
    "eager": "PyTorch",
    "compile": "torch.compile",
    "torch.topk+order": "torch.topk; in order",
    "torch.sort": "torch.sort; exact and in order",
    "fmla-bf16": "FlashMLA bf16",
    "fmla-bf16-len": "FlashMLA bf16",
    "fmla-fp8": "FlashMLA fp8",
    "fmla-fp8-tuned": "FlashMLA fp8",
    "sglang-v2": "SGLang; a set without order",
    "sglang-v2-c8": "SGLang; a set without order",
    "sglang-v2-c16": "SGLang; a set without order",
    "cub-tie+order": "CUB; exact and in order",
    "sglang-c4+norm": "SGLang and norm",
    "sglang-c128+norm": "SGLang and norm",
}
BARE = {"(gather only)", "(one read)"}


def shapes(core, row):
    """Our operation and the shapes that a figure is of; none where we have no such case."""
    if core == "attn":
        return "sparse_attention", [f"width {row['W']}"]
    if core == "indexer":
        return "index_scores", [f"keys {row['n']}"]
    if core == "topk":
        return "top_k", [f"n {row['n']} random"]
    if core == "comp":
        token = "block" if row["done"] else "token"
        return "compress", [f"ratio {row['ratio']} d {row['d']} {layout} {token}" for layout in ("ring", "shifted")]
    return None, []


def measured(results):
    """Microseconds by (operation, shape, rows), then by peer, and those of bare reads."""
    peers, bare = {}, {}
    for core in ("attn", "indexer", "topk", "comp"):
        for row in results.get(core, {}).get("rows", []):
            # Groups of one-row calls are another matter.
            if row.get("mode") != "one":
                continue
            op, names = shapes(core, row)
            for shape in names:
                key, us = (op, shape, row["R"]), row["cold_us"]
                if row["peer"] in BARE:
                    bare[key] = us
                elif row["peer"] in PEERS:
                    name = PEERS[row["peer"]]
                    name = "Triton bf16" if (core, name) == ("indexer", "Triton") else name
                    of_shape = peers.setdefault(key, {})
                    of_shape[name] = min(us, of_shape.get(name, us))
    return peers, bare


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", help="results.json of the run")
    parser.add_argument("--base", required=True, help="an earlier table, for goals and for peers that were not measured")
    parser.add_argument("--gpu", default="NVIDIA H200")
    arguments = parser.parse_args()
    with open(arguments.results) as file:
        results = json.load(file)
    with open(arguments.base) as file:
        base = list(csv.DictReader(line for line in file if not line.startswith("#")))
    peers, bare = measured(results)
    goals = {}
    for row in base:
        key = (row["op"], row["shape"], int(row["rows"]))
        goals[key] = row["goal_us"]
        bare.setdefault(key, row["bare_us"])
        peers.setdefault(key, {}).setdefault(row["peer"], row["us"])
    shown = lambda us: f"{us:.3g}" if isinstance(us, float) else us
    print(f"# Microseconds of the device for one call with cold inputs, medians of graph replays; peers measured {results.get('when', '')}, with what an")
    print("# earlier table has of others. goal_us is what this library wants to reach; bare_us is a kernel that only reads what the operation must.")
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(COLUMNS)
    for key, of_shape in peers.items():
        for peer, us in sorted(of_shape.items(), key=lambda item: float(item[1])):
            table.writerow([arguments.gpu, *key, peer, shown(us), goals.get(key, ""), shown(bare.get(key, ""))])


if __name__ == "__main__":
    main()
