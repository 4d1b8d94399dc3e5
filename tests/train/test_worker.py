"""The trainer process is killed with SIGKILL wherever it happens to be, and every batch is trained exactly once."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from s3 import S3Server
from waiting import ended, run_to_end, wait_until

from woodshed.cluster.supervisor import Program, Supervisor
from woodshed.policy.decoder import Decoder
from woodshed.policy.formats import get_format
from woodshed.policy.hf import Policy, save_policy
from woodshed.policy.tokenizer import Tokenizer, train_bpe
from woodshed.train.batch import BatchError
from woodshed.train.checkpoint import CheckpointError, latest_checkpoint
from woodshed.train.settings import TrainSettings
from woodshed.train.worker import Worker, batch_path
from woodshed.train.worker_config import WorkerConfig
from woodshed.weights.chain import verify_chain
from woodshed.weights.errors import VersionConflict
from woodshed.weights.follow import Follower
from woodshed.weights.settings import WeightSettings

from .conftest import CONFIG

STEPS = 8
TIMED = {"seconds", "idle_seconds", "busy_seconds", "time", "versions_skipped"}


@pytest.fixture(scope="module")
def policy_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    chat = get_format("compact")
    tokenizer = Tokenizer(train_bpe(["def f(x):\n    return x\n" * 9], 300, chat.special_tokens))
    config = type(CONFIG)(**{**CONFIG.__dict__, "vocab_size": tokenizer.vocab_size})
    folder = tmp_path_factory.mktemp("policy") / "start"
    return save_policy(Policy(Decoder(config, seed=5), tokenizer, chat, config), folder)


def configure(
    root: Path, policy: Path, make_batch, *, steps: int | None = STEPS, batches: int = STEPS, **kw
) -> WorkerConfig:
    config = WorkerConfig(
        policy=policy,
        batches=root / "batches",
        weights=root / "weights",
        checkpoints=root / "checkpoints",
        metrics=root / "metrics" / "trainer.jsonl",
        steps=steps,
        poll_seconds=0.002,
        train=TrainSettings(fsync=False),
        chain=WeightSettings(fsync=False, anchor_every=4, keep_anchors=0),
        **kw,
    )
    for step in range(1, batches + 1):
        make_batch(seed=step, step=step, parts=("rl", "ce")).save(batch_path(config.batches, step))
    return config


def outcome(config: WorkerConfig) -> tuple[dict[str, bytes], list[dict]]:
    """Final weights of the chain and of the checkpoint (which must agree), and the metrics without timings."""
    verify_chain(config.weights)
    got, checkpoint = Follower(config.weights).poll(), latest_checkpoint(config.checkpoints)
    assert got is not None and checkpoint is not None and got[0] == checkpoint.step
    for name, tensor in got[1].items():
        assert torch.equal(tensor, checkpoint.model[name]), name
    lines = [json.loads(line) for line in config.metrics.read_text().splitlines()]
    metrics = [{k: v for k, v in line.items() if k not in TIMED} for line in lines]
    return {k: v.numpy().tobytes() for k, v in got[1].items()}, metrics


@pytest.fixture(scope="module")
def uninterrupted(policy_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("uninterrupted")


def run_whole(root: Path, policy: Path, make_batch) -> WorkerConfig:
    config = configure(root, policy, make_batch)
    if not config.metrics.exists():
        Worker(config).run()
    return config


def test_one_step_per_batch(uninterrupted: Path, policy_dir: Path, make_batch) -> None:
    config = run_whole(uninterrupted, policy_dir, make_batch)
    _, metrics = outcome(config)
    assert [m["step"] for m in metrics] == list(range(1, STEPS + 1))
    assert [m["batch"] for m in metrics] == [f"b{s}" for s in range(1, STEPS + 1)]
    first = Follower(config.weights).poll(up_to=0)
    assert first is not None
    lines = [json.loads(line) for line in config.metrics.read_text().splitlines()]
    assert all(line["idle_seconds"] >= 0 and line["busy_seconds"] > 0 for line in lines)


def test_the_trainer_holds_its_lock_while_it_computes(
    tmp_path: Path, policy_dir: Path, make_batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configure(tmp_path, policy_dir, make_batch, steps=2, lock=tmp_path / "lock")
    worker, seen = Worker(config), []

    def is_free() -> bool:
        with (tmp_path / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    def watched(name: str, function):
        def call(*args):
            seen.append((name, is_free()))
            return function(*args)

        return call

    monkeypatch.setattr(worker.trainer, "step", watched("step", worker.trainer.step))
    monkeypatch.setattr(worker, "_wait", watched("wait", worker._wait))
    worker.run()
    assert seen == [("wait", True), ("step", False)] * 2 and is_free()


def test_a_chain_in_a_bucket_is_the_same_chain(
    tmp_path: Path, uninterrupted: Path, policy_dir: Path, make_batch, s3: S3Server
) -> None:
    expected = outcome(run_whole(uninterrupted, policy_dir, make_batch))
    config = configure(tmp_path, policy_dir, make_batch)
    config = config.model_copy(update={"weights": f"s3://woodshed/{tmp_path.name}", "steps": 3})
    Worker(config).run()
    config = config.model_copy(update={"steps": STEPS})
    Worker(config).run()
    assert outcome(config) == expected


DRIVER = """
import os, random, signal, sys, time
import torch._dynamo  # The first optimizer would import it, in every child again.
from woodshed.train.worker import main
config, checkpoints, kills = sys.argv[1], sys.argv[2], 0
rng = random.Random(7)
def newest():
    return max(os.listdir(checkpoints), default="") if os.path.isdir(checkpoints) else ""
