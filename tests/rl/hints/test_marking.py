"""Which messages are marked, what the teacher reads token by token, and a step of training on real episodes."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.gateway.parts import TOKENIZERS
from woodshed.engine.local import LocalEngine
from woodshed.gateway.rendering import Rendering
from woodshed.harness.loop import registry_for
from woodshed.harness.settings import HarnessSettings, LimitSettings, OutputSettings
from woodshed.policy.config import DecoderConfig
from woodshed.policy.decoder import Decoder, causal_attend
from woodshed.policy.formats import FORMATS, get_format
from woodshed.policy.hf import Policy, load_policy, save_policy
from woodshed.recipe.load import RecipeError, load_recipe
from woodshed.record.trajectory import Trajectory
from woodshed.rl.algorithms import load_algorithm
from woodshed.rl.batching import BatchStats, build_batch, is_flat
from woodshed.rl.hints import Hinter, HintSettings, HintStats, renderer
from woodshed.rl.hints.replies import places_of
from woodshed.train.batch import TrainBatch
from woodshed.train.settings import HintKlSettings, TrainSettings
from woodshed.train.trainer import Trainer
from woodshed.train.worker import Worker, batch_path
from woodshed.train.worker_config import WorkerConfig
from woodshed.weights.settings import WeightSettings

from .episodes import HERMES, TASKS, Call, episode, forked, scripted

DEFAULT = load_algorithm("mean_baseline", budget=10)
SCRIPT: tuple[list[Call], ...] = (
    [("read_file", {"path": "ridge.py"})],
    [("bash", {"command": "one"})],
    [("read_file", {})],
    [("finish", {"message": "done"})],
)


def hinter(format: str = "hermes", role: str = "user", **settings: Any) -> Hinter:
    render = renderer(get_format(format), TOKENIZERS[format], role)
    chosen = HintSettings(**{"weight": 0.5, "role": role, **settings})
    return Hinter(
        chosen,
        TASKS,
        tools={"read_file": "read_file(path)", "finish": "finish([message])"},
        render=render,
        max_positions=20_000,
    )


@pytest.mark.parametrize(
    ("format", "role"),
    [
        *((f, "user") for f in FORMATS if f != "compact"),
        ("hermes", "system"),
        ("llama3", "system"),
        ("compact", "tool"),
    ],
)
def test_the_teacher_reads_the_conversation_with_one_more_message(format: str, role: str) -> None:
    """Its tokens are those that the gateway would have given a conversation with that message in it."""
    settings = HERMES
    if format == "compact":
        settings = HERMES.model_copy(
            update={"tools": ("read_file", "edit_line", "finish"), "output": OutputSettings(separator="")}
        )
    run = scripted(*SCRIPT, settings=settings, format=format)
    assert len(run.messages) >= 8, run.messages
    hints, stats = hinter(format, role), HintStats()
    (marked,) = hints.mark(run, stats)
    texts = {
        1: "Hint: There is no tool 'bash'. The tools are: read_file(path); finish([message])",
        2: "Hint: Write such a call as: read_file(path)",
    }
    assert len(marked) == 2 and stats.messages == 2
    (segment,) = run.segments
    rendering, tools = Rendering(get_format(format), TOKENIZERS[format]), registry_for(settings).schemas()
    replies = [i for i, m in enumerate(run.messages) if m["role"] == "assistant"]
    for number, message in zip((1, 2), marked):
        before = run.messages[: replies[number]]
        context = message.context.tolist()
        hint = TOKENIZERS[format].decode(context[sum(map(len, _ids(rendering, before, tools)[:-1])) :])
        assert texts[number] in hint
        text = hint[hint.index("Hint: ") :]
        for end in ("<|im_end|>", "<|eot_id|>", "<call>"):
            text = text.split(end)[0]
        said = {"role": role, "content": text, **({"tool_call_id": "x"} if role == "tool" else {})}
        wanted = [i for ids in _ids(rendering, [*before, said], tools) for i in ids]
        assert context == wanted
        assert segment.sampled[message.start : message.end].all() and not segment.sampled[message.start - 1]
        assert segment.tokens[message.end - 1] in rendering.stop_ids


def _ids(rendering: Rendering, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> list[list[int]]:
    """Ids of each part of a conversation, the beginning of the policy's turn as the last."""
    return [list(ids) for _, _, ids in rendering.parts(messages, 0, tools, opened=False)]


