"""What the policy's server, or a judge's, may do. It is asked again, or said; it is never a verdict."""

from __future__ import annotations

import signal
from dataclasses import replace

import httpx

from tests.sandbox.hosts import BoxHost
from woodshed.cluster.supervisor import free_ports
from woodshed.grading.settings import JudgeSettings, MonitorSettings
from woodshed.harness.settings import HarnessSettings, LimitSettings, RetrySettings
from woodshed.monitors.judge import Judge
from woodshed.sandbox.opening import open_pool
from woodshed.sandbox.remote.placement import Local, Placement
from woodshed.sandbox.settings import SandboxSettings

from .ground import MEND, Found, Ground, cause, found, run
from .hosts import HERE, training

CHAT = "chat/completions"


@cause("endpoint", "rewarded", source="box", backends=HERE)
async def fails_for_a_moment(at: Ground) -> Found:
    """one request is answered with status 500, the next as ever: the episode counts, and in full time"""

    def fail(number: int) -> None:
        if number == 0:
            at.server.fail("error", only=CHAT, times=1)

    return await at.episode(run(MEND), turn=fail)


@cause("endpoint", "masked", backends=HERE)
async def is_down(at: Ground) -> Found:
    """nobody listens"""
    (port,) = free_ports(1)
    return await at.episode(run(MEND), base_url=f"http://127.0.0.1:{port}", patience=0.2)


@cause("endpoint", "masked", backends=HERE)
async def answers_500(at: Ground) -> Found:
    """every request is answered with status 500"""
    at.server.fail("error", only=CHAT)
    return await at.episode(run(MEND))


@cause("endpoint", "masked", backends=HERE)
async def refuses(at: Ground) -> Found:
    """every request is refused"""
    at.server.fail("refuses")
    return await at.episode(run(MEND), patience=0.2)


@cause("endpoint", "masked", backends=HERE)
async def answers_garbage(at: Ground) -> Found:
    """answers are no JSON"""
    at.server.fail("no json", only=CHAT)
    return await at.episode(run(MEND))


@cause("endpoint", "masked", backends=HERE)
async def answers_no_reply(at: Ground) -> Found:
    """answers are JSON, and no chat completions"""
    at.server.fail("no reply", only=CHAT)
    return await at.episode(run(MEND))


@cause("endpoint", "masked", backends=HERE)
async def opens_garbage(at: Ground) -> Found:
    """what should open a trajectory is answered with garbage"""
    at.server.fail("no json", only="admin")
    return await at.episode(run(MEND), patience=0.2)


@cause("endpoint", "masked", backends=HERE)
async def finishes_garbage(at: Ground) -> Found:
    """what should give the recorded tokens is answered with garbage"""
    at.server.fail("no json", only="/finish")
    return await at.episode(run(MEND), patience=0.2)


@cause("endpoint", "masked", backends=HERE)
async def is_silent(at: Ground) -> Found:
    """requests are taken and not answered, until the episode's time is up"""
    at.server.fail("silent", only=CHAT)
    async with httpx.AsyncClient(timeout=httpx.Timeout(0.5)) as client:
        short = replace(at, client=client, retry=RetrySettings(attempts=100, first_delay=0.0))
        limits = LimitSettings(wall_seconds=2.0)
        return await short.episode(run(MEND), harness=HarnessSettings(limits=limits))


@cause("endpoint", "stopped", backends=HERE)
async def fails_for_ever(at: Ground) -> Found:
    """every request is answered with status 500, while a run trains"""
    at.server.fail("error", only=CHAT)
    return await training(at)


@cause("endpoint", "rewarded", source="box", backends=HERE)
async def judge_is_down(at: Ground) -> Found:
    """the judge's server does not answer: the episode counts, and the judge says nothing of it"""
    (port,) = free_ports(1)
    settings = JudgeSettings(base_url=f"http://127.0.0.1:{port}", model="judge", timeout=2.0)
    judge = Judge(settings, "none", at.folder / "judge.jsonl")
    try:
        done = await at.trajectory(run(MEND), judge=judge, monitors=MonitorSettings(judge="flag"))
    finally:
        await judge.close()
    assert judge.counts["failed"] == 1 and not done.findings
    return found(done)


@cause("host", "tried again, then rewarded", backends=HERE)
async def box_host_killed(at: Ground) -> Found:
    """the other machine that has the box is killed in the middle of an episode"""
    host = BoxHost(at.folder / "host").wait()
    placement = Placement([host.client(), Local(open_pool(SandboxSettings(root=None)))], "namespace")

    def kill(number: int) -> None:
        if number == 1 and host.process.poll() is None:
            host.process.send_signal(signal.SIGKILL)
            host.process.wait()

    try:
        return await at.episode(run(MEND), run("true"), turn=kill, backend=placement)
    finally:
        await placement.close()
        host.stop(signal.SIGKILL)
