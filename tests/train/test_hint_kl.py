"""Hint distillation in the trainer: every form against float64 autograd, what it touches, and what a restart keeps."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor

from woodshed.policy.decoder import Decoder, causal_attend
from woodshed.policy.formats import get_format
from woodshed.policy.hf import Policy, save_policy
from woodshed.policy.tokenizer import Tokenizer, train_bpe
from woodshed.train.batch import BatchError, Sequence, TrainBatch, pack
from woodshed.train.collate import collate, input_lengths, weighted
from woodshed.train.divergence import hint_divergence, hint_gate
from woodshed.train.hinted import HintedMessage
from woodshed.train.loss import TokenStats, backward
from woodshed.train.packing import micro_batches
from woodshed.train.settings import HintKlSettings, ImportanceSettings, OptimizerSettings, TrainSettings
from woodshed.train.teacher import read_hints
from woodshed.train.token_sets import TokenSets
from woodshed.train.trainer import Trainer, summarise
from woodshed.train.worker import Worker, batch_path
from woodshed.train.worker_config import WorkerConfig
from woodshed.weights.settings import WeightSettings

from .conftest import CONFIG, MOE

FORMS = [
    HintKlSettings(form="sampled"),
    HintKlSettings(form="sampled", gate_low=0.05, gate_high=0.8),
    HintKlSettings(form="forward"),
    HintKlSettings(form="reverse"),
    HintKlSettings(form="jsd"),
    HintKlSettings(form="jsd", jsd_beta=0.2),
    HintKlSettings(form="forward", top_k=5),
    HintKlSettings(form="reverse", top_k=5),
    HintKlSettings(form="jsd", top_k=7, gate_low=0.1),
    HintKlSettings(form="reverse", gate_slope=2.0, gate_high=1.0),
    HintKlSettings(form="reverse", top_k=1000),
]
forms = pytest.mark.parametrize("form", FORMS, ids=lambda f: f"{f.form}-{f.top_k}-{f.gate_low}-{f.gate_slope}")


def expected(student: Tensor, teacher: Tensor, target: int, ratio: float, form: HintKlSettings) -> Tensor:
    """One token, by the textbook, in probabilities and float64; only what may be sampled is handed in."""
    p, q = student.softmax(-1), teacher.softmax(-1)
    gap = float(q[target].log() - p[target].detach().log())
    if abs(gap) < form.gate_low or (form.gate_high and abs(gap) > form.gate_high):
        return 0.0 * p.sum()
    gate = 1 / (1 + np.exp(-form.gate_slope * gap)) if form.gate_slope else 1.0
    if form.form == "sampled":
        return -gate * ratio * gap * p[target].log()
    if 0 < form.top_k < len(q):
        kept = q.argsort(descending=True)[: form.top_k]
        p, q = (torch.cat((x[kept], 1 - x[kept].sum()[None])) for x in (p, q))

    def kl(a: Tensor, b: Tensor) -> Tensor:
        return F.kl_div(b.log(), a, reduction="sum")

    m = form.jsd_beta * q + (1 - form.jsd_beta) * p
    kinds = {
        "forward": lambda: kl(q, p),
        "reverse": lambda: (p * (p / q).log()).sum(),
        "jsd": lambda: form.jsd_beta * kl(q, m) + (1 - form.jsd_beta) * (p * (p / m).log()).sum(),
    }
    return gate * kinds[form.form]()


@forms
def test_value_and_gradient_of_each_form(form: HintKlSettings) -> None:
    torch.manual_seed(0)
    student, teacher = (1.5 * torch.randn(40, 30) for _ in range(2))
    teacher = student + 0.5 * teacher
    target, ratio = torch.randint(0, 30, (40,)), torch.rand(40) + 0.5
    forbidden = torch.rand(40, 30) < 0.3
    forbidden[torch.arange(40), target] = False
    forbidden[:20] = False
    student, teacher = (x.masked_fill(forbidden, -torch.inf).requires_grad_() for x in (student, teacher))
    found = hint_divergence(student, teacher, target, ratio, form)
    (got,) = torch.autograd.grad(found.value_C.sum(), student, retain_graph=True)
    assert torch.autograd.grad(found.value_C.sum(), teacher, allow_unused=True) == (None,), "the teacher is detached"
    for c in range(40):
        may = (~forbidden[c]).nonzero()[:, 0]
        leaf = student[c, may].detach().double().requires_grad_()
        at = int((may == target[c]).nonzero())
        value = expected(leaf, teacher[c, may].detach().double(), at, float(ratio[c]), form)
        if form.form != "sampled":  # of which the reported value is the estimate, not what is differentiated
            assert float(found.value_C[c].detach()) == pytest.approx(float(value.detach()), abs=2e-6, rel=2e-5)
        (gradient,) = torch.autograd.grad(value, leaf)
        torch.testing.assert_close(got[c, may].double(), gradient, atol=2e-6, rtol=1e-4)
        assert not got[c, forbidden[c]].any()


def test_known_gradients_of_the_two_directions() -> None:
    """p - q, and p (log p - log q - KL): both push down a token that the teacher dropped."""
    torch.manual_seed(1)
    z, teacher = torch.randn(9, 11, dtype=torch.float64), torch.randn(9, 11, dtype=torch.float64)
    p, q = z.softmax(-1), teacher.softmax(-1)
    kl = (p * (p / q).log()).sum(-1, keepdim=True)
    closed = {"forward": p - q, "reverse": p * ((p / q).log() - kl)}
    for form, gradient in closed.items():
        leaf = z.clone().requires_grad_()
        value = hint_divergence(
            leaf, teacher, torch.zeros(9, dtype=torch.long), torch.ones(9), HintKlSettings(form=form)
        )
        value.value_C.sum().backward()
        torch.testing.assert_close(leaf.grad, gradient)
        dropped = (p / q).argmax(-1)
        assert (gradient.gather(1, dropped[:, None]) > 0).all(), "a step against the gradient lowers it"


def test_the_sampled_form_is_the_reverse_one_in_expectation() -> None:
    torch.manual_seed(2)
    z, teacher = torch.randn(13, dtype=torch.float64), torch.randn(13, dtype=torch.float64)
    leaf = z.expand(13, 13).clone().requires_grad_()  # row t: the student sampled token t
    every = torch.arange(13)
    found = hint_divergence(leaf, teacher.expand(13, 13), every, torch.ones(13), HintKlSettings(form="sampled"))
    (z.softmax(-1) * found.value_C).sum().backward()
    whole = z[None].clone().requires_grad_()
    reverse = hint_divergence(whole, teacher[None], every[:1], torch.ones(1), HintKlSettings(form="reverse"))
    reverse.value_C.sum().backward()
    assert leaf.grad is not None and whole.grad is not None
    torch.testing.assert_close(leaf.grad.sum(0), whole.grad[0])
    assert float((z.softmax(-1) * found.value_C.detach()).sum()) == pytest.approx(float(reverse.value_C.detach()))


def test_the_gate() -> None:
    gap = torch.tensor([-3.0, -0.2, 0.0, 0.2, 0.5, 3.0])
    assert hint_gate(gap, HintKlSettings()).tolist() == [1] * 6
    assert hint_gate(gap, HintKlSettings(gate_low=0.2)).tolist() == [1, 1, 0, 1, 1, 1]
    assert hint_gate(gap, HintKlSettings(gate_low=0.3, gate_high=2.0)).tolist() == [0, 0, 0, 0, 1, 0]
    soft = hint_gate(gap, HintKlSettings(gate_slope=3.0, gate_high=1.0))
    torch.testing.assert_close(
        soft, torch.tensor([0, *(1 / (1 + np.exp(-3 * x)) for x in (-0.2, 0, 0.2, 0.5)), 0]).float()
    )


def test_settings_that_cannot_be(tmp_path: Path) -> None:
    for given, said in (
        ({"form": "sampled", "top_k": 3}, "top_k"),
        ({"gate_low": 1.0, "gate_high": 0.5}, "gate_high"),
        ({"jsd_beta": 1.0}, "jsd_beta"),
        ({"teacher": "ema"}, "teacher"),
    ):
        with pytest.raises(ValidationError, match=said):
            HintKlSettings(**given)


def hinted_batch(
    sizes: tuple[int, ...] = (9, 14, 30, 12), *, step: int = 1, weight: float = 0.7, seed: int = 0, hint: int = 4
) -> TrainBatch:
    """Sequences that begin alike, with a policy gradient and, in all but the first, one or two marked messages."""
    rng = np.random.default_rng(seed)
    common, rows = rng.integers(0, 61, 5), []
    for i, size in enumerate(sizes):
        tokens = np.concatenate((common, rng.integers(0, 61, size - 5))).astype(np.int32)
        sampled = np.arange(size) >= 5
        marked = [(5, 8), (size - 3, size)][: min(i, 2)]
        own = np.zeros(size, np.float32)
        for start, end in marked:
            own[start:end] = weight
        rows.append(
            Sequence(
                tokens,
                {"rl": np.where(sampled, rng.standard_normal(size), 0).astype(np.float32), "hint_kl": own},
                np.where(sampled, -np.log(61) + 0.3 * rng.standard_normal(size), np.nan).astype(np.float32),
                versions=np.where(sampled, step - 1, -1).astype(np.int32),
                trajectory=f"t{i}",
                hinted=tuple(
                    HintedMessage(
                        start,
                        end,
                        np.concatenate(
                            (tokens[: start - 1], rng.integers(0, 61, hint), tokens[start - 1 : start])
                        ).astype(np.int32),
                    )
                    for start, end in marked
                ),
            )
        )
    return pack(rows, id=f"b{step}", step=step, denominators={"rl": 10.0, "hint_kl": 7.0})


def gradients(
    decoder: Decoder, batch: TrainBatch, settings: TrainSettings, teacher: Decoder | None = None
) -> tuple[dict[str, Tensor], TokenStats]:
    decoder.zero_grad()
    used, seen = weighted(batch), TokenStats()
    lengths = input_lengths(batch, used)
    read = read_hints(teacher or decoder, batch, settings)
    for rows in micro_batches(batch, lengths, settings.microbatch_tokens):
        micro = collate(batch, rows, lengths, used, decoder.device)
        backward(decoder, micro, batch.denominators, settings, seen, read)
    return {n: p.grad.clone() for n, p in decoder.named_parameters() if p.grad is not None}, seen


def double(decoder: Decoder) -> Decoder:
    twin = Decoder(decoder.config, seed=None, dtype=torch.float64)
    twin.load_state_dict({k: v.double() for k, v in decoder.state_dict().items()})
    return twin


def all_logits(decoder: Decoder, tokens: np.ndarray, routes: np.ndarray | None = None) -> Tensor:
    ids = torch.from_numpy(tokens.astype(np.int64))[None]
    replay = None if routes is None else torch.from_numpy(routes.astype(np.int64))[None]
    hidden = decoder.forward(ids, torch.arange(ids.shape[1])[None], causal_attend(), routes=replay)
    return F.linear(hidden[0], decoder.head_weight)


def by_hand(
    decoder: Decoder, teacher: Decoder, batch: TrainBatch, form: HintKlSettings, may: np.ndarray | None = None
) -> tuple[dict[str, Tensor], float]:
    """float64 autograd of both parts, sequence by sequence and token by token; the hint's part of the loss."""
    student, fixed = double(decoder), double(teacher)
    total, own = torch.zeros((), dtype=torch.float64), 0.0
    logits, place = {}, {}
    for i, (start, end) in enumerate(zip(batch.offsets, batch.offsets[1:])):
        routes = None if batch.routes is None else batch.routes[start:end]
        logits[i] = all_logits(student, batch.tokens[start:end], routes)
        for t in range(1, end - start):
            allowed = np.ones(61, bool) if may is None else may[start + t]
            logp = logits[i][t - 1][allowed].log_softmax(-1)[int(allowed[: batch.tokens[start + t]].sum())]
            total = total - float(batch.weights["rl"][start + t]) * logp / batch.denominators["rl"]
            place[int(start + t)] = (i, t)
    hinted = batch.hinted
    assert hinted is not None
    for f in range(len(hinted)):
        tokens = hinted.tokens[hinted.ends[f] - hinted.lengths[f] : hinted.ends[f]]
        read = all_logits(fixed, tokens).detach()
        for k in range(hinted.targets[f]):
            at = int(hinted.at[f]) + k
            i, t = place[at]
            allowed = np.ones(61, bool) if may is None else may[at]
            row, mine = read[len(tokens) - hinted.targets[f] + k - 1][allowed], logits[i][t - 1][allowed]
            target = int(allowed[: batch.tokens[at]].sum())
            value = float(batch.weights["hint_kl"][at]) * expected(mine, row, target, 1.0, form)
            total = total + value / batch.denominators["hint_kl"]
            own += float(value.detach()) / batch.denominators["hint_kl"]
    total.backward()
    return {n: p.grad for n, p in student.named_parameters() if p.grad is not None}, own


