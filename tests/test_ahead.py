"""Rows that are looked up and noise that is drawn by a second thread, ahead of time."""

import gc
import queue
import threading
import time
from dataclasses import replace
from itertools import islice
from multiprocessing import get_context

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from problems import VARIANTS, small

from twinflower.privacy import mechanism
from twinflower.privacy.mechanism import CohortDraws, GaussianNoise
from twinflower.randomness import LONG
from twinflower.simulation.runtimes import ahead, cohort, inprocess, parallel, processes
from twinflower.simulation.runtimes.ahead import NoiseAhead, SecondThread

PRIVATE = {
    "fedpdm-private": 0,
    "fedpdm-gradient": 2,
    "zcdp-nfl-private": 0,
    "ssca-private": 0,
}  # last draw of a round


@pytest.fixture
def early(monkeypatch):
    """The numbers of steps whose rows were looked up ahead, which is worth while for any rows."""
    found = []
    look = SecondThread.ahead

    def noted(self, items):
        found.append(0)
        for item in look(self, items):
            found[-1] += 1
            yield item

    monkeypatch.setattr(ahead, "_FEW", 1)
    monkeypatch.setattr(ahead, "cores", lambda: 2)
    monkeypatch.setattr(SecondThread, "ahead", noted)
    return found


def train_alone(setup):
    """The result of a run of the cohort."""
    return cohort.train([setup])[0]


@pytest.mark.parametrize("train", [inprocess.train, train_alone])
@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_in_advance_are_the_same_rows(variant, train, early, monkeypatch):
    setup = small(variant)
    model = train(setup).model
    schedule, alone = setup.schedule, setup.sums and train is inprocess.train
    several = schedule.batch_size > 0 and schedule.workload(setup.shards.sizes.max()).steps > 1
    assert bool(early) == (several and not alone)
    assert all(steps > 1 for steps in early) or "stopping" in variant
    monkeypatch.setattr(ahead, "_FEW", 2**62)
    assert_array_equal(model, train(setup).model)


def test_seeds_stacked_look_up_their_rows_in_advance(early, monkeypatch):
    setups = [small("fedpdm", seed=seed) for seed in (1, 2)]
    stacked = cohort.train(setups)
    assert early
    monkeypatch.setattr(ahead, "_FEW", 2**62)
    for setup, result in zip(setups, stacked, strict=True):
        assert_array_equal(result.model, train_alone(setup).model)


@pytest.mark.parametrize("why", ["few numbers", "one core", "a job on every core"])
def test_without_a_gain_there_is_no_second_thread(why, monkeypatch):
    monkeypatch.setattr(ahead, "_FEW", 2**62 if why == "few numbers" else 1)
    monkeypatch.setattr(ahead, "cores", lambda: 1 if why == "one core" else 2)
    monkeypatch.setattr(ahead, "_at_once", 2 if why == "a job on every core" else 1)
    monkeypatch.setattr(SecondThread, "_asked", property(lambda self: pytest.fail("a thread")))
    train_alone(small("fedpdm"))


def processes_told():
    """In a worker: the number of processes that it was told of."""
    return ahead._at_once


def test_workers_know_how_many_they_are():
    context = get_context("spawn")
    with parallel._workers(2, context.Queue()) as pool:
        assert pool.submit(processes_told).result() == 2
    assert ahead._at_once == 1


def test_cores_are_those_that_the_process_may_use(monkeypatch):
    monkeypatch.setattr(processes.os, "sched_getaffinity", lambda process: {3, 5}, raising=False)
    assert processes.cores() == 2
    monkeypatch.delattr(processes.os, "sched_getaffinity")
    monkeypatch.setattr(processes.os, "cpu_count", lambda: None)
    assert processes.cores() == 1


def counted(count, seen):
    """The numbers below `count`, each noted with its thread when it is computed."""
    for number in range(count):
        seen.append(threading.current_thread())
        yield number


@pytest.mark.parametrize("count", [0, 1, 2, 3, 10])
def test_items_keep_their_order_and_come_from_the_thread(count):
    second, seen = SecondThread(), []
    assert list(second.ahead(counted(count, seen))) == list(range(count))
    assert len(seen) == count
    assert threading.current_thread() not in seen


def test_only_a_few_items_are_computed_ahead():
    seen = []
    items = SecondThread().ahead(counted(100, seen))
    for taken in range(1, 50):
        next(items)
        assert taken <= len(seen) <= taken + ahead._BATCHES


def test_an_iteration_may_be_left_early_and_others_run_at_the_same_time():
    second = SecondThread()
    left = second.ahead(range(10))
    assert next(left) == 0
    pairs = zip(second.ahead(range(5)), second.ahead(range(5, 10)), strict=True)
    assert list(pairs) == list(zip(range(5), range(5, 10), strict=True))
    assert list(left) == list(range(1, 10))


def test_an_error_is_raised_where_it_occurred():
    def broken():
        yield 1
        raise ZeroDivisionError("the second")

    items = (second := SecondThread()).ahead(broken())
    assert next(items) == 1
    with pytest.raises(ZeroDivisionError, match="the second"):
        next(items)
    assert list(second.ahead(range(3))) == [0, 1, 2]


