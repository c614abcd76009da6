"""The law as a tool: it must find what breaks it, and pass what keeps it."""

import warnings
from typing import NamedTuple

import numpy as np
import pytest
from conftest import BF16, attention

import abreast


def rows(lib, n=4):
    q, kv, indices = attention(rows=n)
    return [tuple(lib.all(row)) for row in zip(q[:, None], kv, indices)]


def ours(lib):
    def decode(batch):
        q = np.concatenate([lib.host(q) for q, _, _ in batch])
        out = abreast.sparse_attention(lib.of(q), [kv for _, kv, _ in batch], [i for _, _, i in batch])
        return [out[r] for r in range(len(batch))]

    return decode


def test_ours_keeps_the_law(lib):
    assert abreast.check_rows(ours(lib), rows(lib)) is None


def mean(batch):
    return np.array([row.mean(dtype=np.float32) for row in batch])


ROWS = [np.random.default_rng(r).standard_normal(50).astype(np.float32) for r in range(4)]


def broken(change):
    """A function that keeps the law but for one thing."""

    def decode(batch):
        out = mean(batch)
        change(out, batch)
        return out

    return decode


def by_number(out, batch):
    if len(batch) > 8:
        out[-1] = np.nextafter(out[-1], np.float32(9))


def by_place(out, batch):
    if len(batch) > 1:
        out[1] += np.float32(1e-6)


def by_neighbour(out, batch):
    if not np.isfinite(out).all():
        out[np.isfinite(out)] *= 0


def by_first_row(out, batch):
    out[1:] += (np.float32(0) * out[0]) if np.isfinite(out[0]) else np.float32(1)


@pytest.mark.parametrize(
    ("change", "call"),
    [(by_number, "rows"), (by_place, "all"), (by_neighbour, "neighbours full of nan"), (by_first_row, "neighbours")],
)
def test_what_breaks_the_law_is_found(change, call):
    found = abreast.check_rows(broken(change), ROWS)
    assert found is not None and call in found.call
    assert found.rows[found.entry] == found.row
    assert found.solo_bits != found.joint_bits
    assert np.float32(found.solo).tobytes()[::-1].hex() == found.solo_bits[2:]
    assert found.solo == mean([ROWS[found.row]])[0]
    assert f"row {found.row}" in str(found) and found.joint_bits in str(found)


def test_one_that_does_not_repeat_itself_is_found():
    rng = np.random.default_rng(0)
    found = abreast.check_rows(lambda batch: [row.mean() + rng.random() for row in batch], ROWS)
    assert found is not None and found.call == "alone again"


def test_position_and_values_of_nested_results():
    def decode(batch):
        results = [{"out": row["x"] * np.float32(2), "more": [row["x"].astype(BF16), 3]} for row in batch]
        if len(batch) == 7:
            results[2]["more"][0] = results[2]["more"][0].copy()
            results[2]["more"][0][5] = 17
        return results

    found = abreast.check_rows(decode, [{"x": row} for row in ROWS])
    assert found.position == ("more", 0, 5) and found.joint == 17 and found.call == "7 rows" and found.entry == 2


def test_rows_are_copies():
    def decode(batch):
        for row in batch:
            row += 1
        return [row.copy() for row in batch]

    before = [row.copy() for row in ROWS]
    assert abreast.check_rows(decode, ROWS) is None
    assert all((a == b).all() for a, b in zip(before, ROWS))


def test_signed_zeros_and_nans_are_told_apart():
    zeros = [np.zeros(3, np.float32), np.ones(3, np.float32)]
    found = abreast.check_rows(lambda batch: [-row if len(batch) > 1 else row for row in batch], zeros)
    assert (found.solo_bits, found.joint_bits) == ("0x00000000", "0x80000000")
    assert abreast.check_rows(lambda batch: [row * np.float32("nan") for row in batch], zeros) is None


def test_bad_arguments():
    with pytest.raises(ValueError, match="rows must be two or more, got 1"):
        abreast.check_rows(mean, ROWS[:1])
    with pytest.raises(ValueError, match="one result a row"):
        abreast.check_rows(lambda batch: [], ROWS)
    with pytest.raises(ValueError, match="one shape and type"):
        abreast.check_rows(lambda batch: [np.zeros(len(batch))] * len(batch), ROWS)


def test_padded_attention_breaks_it(lib):
    """Plain attention over a padded batch: the longest row decides how the others are summed."""
    if lib.name == "torch-cuda":
        pytest.skip("which sums change there depends on the GPU's library")
    inputs = [tuple(lib.of(np.asarray(x, np.float32)) for x in row[:2]) for row in zip(*attention(rows=5)[:2])]

    def plain(batch):
        longest = max(kv.shape[0] for _, kv in batch)
        out = []
        host = [(lib.host(q), lib.host(kv)) for q, kv in batch]
        for q, kv in host:
            logits = np.full((len(q), longest), -np.inf, np.float32)
            logits[:, : len(kv)] = q @ kv.T
            weights = np.exp(logits - logits.max(1, keepdims=True))
            padded = np.zeros((longest, kv.shape[1]), np.float32)
            padded[: len(kv)] = kv
            out.append((weights / weights.sum(1, keepdims=True)) @ padded)
        return [lib.of(o) for o in out]

    assert abreast.check_rows(plain, inputs) is not None


class Pair(NamedTuple):
    a: np.ndarray
    b: np.ndarray


def test_rows_and_results_of_every_form():
    pairs = [Pair(row, row + 1) for row in ROWS]
    assert abreast.check_rows(lambda batch: [Pair(-p.a, p.b) for p in batch], pairs) is None
    found = abreast.check_rows(lambda batch: [Pair(p.a, p.b + (len(batch) > 1)) for p in batch], pairs)
    assert found.position == (1, 0)
    assert abreast.check_rows(lambda batch: [(row, None) for row in batch], ROWS) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert abreast.check_rows(lambda batch: [row.copy() for row in batch], [row.astype(np.float16) for row in ROWS]) is None


@pytest.mark.parametrize(
    ("fn", "text"),
    [
        (lambda batch: None, "fn must return a list, or an array with one entry a row, got NoneType"),
        (lambda batch: (row for row in batch), "must return a list, or an array with one entry a row, got generator"),
        (lambda batch: {"out": batch[0]}, "must return a list, or an array with one entry a row, got dict"),
        (lambda batch: np.float32(1), "must return a list, or an array with one entry a row, got float32"),
        (lambda batch: batch + batch, "one result a row: 1, got 2"),
        (lambda batch: [None] * len(batch), "must return something for every row"),
        (lambda batch: [object() for _ in batch], "must return arrays or numbers, got object"),
        (lambda batch: [abreast.view(row, "float32") for row in batch], "must return arrays or numbers, got Tensor"),
        (lambda batch: [row.astype(np.float64) if len(batch) > 1 else row for row in batch], "one shape and type"),
        (lambda batch: [row if len(batch) > 1 else (row,) for row in batch], "of one structure"),
    ],
)
def test_what_a_function_must_return(fn, text):
    with pytest.raises(ValueError, match=text):
        abreast.check_rows(fn, ROWS)


def test_what_a_function_raises_is_raised():
    with pytest.raises(ZeroDivisionError):
        abreast.check_rows(lambda batch: 1 / 0, ROWS)