def test_a_role_that_the_format_cannot_show_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"rl\.hints\.role: chat format compact shows no system messages"):
        hinter("compact", "system")
    with pytest.raises(ValueError, match=r"rl\.hints\.role: in chat format compact a user message begins a convers"):
        hinter("compact", "user")
    (tmp_path / "r.toml").write_text(
        'name = "r"\n[harness]\noutput = { separator = "" }\n[rl.hints]\nrole = "system"\n'
    )
    assert load_recipe(tmp_path / "r.toml").rl.hints.weight == 0
    for given, said in (
        (["rl.hints.weight=0.1"], "compact.*renders no system"),
        (["rl.hints.weight=0.1", 'rl.hints.role="user"'], "a user message begins a conversation"),
        (["learn.demonstrations.hinted=0.5"], "compact.*renders no system"),
        (["rl.hints.weight=-1"], "weight"),
        (['rl.hints.triggers=["unknown_tols"]'], "did you mean 'unknown_tool'"),
        (["rl.hints.per_trajectory=0"], "per_trajectory"),
        (['train.hint_kl.form="sampled"', "train.hint_kl.top_k=4"], "top_k"),
    ):
        with pytest.raises(RecipeError, match=said):
            load_recipe(tmp_path / "r.toml", given)


def group_of(*rewards: float) -> list[Trajectory]:
    run = scripted(*SCRIPT)
    return [replace(run, id=f"t{i}", rewards={"outcome": reward}) for i, reward in enumerate(rewards)]


def built(group: list[Trajectory], hints: Hinter | None, **fields: Any) -> tuple[TrainBatch, BatchStats]:
    return build_batch([group], DEFAULT, step=1, batch_id="b", generation_budget=50, hints=hints, **fields)


def test_marked_tokens_are_weighed_beside_the_advantage() -> None:
    group = group_of(1.0, 0.0)
    batch, stats = built(group, hinter())
    assert batch.denominators == {"rl": 100.0, "hint_kl": 100.0} and batch.hinted is not None and len(batch.hinted) == 4
    weight = batch.weights["hint_kl"]
    assert set(np.unique(weight).tolist()) == {0.0, 0.5} and (weight != 0).sum() == stats.hints.tokens
    assert (batch.weights["rl"][weight != 0] != 0).all(), "the policy gradient stays"
    assert stats.hints.found == {"unknown_tool": 2, "invalid_arguments": 2} | dict.fromkeys(
        set(stats.hints.found) - {"unknown_tool", "invalid_arguments"}, 0
    )
    assert stats.hints.rate["unknown_tool"] == 1.0 and stats.hints.rate["no_change"] == 0.0
    json.dumps(asdict(stats))
    bare, off = built(group, hinter(weight=0.0))
    none, _ = built(group, None)
    assert bare.hinted is None and off.hints.found == stats.hints.found, (
        "with a weight of 0 they are counted all the same"
    )
    np.testing.assert_array_equal(bare.weights["rl"], none.weights["rl"])
    assert bare.denominators == none.denominators == {"rl": 100.0}


def test_who_gets_hints() -> None:
    equal = group_of(1.0, 1.0)
    batch, stats = built(equal, hinter())
    assert stats.trained == 2 and stats.zero_groups == 1 and not batch.weights["rl"].any(), "no advantage, only hints"
    lost = [*group_of(1.0, 0.0), replace(equal[0], id="lost", status="infra_error", rewards={})]
    batch, stats = built(lost, hinter())
    assert "lost" not in batch.trajectories and stats.hints.episodes == 2
    batch, stats = built(group_of(1.0, 0.0, 1.0), hinter(), left_out=lambda t: t.id == "t2")
    assert batch.trajectories == ["t0", "t1"] and stats.hints.episodes == 2 and stats.quarantined == 1
    batch, stats = built(group_of(1.0), hinter())
    assert len(batch) == 0 and stats.unpaired == 1 and stats.hints.episodes == 0
    batch, stats = built(group_of(1.0, 0.0), hinter(per_trajectory=1))
    assert len(batch.hinted or ()) == 2 and stats.hints.over_limit == 2
    short = hinter()
    whole, _ = built(group_of(1.0, 0.0), hinter())
    assert whole.hinted is not None
    short.max_positions = int(whole.hinted.lengths.max()) - 1
    batch, stats = built(group_of(1.0, 0.0), short)
    assert stats.hints.too_long == 2 and stats.hints.messages == 2, "the later message is too long with its hint"
    short.max_positions += 1
    assert built(group_of(1.0, 0.0), short)[1].hints.too_long == 0
    later_first = hinter(per_trajectory=1, triggers=("invalid_arguments", "unknown_tool"))
    batch, _ = built(group_of(1.0, 0.0), later_first)
    assert batch.hinted is not None and batch.hinted.at[0] == whole.hinted.at[0], "the earliest message"


