"""Threads and forks."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import attention, same

import abreast


def test_the_interpreter_runs_on_during_a_call():
    q, kv, _ = attention(rows=4)
    cache = np.concatenate([kv[3]] * 40)
    indices = np.arange(len(cache), dtype=np.int32)
    done = threading.Event()

    def work():
        for _ in range(10):
            abreast.sparse_attention(q, cache, [indices] * 4)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    ticks, last, longest = 0, time.perf_counter(), 0.0
    while not done.is_set():
        time.sleep(0)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
        ticks += 1
    thread.join()
    # Held, the ten calls would let this loop round some ten times.
    assert ticks > 50, (ticks, longest)


def test_many_threads_get_the_serial_bits():
    inputs = [attention(rows=1 + seed % 4, seed=seed) for seed in range(8)]
    want = [abreast.sparse_attention(*args) for args in inputs]

    def work(n):
        for i in range(25):
            at = (n + i) % len(inputs)
            if not same(abreast.sparse_attention(*inputs[at]), want[at]):
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_a_list_that_changes_meanwhile_does_no_harm():
    q, kv, indices = attention(rows=4)
    want = abreast.sparse_attention(q, kv, indices)
    caches, stop = list(kv), threading.Event()

    def change():
        while not stop.is_set():
            for r in range(4):
                caches[r] = kv[r].copy()

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(50):
            assert same(abreast.sparse_attention(q, caches, indices), want)
    finally:
        stop.set()
        thread.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")
def test_a_forked_child_computes_too():
    q, kv, indices = attention(rows=4)
    want = abreast.sparse_attention(q, kv, indices)
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if same(abreast.sparse_attention(q, kv, indices), want) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")
def test_children_forked_while_others_call():
    """A thread that is not in the child holds no lock there."""
    scores, stop = np.arange(12, dtype=np.float32).reshape(3, 4), threading.Event()
    want = abreast.top_k(scores, k=2)

    def work():
        while not stop.is_set():
            abreast.top_k(scores, k=2)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(400):
            child = os.fork()
            if child == 0:
                # One that waits for ever is ended.
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(20)
                os._exit(0 if same(abreast.top_k(scores, k=2), want) else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()