def assert_close(got: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        scale = value.abs().max().clamp_min(1e-6)
        assert (got[name].double() - value).abs().max() / scale < 3e-5, name


OFF = ImportanceSettings(mode="off")


@forms
@pytest.mark.parametrize("elements", [61, 300, 1 << 20])
def test_the_gradient_of_the_network_is_that_of_float64_autograd(form: HintKlSettings, elements: int) -> None:
    """Beside a policy gradient, over chunks and micro-batches, with another teacher than the student."""
    batch, student, teacher = hinted_batch(), Decoder(CONFIG, seed=1), Decoder(CONFIG, seed=2)
    settings = TrainSettings(importance=OFF, hint_kl=form, microbatch_tokens=45, logits_elements=elements)
    got, seen = gradients(student, batch, settings, teacher)
    wanted, value = by_hand(student, teacher, batch, form)
    assert_close(got, wanted)
    if form.form != "sampled":
        assert seen.loss["hint_kl"] == pytest.approx(value, rel=1e-4)  # small differences of float32
    assert all(p.grad is None for p in teacher.parameters())
    assert summarise(seen)["hint_tokens"] == 3 + 6 + 6


def test_a_live_teacher_is_detached() -> None:
    form = HintKlSettings(form="reverse")
    batch, decoder = hinted_batch(), Decoder(CONFIG, seed=1)
    got, _ = gradients(decoder, batch, TrainSettings(importance=OFF, hint_kl=form))
    assert_close(got, by_hand(decoder, decoder, batch, form)[0])


def test_experts_are_replayed_for_the_student_only() -> None:
    batch, student = hinted_batch(), Decoder(MOE, seed=1)
    rng = np.random.default_rng(5)
    experts = np.stack([rng.permuted(np.arange(4)) for _ in range(len(batch.tokens) * 2)])[:, :2]
    batch.routes = experts.reshape(len(batch.tokens), 2, 2).astype(np.int16)
    form = HintKlSettings(form="jsd")
    got, _ = gradients(student, batch, TrainSettings(importance=OFF, hint_kl=form))
    assert_close(got, by_hand(student, student, batch, form)[0])


@pytest.mark.parametrize("form", [FORMS[0], FORMS[3], FORMS[6], FORMS[8]], ids=lambda f: f"{f.form}-{f.top_k}")
def test_under_a_grammar_both_choose_among_the_allowed_tokens(form: HintKlSettings) -> None:
    batch, student, teacher = hinted_batch(), Decoder(CONFIG, seed=1), Decoder(CONFIG, seed=2)
    may = np.random.default_rng(3).random((len(batch.tokens), 61)) < 0.15
    may[np.arange(len(may)), batch.tokens] = True
    may[::3] = True
    bits = np.packbits(may, axis=1, bitorder="little")
    masked = replace(
        batch,
        allowed=TokenSets(bits, np.zeros(0, np.int32), np.zeros(0, np.int64)),
        allowed_of=np.arange(len(may), dtype=np.int32),
    )
    masked.check()
    got, seen = gradients(student, masked, TrainSettings(importance=OFF, hint_kl=form, logits_elements=300), teacher)
    assert_close(got, by_hand(student, teacher, masked, form, may)[0])
    assert np.isfinite(list(summarise(seen).values())).all()


def test_without_a_hint_there_is_nothing_to_learn() -> None:
    """A teacher with the same weights and the same context: no divergence, no gradient, in every form."""
    batch = hinted_batch(hint=0)
    batch.weights["rl"][:] = 0
    for form in FORMS:
        got, seen = gradients(Decoder(CONFIG, seed=1), batch, TrainSettings(hint_kl=form))
        assert abs(seen.loss["hint_kl"]) < 1e-6 and max(float(g.abs().max()) for g in got.values()) < 1e-6


def test_only_tokens_of_the_marked_messages_are_moved() -> None:
    """The gradient of the marked tokens' weights does not depend on what else the batch holds."""
    batch, decoder = hinted_batch(), Decoder(CONFIG, seed=1)
    seen = gradients(decoder, batch, TrainSettings(importance=OFF))[1]
    marked = batch.weights["hint_kl"] != 0
    assert len(torch.cat(seen.hint_gap)) == marked.sum() and marked.sum() < (batch.weights["rl"] != 0).sum()
    assert batch.hinted is not None and set(batch.hinted.batch_targets()) == set(np.flatnonzero(marked))
    alone = replace(batch, weights={"hint_kl": batch.weights["hint_kl"]})
    both, first = (
        gradients(decoder, batch, TrainSettings(importance=OFF))[0],
        gradients(decoder, alone, TrainSettings())[0],
    )
    rest = Trainer(
        decoder, TrainSettings(importance=OFF, clip_norm=0)
    ).step  # the same trainer takes a batch without hints
    bare = replace(batch, weights={"rl": batch.weights["rl"]}, hinted=None)
    decoder.zero_grad()
    used, own = weighted(bare), TokenStats()
    lengths = input_lengths(bare, used)
    for rows in micro_batches(bare, lengths, 4096):
        micro = collate(bare, rows, lengths, used, decoder.device)
        backward(decoder, micro, bare.denominators, TrainSettings(importance=OFF), own)
    second = {n: p.grad for n, p in decoder.named_parameters() if p.grad is not None}
    for name, value in both.items():
        torch.testing.assert_close(first[name] + second[name], value, atol=1e-6, rtol=1e-4)
    assert "hint_kl" not in rest(bare)


def test_the_student_comes_closer_to_a_teacher_that_stands_still() -> None:
    student, teacher = Decoder(CONFIG, seed=1), Decoder(CONFIG, seed=2)
    for form in ("forward", "reverse", "jsd", "sampled"):
        trained = Decoder(CONFIG, seed=None)
        trained.load_state_dict(student.state_dict())
        settings = TrainSettings(
            importance=OFF, hint_kl=HintKlSettings(form=form), optimizer=OptimizerSettings(lr=3e-3), clip_norm=0
        )
        trainer = Trainer(trained, settings)
        gaps = []
        for step in range(1, 16):
            batch = hinted_batch(step=step)
            batch.weights["rl"][:] = 0
            metrics = trainer.step(batch, teacher)
            gaps.append(metrics["hint_kl"] if form != "sampled" else abs(metrics["hint_gap"]))
        assert metrics["hint_tokens"] == 15 and metrics["teacher_tokens"] > 0
        assert gaps[-1] < 0.7 * gaps[0], form


def test_a_batch_keeps_its_hints_and_says_what_does_not_fit(tmp_path: Path) -> None:
    batch = hinted_batch()
    batch.save(tmp_path / "b.safetensors")
    again = TrainBatch.load(tmp_path / "b.safetensors")
    assert batch.hinted is not None and again.hinted is not None
    for name in ("tokens", "lengths", "targets", "at"):
        np.testing.assert_array_equal(getattr(again.hinted, name), getattr(batch.hinted, name))
    hinted = batch.hinted

    def refused(said: str, **changed: Any) -> None:
        with pytest.raises(BatchError, match=said):
            replace(batch, hinted=replace(hinted, **changed)).check()

    refused("other tokens", at=hinted.at - 1)
    refused("not within the batch", at=hinted.at + 1000)
    refused("lengths sum", lengths=hinted.lengths + 1)
    refused("nothing before it", targets=hinted.lengths)
    refused("share tokens", at=hinted.at[[0, 1, 1, 3, 4]])
    refused("not within one sequence", at=np.concatenate((hinted.at[:-1], batch.offsets[1:2] - 1)))
    with pytest.raises(BatchError, match="has no hint"):
        replace(batch, hinted=None).check()
    bare = hinted_batch((9,))
    assert bare.hinted is None
    with pytest.raises(BatchError, match="needs a teacher"):
        used = weighted(batch)
        lengths = input_lengths(batch, used)
        rows = micro_batches(batch, lengths, 4096)[0]
        decoder = Decoder(CONFIG, seed=1)
        micro = collate(batch, rows, lengths, used, decoder.device)
        backward(decoder, micro, batch.denominators, TrainSettings(), TokenStats())


@pytest.fixture(scope="module")
def policy_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    chat = get_format("compact")
    tokenizer = Tokenizer(train_bpe(["def f(x):\n    return x\n" * 9], 300, chat.special_tokens))
    config = replace(CONFIG, vocab_size=tokenizer.vocab_size)
    folder = tmp_path_factory.mktemp("policy") / "start"
    return save_policy(Policy(Decoder(config, seed=5), tokenizer, chat, config), folder)


def trained(root: Path, policy: Path, hint_kl: HintKlSettings, *stops: int) -> list[dict[str, float]]:
    train = TrainSettings(fsync=False, importance=OFF, hint_kl=hint_kl, optimizer=OptimizerSettings(lr=1e-3))
    for steps in stops:
        config = WorkerConfig(
            policy=policy,
            batches=root / "batches",
            weights=root / "weights",
            checkpoints=root / "checkpoints",
            metrics=root / "metrics.jsonl",
            steps=steps,
            chain=WeightSettings(fsync=False),
            train=train,
        )
        for step in range(1, 9):
            hinted_batch(step=step).save(batch_path(config.batches, step))
        Worker(config).run()
    return [json.loads(line) for line in (root / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("teacher", ["live", "lagged", "averaged", "frozen"])
def test_a_restarted_trainer_has_the_same_teacher(tmp_path: Path, policy_dir: Path, teacher: str) -> None:
    hint_kl = HintKlSettings(form="reverse", teacher=teacher, teacher_steps=3)
    whole = trained(tmp_path / "whole", policy_dir, hint_kl, 8)
    restarted = trained(tmp_path / "restarted", policy_dir, hint_kl, 2, 5, 8)
    for name in ("loss", "hint_kl", "hint_gap", "grad_norm"):
        assert [line[name] for line in restarted] == [line[name] for line in whole]
    last = sorted((tmp_path / "whole" / "checkpoints").glob("step-*"))[-1].name
    one, other = (
        (tmp_path / name / "checkpoints" / last / "model.safetensors").read_bytes() for name in ("whole", "restarted")
    )
    assert one == other
    if teacher == "lagged":
        shutil.rmtree(tmp_path / "restarted" / "checkpoints" / "step-000008")
        (tmp_path / "restarted" / "checkpoints" / "teacher-000006.safetensors").unlink()
        with pytest.raises(Exception, match=r"teacher-000006\.safetensors: not the teacher"):
            trained(tmp_path / "restarted", policy_dir, hint_kl, 8)


def test_the_teachers_are_what_they_say(tmp_path: Path, policy_dir: Path) -> None:
    """Without a hint the gap is how far the teacher's weights are: none for the live one."""
    gaps = {}
    for teacher in ("live", "lagged", "averaged", "frozen"):
        root = tmp_path / teacher
        train = TrainSettings(
            fsync=False,
            importance=OFF,
            hint_kl=HintKlSettings(teacher=teacher, teacher_steps=3),
            optimizer=OptimizerSettings(lr=1e-3),
        )
        config = WorkerConfig(
            policy=policy_dir,
            batches=root / "batches",
            weights=root / "weights",
            checkpoints=root / "checkpoints",
            metrics=root / "metrics.jsonl",
            steps=7,
            chain=WeightSettings(fsync=False),
            train=train,
        )
        for step in range(1, 8):
            hinted_batch(step=step, hint=0, weight=1e-9).save(batch_path(config.batches, step))
        Worker(config).run()
        lines = [json.loads(line) for line in config.metrics.read_text().splitlines()]
        gaps[teacher] = [abs(line["hint_gap"]) > 1e-4 for line in lines]
    assert gaps["live"] == [False] * 7
    assert gaps["lagged"] == [False, True, True, False, True, True, False]
    assert gaps["frozen"] == gaps["averaged"] == [False, *[True] * 6]


@pytest.mark.parametrize("grammar", [False, True])
def test_what_follows_a_token_that_the_teacher_rejects_does_not_count(grammar: bool) -> None:
    batch, student, teacher = hinted_batch((9, 14, 30, 40), seed=2), Decoder(CONFIG, seed=1), Decoder(CONFIG, seed=2)
    may = np.ones((len(batch.tokens), 61), bool)
    if grammar:
        may = np.random.default_rng(3).random(may.shape) < 0.5
        may[np.arange(len(may)), batch.tokens] = True
        sets = TokenSets(np.packbits(may, axis=1, bitorder="little"), np.zeros(0, np.int32), np.zeros(0, np.int64))
        sampled = batch.behaviour_logprobs + np.float32(np.log(2))  # half of the vocabulary is allowed
        batch = replace(batch, allowed=sets, allowed_of=np.arange(len(may), dtype=np.int32), behaviour_logprobs=sampled)
    hinted = batch.hinted
    assert hinted is not None
    cut, kept, shortened = batch.weights["hint_kl"].copy(), 0, set[int]()
    for f in range(len(hinted)):
        tokens = hinted.tokens[hinted.ends[f] - hinted.lengths[f] : hinted.ends[f]]
        logits = all_logits(double(teacher), tokens).detach()
        for k in range(hinted.targets[f]):
            at = int(hinted.at[f]) + k
            kept += bool(cut[at])
            row = logits[len(tokens) - hinted.targets[f] + k - 1]
            said = float(row[batch.tokens[at]] - row[may[at]].logsumexp(-1))
            if said - float(batch.behaviour_logprobs[at]) < -0.2:
                cut[at + 1 : int(hinted.at[f]) + hinted.targets[f]] = 0
                shortened.add(f)
    assert len(shortened) == 4, "all but the third message"
    assert 0 < kept < int((batch.weights["hint_kl"] != 0).sum()), "some tokens are left out, and some are not"
    computed = hinted.lengths.sum() - len(hinted)  # nothing is shared, and the last token of a message is a target
    assert read_hints(teacher, batch, TrainSettings(microbatch_tokens=1)).tokens == computed
    until = TrainSettings(importance=OFF, hint_kl=HintKlSettings(until_rejected=0.2))
    got, seen = gradients(student, batch, until, teacher)
    shorter = replace(batch, weights={**batch.weights, "hint_kl": cut})
    wanted, plain = gradients(student, shorter, TrainSettings(importance=OFF), teacher)
    for name, value in wanted.items():
        torch.testing.assert_close(got[name], value)
    assert seen.loss["hint_kl"] == pytest.approx(plain.loss["hint_kl"])
    assert int(torch.cat(seen.hint_gate).sum()) == kept
