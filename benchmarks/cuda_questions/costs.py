"""Question 2: what do fork, join, replay and destruction cost?"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from statistics import median
from time import perf_counter_ns

import torch

from benchmarks.cuda_questions.answers import Row
from benchmarks.cuda_questions.lab import Job, Lab
from braid.engine.cuda.stage_timer import DRIFT, SlopeOptions

NODES = (1, 10, 100, 1000)
LONG_LAUNCH_US = 3000.0
GRAPHS = 2000
FORKS = 20
PACES = 100


def graph_costs(lab: Lab) -> Iterator[Row]:
    """Graphs of tiny kernels on one stream, by their number of nodes."""
    for nodes in NODES:
        began = perf_counter_ns()
        captured = lab.capture([[_tiny(lab)] * nodes])
        captured_us = _since_us(began)
        gpu_us = lab.timing(captured, LONG_LAUNCH_US).latency_us
        launches_us = []
        for _ in range(10):
            lab.driver.synchronise()
            began = perf_counter_ns()
            lab.driver.replay(captured.graph, captured.origin)
            launches_us.append(_since_us(began))
        lab.driver.synchronise()
        began = perf_counter_ns()
        lab.driver.destroy(captured.graph)
        yield Row(
            f"{nodes} nodes",
            {
                "warm_up_and_capture_us": captured_us,
                "instantiate_us": captured.graph.instantiate_us,
                "launch_us": median(launches_us),
                "gpu_us": gpu_us,
                "destroy_us": _since_us(began),
            },
        )


def pace_steadiness(lab: Lab, size: int = SlopeOptions().pace_size) -> Iterator[Row]:
    """The stage timer's pace: how often it is as usual, so that a sample counts."""
    square = lab.driver.empty((size, size), torch.float32).fill_(1.0)
    captured = lab.capture([[Job(torch.mm, [square, square])]])
    times_us = [lab.replay_us(captured) for _ in range(PACES)]
    lab.driver.destroy(captured.graph)
    usual_us = median(times_us)
    steady = sum(abs(us - usual_us) <= DRIFT * usual_us for us in times_us)
    yield Row(
        f"{PACES} times the stage timer's pace",
        {"median_us": usual_us, "longest_us": max(times_us), "steady": steady / PACES},
    )


def fork_costs(lab: Lab) -> Iterator[Row]:
    """A fork, a tiny kernel on each stream, a join; against one tiny kernel."""
    alone_us = lab.slope_us([[_tiny(lab)]], FORKS)
    for streams in (2, 4, 8):
        forked_us = lab.slope_us([[_tiny(lab)]] * streams, FORKS)
        yield Row(
            f"fork to {streams} streams and join",
            {"stage_us": forked_us, "one_kernel_us": alone_us, "price_us": forked_us - alone_us},
        )


def growth(lab: Lab) -> Iterator[Row]:
    """Many graphs made and destroyed: memory of the device and of the process."""
    jobs = [[_tiny(lab)] * 10] * 2
    lab.driver.destroy(lab.capture(jobs).graph)
    began = perf_counter_ns()
    free = lab.driver.memory().device_free
    for number in range(1, GRAPHS + 1):
        lab.driver.destroy(lab.capture(jobs).graph)
        if number % (GRAPHS // 4) == 0:
            lost = free - lab.driver.memory().device_free
            yield Row(
                f"{number} graphs made and destroyed",
                {
                    "device_lost_mib": lost / 2**20,
                    "process_peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                    "us_each": _since_us(began) / number,
                },
            )


def _tiny(lab: Lab) -> Job:
    return Job(torch.relu, [lab.driver.empty((16,), torch.float32).fill_(1.0)])


def _since_us(began_ns: int) -> float:
    return (perf_counter_ns() - began_ns) / 1e3
