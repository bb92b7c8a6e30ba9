"""How many threads compute while others run on the cores: by a clock, and a count of what they waited."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from millstream_worker.engine.runner.device.cgroup import ControlGroups
from millstream_worker.engine.runner.device.free_cores import FIRST_S, LAST_S, WINDOW_S, FreeCores, Waits

STEP_S = 0.01


class Machine:
    """Where each of `others` takes half of a core from one thread of a step."""

    def __init__(self, threads: int) -> None:
        self.now = self.waited = 0.0
        self.others = 0.0
        self.cores = FreeCores(threads, lambda: self.waited, lambda: self.now)
        torch.set_num_threads(threads)

    def step(self) -> int:
        """The threads that it has."""
        self.cores.begin_step()
        threads = torch.get_num_threads()
        self.now += STEP_S
        self.waited += STEP_S * self.others / 2 * (threads > 1)
        self.cores.end_step()
        return threads

    def steps(self, seconds: float) -> list[int]:
        return [self.step() for _ in range(round(seconds / STEP_S))]


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_a_quiet_machine_keeps_all_threads() -> None:
    machine = Machine(2)
    assert set(machine.steps(5.0)) == {2}
    machine.others = 0.6  # less than what is worth a thread
    assert set(machine.steps(5.0)) == {2}


def test_another_process_costs_one_thread_and_makes_trials_rare() -> None:
    machine = Machine(2)
    machine.others = 1
    assert machine.steps(WINDOW_S)[-1] == 2
    assert machine.step() == 1
    machine.steps(10.0)
    later = machine.steps(10.0)
    assert 0 < later.count(2) * STEP_S <= 10.0 / LAST_S * WINDOW_S + WINDOW_S


def test_all_are_back_soon_after_it_has_gone() -> None:
    machine = Machine(2)
    machine.others = 1
    machine.steps(20.0)
    machine.others = 0
    machine.steps(LAST_S + WINDOW_S)
    assert set(machine.steps(5.0)) == {2}
    machine.others = 1
    machine.steps(WINDOW_S)
    machine.others = 0
    machine.steps(FIRST_S + WINDOW_S)
    assert machine.step() == 2


def test_a_pause_counts_as_time_until_the_next_trial() -> None:
    machine = Machine(2)
    machine.others = 1
    machine.steps(WINDOW_S)
    assert torch.get_num_threads() == 1
    machine.others = 0
    machine.now += FIRST_S + STEP_S  # no work
    assert machine.step() == 2


def test_a_window_does_not_span_a_pause() -> None:
    machine = Machine(2)
    machine.others = 1
    machine.steps(WINDOW_S - STEP_S)  # the end of a burst, beside those who read its answers
    machine.others = 0
    machine.now += 1.0
    assert set(machine.steps(1.0)) == {2}


def test_several_others_take_several_threads_and_leave_one() -> None:
    machine = Machine(8)
    machine.others = 4
    machine.steps(WINDOW_S)
    assert machine.step() == 6
    machine = Machine(3)
    machine.others = 40
    machine.steps(WINDOW_S)
    assert machine.step() == 1


def test_waiting_is_read_of_all_threads(tmp_path: Path) -> None:
    for thread, line in {"7": "5 1500000000 3", "9": "0 500000000 1"}.items():
        (tmp_path / "task" / thread).mkdir(parents=True)
        (tmp_path / "task" / thread / "schedstat").write_text(line + "\n")
    (tmp_path / "task" / "11").mkdir()  # it has ended meanwhile
    (tmp_path / "groups").write_text("0::/\n")
    groups = ControlGroups(tmp_path, tmp_path / "groups")
    waits = Waits(tmp_path / "task", groups)
    assert waits.seconds() == pytest.approx(2.0)
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "cpu.stat").write_text("usage_usec 5\nthrottled_usec 500000\n")
    assert Waits(tmp_path / "task", groups).seconds() == pytest.approx(1.5)


def test_a_system_that_does_not_count_has_no_waiting(tmp_path: Path) -> None:
    assert Waits(tmp_path / "nothing").seconds() == 0.0


def test_a_busy_machine_is_seen() -> None:
    """By the kernel's own count, where it has one."""
    assert Waits().seconds() >= 0.0
