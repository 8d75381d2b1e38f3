"""The time of a server, which does not go back when the clock of its machine is set back."""

from cfs_server.base.clock import SteadyClock


def test_it_is_the_time_of_the_machine() -> None:
    machine = [100.0]
    clock = SteadyClock(lambda: machine[0], lambda: machine[0])
    for time in (100.0, 101.0, 5_000.0):
        machine[0] = time
        assert clock() == time


def test_it_goes_on_slowly_until_the_machine_has_caught_up() -> None:
    machine, passed = 100.0, 0.0
    clock = SteadyClock(lambda: machine, lambda: passed)
    assert clock() == 100.0
    machine = 90.0
    times = []
    for _ in range(6):
        passed, machine = passed + 4.0, machine + 4.0
        times.append(clock())
    assert times == [102.0, 104.0, 106.0, 108.0, 110.0, 114.0]
