"""A process whose event loop stands still says where, and ends; one that only waits, or was stopped, does not."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from proxy.process.notify import Notifier
from proxy.workers.watch import Watch

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
import asyncio, re, sys, time
import uvloop
from proxy.process import watchdog
watchdog.STUCK_S = 0.4

async def main():
    watch = watchdog.Watchdog()
    watch._every_s = 0.1
    watch.start()
    await asyncio.sleep(0.3)
    print("turns", flush=True)
    {fault}
    watch.stop()

uvloop.run(main())
print("ended well", flush=True)
"""
FAULTS = {
    "python": "while True: pass",
    "a library that holds the interpreter's lock": "re.match(r'(a+)+b', 'a' * 60)",
    "a number that somebody claimed": "sum(range(10 ** 17))",
}


def start(fault: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(fault=fault)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize("kind", FAULTS)
def test_a_loop_that_works_without_a_turn_ends_its_process_with_its_stacks(kind: str) -> None:
    with start(FAULTS[kind]) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGPROF
    assert "turns" in out
    assert "in main" in err, "the stacks tell where it was"


@pytest.mark.parametrize("fault", ["time.sleep(1.5)", "await asyncio.sleep(1.5)"])
def test_waiting_is_no_work(fault: str) -> None:
    with start(fault) as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert "ended well" in out


def test_a_process_that_was_stopped_goes_on() -> None:
    with start("await asyncio.sleep(0.5)") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "turns\n"
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        # Longer than the loop may be at work.
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=1.0)
        process.send_signal(signal.SIGCONT)
        assert process.wait(timeout=60) == 0


class Speaker:
    number = 0
    pid = 7
    heard = 0


class Machine:
    """A worker's process, second by second."""

    def __init__(self) -> None:
        self.speaker = Speaker()
        self.stopped = False
        self.ticks = 0.0
        self.now = 100.0
        self.watch = Watch(lambda pid: (self.stopped, self.ticks))

    def until_lost(
        self, limit: int = 120, *, talks: bool = False, works: bool = True, pause_s: float = 1.0
    ) -> int | None:
        """Return after how many looks the worker is given up; None when it is not."""
        for look in range(limit):
            self.speaker.heard += talks
            self.ticks += os.sysconf("SC_CLK_TCK") * works
            self.now += pause_s
            if self.watch.lost([self.speaker], self.now):
                return look
        return None


def test_a_worker_at_work_that_says_nothing_for_ten_seconds_is_lost() -> None:
    assert Machine().until_lost() == 10


def test_one_that_says_nothing_and_does_nothing_is_lost_later() -> None:
    assert Machine().until_lost(works=False) == 30


def test_one_that_is_heard_is_never_lost() -> None:
    assert Machine().until_lost(talks=True) is None


def test_one_that_is_stopped_is_waited_for_and_has_its_time_afterwards() -> None:
    machine = Machine()
    machine.stopped = True
    assert machine.until_lost() is None
    machine.stopped = False
    assert machine.until_lost() == 9


def test_after_a_sleep_that_all_shared_nobody_is_lost() -> None:
    machine = Machine()
    assert machine.until_lost(limit=5) is None
    assert machine.until_lost(limit=20, pause_s=3_600.0) is None


@pytest.mark.parametrize("abstract", [False, True])
def test_the_service_manager_hears_over_any_kind_of_socket(abstract: bool, tmp_path: Path) -> None:
    name = f"@trimtab-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name[1:] if abstract else name)
        manager.settimeout(5)
        environment = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "10000000", "WATCHDOG_PID": str(os.getpid())}
        notifier = Notifier.take(environment)
        assert environment == {}, "no child speaks in our name"
        assert notifier.watchdog_s == 10.0
        notifier.say("READY=1", "STATUS=fine")
        assert manager.recv(100) == b"READY=1\nSTATUS=fine"


def test_whoever_was_not_asked_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert Notifier.take({}).watchdog_s is None
    assert Notifier.take({"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}).watchdog_s is None
    Notifier.take({}).say("READY=1")
    assert not caplog.records
    gone = Notifier.take({"NOTIFY_SOCKET": "/nowhere/at/all"})
    for _ in range(3):
        gone.say("READY=1")
    assert len(caplog.records) == 1


async def test_a_whole_proxy_says_when_it_is_ready_lives_reloads_and_stops(tmp_path: Path) -> None:
    path = tmp_path / "notify"
    (tmp_path / "trimtab.yaml").write_text("upstreams: [http://127.0.0.1:1]\ndrain: {grace_s: 0}\n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        manager.setblocking(False)
        heard: list[str] = []

        async def hear(wanted: str) -> None:
            async with asyncio.timeout(30):
                while wanted not in heard:
                    heard.extend((await asyncio.get_running_loop().sock_recv(manager, 1_000)).decode().split("\n"))

        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "proxy.cli", "serve", "--port", "0", "--admin-port", "0",
            cwd=tmp_path, stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(ROOT), "NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "200000",
                 "XDG_STATE_HOME": str(tmp_path)},
        )  # fmt: skip
        try:
            await hear("READY=1")
            heard.clear()
            await hear("WATCHDOG=1")
            process.send_signal(signal.SIGHUP)
            await hear("RELOADING=1")
            await hear("READY=1")
            process.send_signal(signal.SIGTERM)
            await hear("STOPPING=1")
            assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