while True:
    before, child = newest(), os.fork()
    if child == 0:
        os._exit(main([config]))
    if kills % 4 != 3:  # Every fourth kill may hit the start, the others hit the work after a step of progress.
        while newest() == before and os.waitpid(child, os.WNOHANG) == (0, 0):
            time.sleep(0.0005)
    time.sleep(rng.uniform(0, 0.03))
    try:
        os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
    except (ProcessLookupError, ChildProcessError):
        break
    if os.WIFEXITED(status):
        sys.exit(os.WEXITSTATUS(status)) if os.WEXITSTATUS(status) else None
        break
    kills += 1
print(kills)
sys.exit(main([config]))
"""


@pytest.mark.slow
def test_sigkill_anywhere(tmp_path: Path, uninterrupted: Path, policy_dir: Path, make_batch) -> None:
    """Real kills of real processes; the parent has imported everything, so that the kills hit the work."""
    expected = outcome(run_whole(uninterrupted, policy_dir, make_batch))
    config = configure(tmp_path, policy_dir, make_batch)
    path = tmp_path / "config.json"
    path.write_text(config.model_dump_json())
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", DRIVER, str(path), str(config.checkpoints)]
    done = run_to_end(command, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 2, "the kills did not hit the work"
    assert outcome(config) == expected
    assert not [p for p in config.checkpoints.iterdir() if p.name.startswith(".")]


@pytest.mark.parametrize("lost", ["nothing", "metrics", "chain"])
def test_what_is_behind_the_checkpoint_is_brought_up(
    tmp_path: Path, uninterrupted: Path, policy_dir: Path, make_batch, lost: str
) -> None:
    """The three states that a kill can leave after a checkpoint."""
    whole = run_whole(uninterrupted, policy_dir, make_batch)
    config = configure(tmp_path, policy_dir, make_batch, steps=STEPS - 2)
    Worker(config).run()
    if lost in ("metrics", "chain"):
        lines = config.metrics.read_text().splitlines(keepends=True)
        config.metrics.write_text("".join(lines[:-1]) + lines[-1][:20])
    if lost == "chain":
        shutil.rmtree(Path(config.weights) / f"v{STEPS - 2:06d}")
    config = config.model_copy(update={"steps": STEPS})
    Worker(config).run()
    assert outcome(config) == outcome(whole)


def test_a_damaged_checkpoint_costs_one_step_and_changes_nothing(
    tmp_path: Path, uninterrupted: Path, policy_dir: Path, make_batch, caplog: pytest.LogCaptureFixture
) -> None:
    """The step is trained again from the same batch and publishes the same bytes under the same version."""
    whole = run_whole(uninterrupted, policy_dir, make_batch)
    config = configure(tmp_path, policy_dir, make_batch, steps=STEPS - 2)
    Worker(config).run()
    (config.checkpoints / f"step-{STEPS - 2:06d}" / "model.safetensors").write_bytes(b"torn")
    config = config.model_copy(update={"steps": STEPS})
    Worker(config).run()
    assert outcome(config) == outcome(whole)
    assert "skipped a checkpoint" in caplog.text


@pytest.mark.parametrize("lost", ["damaged", "missing"])
def test_without_a_checkpoint_and_the_batches_before_it_the_trainer_says_so(
    tmp_path: Path, policy_dir: Path, make_batch, lost: str
) -> None:
    """It would wait for a batch that is never written again."""
    config = configure(tmp_path, policy_dir, make_batch, steps=4, batches=4, delete_batches=True)
    Worker(config).run()
    for path in config.checkpoints.glob("step-*/model.safetensors"):
        path.write_bytes(b"torn")
    if lost == "missing":
        shutil.rmtree(config.checkpoints)
    with pytest.raises(CheckpointError, match=r"version 4 .* after step 0, and the batch of step 1 was deleted"):
        Worker(config.model_copy(update={"steps": 6}))


def test_other_weights_under_a_published_version_are_refused(tmp_path: Path, policy_dir: Path, make_batch) -> None:
    config = configure(tmp_path, policy_dir, make_batch, steps=2)
    Worker(config).run()
    shutil.rmtree(config.checkpoints)
    make_batch(seed=77, step=1, parts=("rl", "ce")).save(batch_path(config.batches, 1))
    # A publisher that is slower than a step leaves out version 1, then or now; it is refused just the same.
    with pytest.raises(VersionConflict, match=r"version [12] (was already published|is not in the chain)"):
        Worker(config).run()


def test_batches_that_do_not_belong_are_refused(tmp_path: Path, policy_dir: Path, make_batch) -> None:
    config = configure(tmp_path, policy_dir, make_batch, batches=1)
    make_batch(step=1).save(batch_path(config.batches, 2))
    worker = Worker(config)
    with pytest.raises(BatchError, match="header says step 1"):
        worker.run()
    again = make_batch(step=2)
    again.id = "b1"
    again.save(batch_path(config.batches, 2))
    with pytest.raises(BatchError, match="already trained"):
        worker.run()
    worker = Worker(config.model_copy(update={"steps": 2}))  # a restart knows, too
    with pytest.raises(BatchError, match="already trained"):
        worker.run()


def test_old_batches_are_deleted_but_not_what_a_fall_back_needs(tmp_path: Path, policy_dir: Path, make_batch) -> None:
    config = configure(tmp_path, policy_dir, make_batch, delete_batches=True)
    Worker(config).run()
    assert sorted(p.name for p in config.batches.iterdir()) == [batch_path(config.batches, STEPS).name]


def test_command_line_waits_for_batches_and_ends_on_sigterm(tmp_path: Path, policy_dir: Path, make_batch) -> None:
    config = configure(tmp_path, policy_dir, make_batch, steps=None, batches=0)
    path = tmp_path / "config.json"
    path.write_text(config.model_dump_json())
    env = {**os.environ, "OMP_NUM_THREADS": "1"}

    def done(step: int) -> bool:
        return config.metrics.exists() and len(config.metrics.read_text().splitlines()) == step

    process = subprocess.Popen([sys.executable, "-m", "woodshed.train.worker", str(path)], env=env)
    try:
        for step in (1, 2):
            make_batch(seed=step, step=step, parts=("rl",)).save(batch_path(config.batches, step))
            wait_until(lambda n=step: done(n), f"step {step}", process)
        process.send_signal(signal.SIGTERM)
        assert ended(process) == 0
    finally:
        process.kill()
        process.wait()
    assert Follower(config.weights).poll() is not None


def test_a_terminated_trainer_with_steps_left_is_started_again(tmp_path: Path, policy_dir: Path, make_batch) -> None:
    """A supervisor takes status 0 for the end of training, and starts the trainer again otherwise."""
    config = configure(tmp_path, policy_dir, make_batch, steps=2, batches=1)
    path = tmp_path / "config.json"
    path.write_text(config.model_dump_json())
    supervisor = Supervisor()
    program = Program("trainer", ["-m", "woodshed.train.worker", str(path)], tmp_path / "log")
    supervisor.start(program)
    try:
        wait_until(config.metrics.exists, "the first step", program.process)
        assert program.process is not None
        program.process.terminate()
        assert ended(program.process) == 128 + signal.SIGTERM
        assert supervisor.check() == ["trainer"]
        make_batch(seed=2, step=2, parts=("rl", "ce")).save(batch_path(config.batches, 2))
        wait_until(lambda: not supervisor.running("trainer"), "the end of the trainer")
        assert supervisor.check() == [] and program.done
    finally:
        supervisor.stop()


def test_no_steps_publish_the_policy_as_it_is(tmp_path: Path, policy_dir: Path, make_batch) -> None:
    config = configure(tmp_path, policy_dir, make_batch, steps=0)
    Worker(config).run()
    newest = Follower(config.weights).poll()
    assert newest is not None and newest[0] == 0 and not config.metrics.exists()


def test_the_last_version_is_published_where_no_step_is_left(tmp_path: Path, policy_dir: Path, make_batch) -> None:
    """A kill after the last checkpoint and before its version, which the rollout side waits for."""
    config = configure(tmp_path, policy_dir, make_batch, steps=2, batches=2)
    Worker(config).run()
    before, _ = outcome(config)
    shutil.rmtree(Path(config.weights) / "v000002")
    newest = Follower(config.weights).poll()
    assert newest is not None and newest[0] == 1
    worker = Worker(config)
    newest = Follower(config.weights).poll()
    assert newest is not None and newest[0] == 2, "it is there before the worker waits for anything"
    worker.run()
    assert outcome(config)[0] == before
