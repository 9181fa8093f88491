"""Looking at simulated disks without a step concerns who looks, and nobody else."""

from pathlib import Path
from random import Random

from tools.simulation.simulated_os.disk import Disk
from tools.simulation.simulated_os.fibers import ProcessLifetime, Scheduler
from tools.simulation.simulated_os.kernel import Faults, Kernel


def test_steps_of_others_during_a_quiet_look_are_in_the_schedule(tmp_path: Path) -> None:
    """A directory made meanwhile is a step, and the disk records it."""
    scheduler = Scheduler(Random(1))
    steps: list[str] = []
    scheduler.on_step = steps.append
    kernel = Kernel(scheduler, Faults())
    disk = Disk(tmp_path / "disk")
    kernel.disks.append(disk)
    made = disk.root / "made"

    with kernel.installed(), kernel.quiet():
        other = scheduler.spawn("other", made.mkdir, ProcessLifetime("other"))
        scheduler.block(lambda: other.has_ended)

    assert made.is_dir()
    assert [f"mkdir {made}"] == steps
    assert disk.directory(str(made)) is not None