def test_hints_have_a_share_of_the_sampled_tokens() -> None:
    """Each episode has two marked messages; first messages come first, and what does not fit is not trained."""
    group = group_of(1.0, 1.0, 1.0)
    whole, stats = built(group, hinter())
    assert whole.hinted is not None and (stats.hints.messages, stats.hints.over_share) == (6, 0)
    first, second = whole.hinted.targets[:2].tolist()
    sampled = stats.sampled_tokens
    assert second < first
    for wanted, most in ((1, first), (3, 3 * first), (5, 3 * first + 2 * second), (1, first - 1), (0, second - 1)):
        batch, stats = built(group, hinter(token_share=(most + 0.5) / sampled))
        assert batch.hinted is not None or not wanted
        starts = [] if batch.hinted is None else batch.hinted.targets.tolist()
        assert len(starts) == stats.hints.messages == wanted and stats.hints.over_share == 6 - wanted
        assert sum(starts) == stats.hints.tokens == (batch.weights["hint_kl"] != 0).sum() if wanted else not len(batch)
        assert stats.trained == min(wanted, 3), "an episode without a hint has nothing to learn here"


def test_dynamic_sampling_keeps_what_is_trained_on_hints_alone() -> None:
    def flat(group: list[Trajectory], hints: Hinter | None) -> bool:
        return is_flat(group, DEFAULT, lambda t: t.id == "t2", hints)

    equal = group_of(0.0, 0.0)
    assert built(equal, hinter())[1].trained == 2 and not flat(equal, hinter())
    assert flat(equal, None) and flat(equal, hinter(weight=0.0)) and flat(equal, hinter(triggers=["no_change"]))
    assert not flat(group_of(0.0, 1.0), None) and flat(group_of(0.0, 0.0, 1.0), None)


def test_a_summary_that_is_not_trained_gets_no_hint() -> None:
    """Replies 1 and 2 get hints; as summaries without a weight they would keep a group that teaches nothing."""
    unknown, invalid = ((p.segment, p.start, p.end) for p in places_of(scripted(*SCRIPT))[1:3])
    hints = hinter(per_trajectory=1)
    hints.summaries = False
    for summaries, marked in (([unknown, invalid], 0), ([unknown], 2)):
        group = [replace(trajectory, summaries=summaries) for trajectory in group_of(1.0, 1.0)]
        batch, stats = built(group, hints, train_summaries=False)
        assert (stats.trained, stats.hints.messages, len(batch.hinted or ())) == (marked, marked, marked)
        assert is_flat(group, DEFAULT, lambda _: False, hints) == (not marked)
        assert bool(batch.weights["hint_kl"].any()) == bool(marked)


def test_a_fork_gets_hints_for_its_own_replies_only() -> None:
    """The second reply, an unknown tool, is repeated from the root; the third, an invalid call, is the fork's own."""
    root = scripted(*SCRIPT)
    ours, theirs = HintStats(), HintStats()
    (own,), (whole,) = hinter().mark(forked(root, 2), ours), hinter().mark(root, theirs)
    assert (ours.unplaced, ours.messages, ours.found["unknown_tool"]) == (0, 1, 0)
    assert ours.found["invalid_arguments"] == theirs.found["invalid_arguments"] == theirs.found["unknown_tool"] == 1
    assert (own[0].start, own[0].end) == (whole[1].start, whole[1].end)
    np.testing.assert_array_equal(own[0].context, whole[1].context)


SETTINGS = HarnessSettings(
    tools=("read_file", "edit_line", "finish"),
    system_prompt="",
    plain_message_ends=False,
    limits=LimitSettings(turns=4, turn_tokens=10, context_tokens=220),
    output=OutputSettings(separator="", error_detail=False, chars=200),
)