def test_a_task_is_done_in_the_thread_and_its_error_is_raised_at_its_end():
    second, seen = SecondThread(), []
    end = second.begin(counted(50, seen))
    broken = second.begin(1 / (5 - number) for number in range(10))
    assert list(second.ahead(range(3))) == [0, 1, 2]
    end()
    assert len(seen) == 50
    assert threading.current_thread() not in seen
    with pytest.raises(ZeroDivisionError):
        broken()
    assert list(second.ahead(range(3))) == [0, 1, 2]


def test_items_are_computed_between_the_parts_of_a_task():
    asked, order = queue.SimpleQueue(), []

    def task():
        for part in range(4):
            order.append(f"part {part}")
            if part == 1:
                asked.put((item(), queue.SimpleQueue(), True))
            yield part
        asked.put(None)

    def item():
        order.append("item")
        yield 0

    asked.put((task(), queue.SimpleQueue(), False))
    ahead._work(asked)
    assert order == ["part 0", "part 1", "item", "part 2", "part 3"]


def test_draws_in_parts_are_the_draws():
    for size in (5, LONG):
        for seeds, clients in (([3], np.arange(4)), ([3, 4], np.array([[0, 2], [1, 5]]))):
            draws = CohortDraws(seeds, clients, 2)
            parts = list(draws.parts(1, size))
            assert len(parts) == (clients.size if size == LONG else len(seeds))
            whole = draws(1, (*clients.shape, size))
            assert_array_equal(np.concatenate(parts), whole.reshape(-1, size))


def test_the_thread_ends_with_its_owner():
    seen = []
    second = SecondThread()
    list(second.ahead(counted(1, seen)))
    del second
    gc.collect()
    seen[0].join(10)
    assert not seen[0].is_alive()


@pytest.fixture
def begun(monkeypatch):
    """The numbers of the draws that were begun in advance; every draw is long enough."""
    numbers = []
    begin = NoiseAhead._begin

    def noted(self, draws, draw, clients):
        found = begin(self, draws, draw, clients)
        numbers.extend([draw] if found else [])
        return found

    monkeypatch.setattr(ahead, "_LEAST", 1)
    monkeypatch.setattr(NoiseAhead, "_begin", noted)
    return numbers


@pytest.mark.parametrize("train", [inprocess.train, train_alone])
@pytest.mark.parametrize(("variant", "last"), PRIVATE.items())
def test_noise_in_advance_is_the_same_noise(variant, last, train, begun, monkeypatch):
    setup = small(variant)
    early = train(setup).model
    assert set(begun) == set(range(last + 1))
    monkeypatch.setattr(ahead, "_LEAST", 2**62)
    assert_array_equal(early, train(setup).model)


def test_seeds_stacked_draw_their_noise_in_advance(begun, monkeypatch):
    setups = [small("fedpdm-private", seed=seed) for seed in (1, 2)]
    together_ = cohort.train(setups)
    assert begun
    monkeypatch.setattr(ahead, "_LEAST", 2**62)
    for setup, result in zip(setups, together_, strict=True):
        assert_array_equal(result.model, cohort.train([setup])[0].model)


def test_short_draws_are_not_made_in_advance(monkeypatch):
    monkeypatch.setattr(SecondThread, "_asked", property(lambda self: pytest.fail("a thread")))
    cohort.train([small("fedpdm-private")])


def test_draws_of_another_number_or_length_than_expected_are_right_too(monkeypatch):
    monkeypatch.setattr(ahead, "_LEAST", 1)
    clients, early = np.arange(3), NoiseAhead(SecondThread())
    for round_, asked in enumerate([[(0, 5), (1, 5)], [(0, 7), (1, 5)], [(1, 5)], [(0, 5), (0, 5), (2, 4)]]):
        plain = GaussianNoise(np.full((3, 1), 2.0), CohortDraws([0], clients, round_))
        noise = early.of(plain)
        for draw, width in asked:
            value = np.ones((3, width))
            assert_array_equal(noise(value, draw), plain(value, draw))


def test_an_error_in_a_draw_reaches_the_round(monkeypatch):
    threads = []

    def drawn(self, *rest):
        if self.round == 1:
            return draw(self, *rest)
        threads.append(threading.current_thread())
        raise ZeroDivisionError("a draw")

    draw = CohortDraws._drawn
    monkeypatch.setattr(ahead, "_LEAST", 1)
    monkeypatch.setattr(mechanism, "_SHORT", 0)
    monkeypatch.setattr(CohortDraws, "_drawn", drawn)
    with pytest.raises(ZeroDivisionError, match="a draw"):
        train_alone(small("fedpdm-private"))
    assert threading.current_thread() not in threads


def test_draws_that_are_too_few_are_an_error():
    class Fewer(CohortDraws):
        def parts(self, draw, size):
            yield from islice(super().parts(draw, size), 1)

    early = NoiseAhead(SecondThread())
    early._widths[0] = LONG
    noise = early.of(GaussianNoise(np.ones((32, 1)), Fewer([0], np.arange(32), 1)))
    with pytest.raises(AssertionError):
        noise(np.zeros((32, LONG)))


@pytest.mark.parametrize("train", [inprocess.train, train_alone])
def test_clients_that_stop_early_leave_no_thread(train, early):
    setup = small("fedpdm-stopping")
    stops = replace(setup, algorithm=replace(setup.algorithm, stopping_tolerance=1e6))
    before = threading.active_count()
    train(stops)
    assert early
    assert set(early) == {1}
    gc.collect()
    for _ in range(100):
        if threading.active_count() <= before:
            return
        time.sleep(0.05)
    pytest.fail("a thread is left")