@pytest.fixture(scope="module")
def random_episodes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[Trajectory]]]:
    """A random policy, and the episodes of our harness with it, behind the gateway and the engine."""
    tokenizer, chat = TOKENIZERS["compact"], get_format("compact")
    config = DecoderConfig(
        vocab_size=tokenizer.vocab_size,
        d_model=32,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        head_dim=16,
        d_ff=64,
        max_positions=256,
    )
    folder = save_policy(
        Policy(Decoder(config, seed=3), tokenizer, chat, config), tmp_path_factory.mktemp("policy") / "start"
    )
    made: list[list[Trajectory]] = []
    for number in range(2):
        group = []
        for member in range(3):
            engine = LocalEngine(load_policy(folder).decoder)
            sampling = {"temperature": 1.0, "seed": 10 * number + member}
            run = episode(
                engine,
                "compact",
                tokenizer,
                SETTINGS,
                name=f"{number}-{member}",
                reward=float(member == 0),
                sampling=sampling,
            )
            group.append(replace(run, group=str(number)))
        made.append(group)
    return folder, made


def test_a_step_on_real_episodes_of_a_random_policy(tmp_path: Path, random_episodes: Any) -> None:
    folder, episodes = random_episodes
    hints = hinter("compact", "tool", weight=1.0)
    hints.max_positions = 256
    batch, stats = build_batch(
        episodes, DEFAULT, step=1, batch_id="b1", generation_budget=40, hints=hints, kl_beta=0.01
    )
    assert stats.hints.episodes == 6 and stats.hints.messages > 0 and stats.hints.unplaced == 0
    assert stats.hints.found["unknown_tool"] + stats.hints.found["invalid_arguments"] > 0
    lines = []
    for name in ("one", "again"):
        again, _ = build_batch(
            episodes, DEFAULT, step=1, batch_id="b1", generation_budget=40, hints=hints, kl_beta=0.01
        )
        root = tmp_path / name
        again.save(batch_path(root / "batches", 1))
        batch.save(batch_path(root / "first", 1))
        assert batch_path(root / "batches", 1).read_bytes() == batch_path(root / "first", 1).read_bytes()
        config = WorkerConfig(
            policy=folder,
            batches=root / "batches",
            weights=root / "weights",
            checkpoints=root / "checkpoints",
            metrics=root / "metrics.jsonl",
            steps=1,
            chain=WeightSettings(fsync=False),
            train=TrainSettings(fsync=False, hint_kl=HintKlSettings(form="reverse")),
        )
        Worker(config).run()
        lines.append(json.loads(config.metrics.read_text()))
        model = next((root / "checkpoints").glob("step-*/model.safetensors"))
        shutil.copy(model, tmp_path / f"{name}.safetensors")
    line = lines[0]
    assert line["hint_kl"] > 0 and line["loss_hint_kl"] > 0 and line["hint_gated_share"] == 0
    assert line["hint_tokens"] == stats.hints.tokens and line["hint_gap"] != 0
    assert line["dlogp_max"] < 1e-3, "the policy itself sampled the episodes"
    assert (tmp_path / "one.safetensors").read_bytes() == (tmp_path / "again.safetensors").read_bytes()
    for key in ("loss", "hint_kl", "hint_gap"):
        assert lines[0][key] == lines[1][key]


def test_the_teachers_gap_is_that_of_two_plain_forward_passes(random_episodes: Any) -> None:
    folder, episodes = random_episodes
    hints = hinter("compact", "tool", weight=1.0)
    hints.max_positions = 256
    batch, _ = build_batch(episodes, DEFAULT, step=1, batch_id="b1", generation_budget=40, hints=hints)
    decoder = load_policy(folder, dtype=torch.float32).decoder

    def logps(tokens: np.ndarray) -> np.ndarray:
        ids = torch.from_numpy(tokens.astype(np.int64))
        with torch.no_grad():
            hidden = decoder.forward(ids[None], torch.arange(len(ids))[None], causal_attend())
            table = decoder.logits(hidden)[0].log_softmax(-1)
        return table[torch.arange(len(ids) - 1), ids[1:]].numpy()

    gaps = []
    for group in episodes:
        for run in group:
            for segment, marked in zip(run.segments, hints.mark(run, HintStats())):
                student = logps(segment.tokens)
                for message in marked:
                    own = segment.tokens[message.start : message.end]
                    teacher = logps(np.concatenate((message.context, own)))[-len(own) :]
                    gaps += (teacher - student[message.start - 1 : message.end - 1]).tolist()
    metrics = Trainer(load_policy(folder, dtype=torch.float32).decoder, TrainSettings()).step(batch)
    assert metrics["hint_tokens"] == len(gaps) and metrics["hint_gap"] == pytest.approx(np.mean(gaps), abs=1e-5)
