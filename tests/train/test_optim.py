import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from woodshed.policy.decoder import Decoder
from woodshed.train.muon import Muon, is_matrix, orthogonalise, views
from woodshed.train.optim import Optimizer, lr_factor
from woodshed.train.settings import OptimizerSettings, ScheduleSettings

from .conftest import CONFIG, MOE


def set_gradients(decoder: Decoder, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in decoder.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def test_adamw_equals_the_textbook_rule_and_torch() -> None:
    settings = OptimizerSettings(lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)
    ours, theirs = Decoder(CONFIG, seed=3), Decoder(CONFIG, seed=3)
    optimizer = Optimizer(ours, settings)
    wide = [p for p in theirs.parameters() if p.ndim >= 2]
    narrow = [p for p in theirs.parameters() if p.ndim < 2]
    peer = torch.optim.AdamW(
        [{"params": wide}, {"params": narrow, "weight_decay": 0.0}],
        lr=0.01,
        betas=(0.8, 0.95),
        eps=1e-6,
        weight_decay=0.1,
        foreach=False,
        fused=False,
    )
    value, m, v = ours.layers[0].qkv.detach().double().clone(), 0.0, 0.0
    for step in range(4):
        for model in (ours, theirs):
            set_gradients(model, step)
        g = ours.layers[0].qkv.grad.double()
        m, v = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g * g
        m_hat, v_hat = m / (1 - 0.8 ** (step + 1)), v / (1 - 0.95 ** (step + 1))
        value = value * (1 - 0.01 * 0.1) - 0.01 * m_hat / (v_hat.sqrt() + 1e-6)
        optimizer.step(1.0)
        peer.step()
    torch.testing.assert_close(ours.layers[0].qkv.double(), value, rtol=1e-5, atol=1e-6)
    for a, b in zip(ours.parameters(), theirs.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(3, 32, 32), (2, 64, 16), (2, 16, 64), (1, 1, 8)])
def test_orthogonalise_against_the_svd(shape: tuple[int, int, int]) -> None:
    g = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    u, _, vh = torch.linalg.svd(g, full_matrices=False)
    got = orthogonalise(g.float()).double()
    inner = u.mT @ got @ vh.mT
    singular = torch.linalg.svdvals(got)
    # A square Gaussian matrix has some singular values near zero, which five steps do not lift all the way.
    assert singular.max() < 1.3 and singular.median() > 0.65
    off = inner - torch.diag_embed(inner.diagonal(dim1=1, dim2=2))
    assert off.abs().max() < 1e-4
    assert torch.equal(orthogonalise(torch.zeros(shape)), torch.zeros(shape))


def test_batched_orthogonalisation_equals_one_by_one() -> None:
    g = torch.randn(4, 24, 16, generator=torch.Generator().manual_seed(1))
    each = torch.cat([orthogonalise(m[None]) for m in g])
    torch.testing.assert_close(orthogonalise(g), each, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("scale", "name"), [("shape", "original"), ("rms", "match_rms_adamw")])
@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_against_torch(scale, name: str, nesterov: bool) -> None:
    """torch.optim.Muon runs Newton-Schulz in bfloat16 and knows no fused matrices: its parameters are our views."""
    decoder = Decoder(CONFIG, seed=3)
    settings = OptimizerSettings(
        kind="muon", muon_momentum=0.9, muon_nesterov=nesterov, muon_weight_decay=0.05, muon_scale=scale
    )
    named = {n: p for n, p in decoder.named_parameters() if is_matrix(n, p)}
    muon = Muon(named, CONFIG, settings)
    twins = {
        (n, i, j): torch.nn.Parameter(matrix.clone())
        for n, p in named.items()
        for i, view in enumerate(views(n, p.detach(), CONFIG, per_head=False))
        for j, matrix in enumerate(view)
    }
    peer = torch.optim.Muon(
        twins.values(), lr=0.02, momentum=0.9, nesterov=nesterov, weight_decay=0.05, adjust_lr_fn=name
    )
    start = {key: p.detach().clone() for key, p in twins.items()}
    for step in range(3):
        set_gradients(decoder, step)
        for (n, i, j), twin in twins.items():
            twin.grad = views(n, named[n].grad, CONFIG, per_head=False)[i][j].clone()
        muon.step(0.02)
        peer.step()
    for (n, i, j), twin in twins.items():
        ours = views(n, named[n].detach(), CONFIG, per_head=False)[i][j] - start[n, i, j]
        theirs = twin.detach() - start[n, i, j]
        assert (ours - theirs).norm() < 0.03 * theirs.norm(), n


def test_views_cover_every_matrix_once() -> None:
    for config, per_head in ((CONFIG, False), (CONFIG, True), (MOE, False), (MOE, True)):
        for name, parameter in Decoder(config, seed=0).named_parameters():
            if not is_matrix(name, parameter):
                continue
            marked = torch.zeros_like(parameter)
            for view in views(name, marked, config, per_head=per_head):
                view.add_(1)
            assert torch.equal(marked, torch.ones_like(marked)), name
    decoder = Decoder(CONFIG, seed=0)
    assert [tuple(v.shape) for v in views("x.qkv", decoder.layers[0].qkv, CONFIG, per_head=True)] == [(8, 4, 16)]
    assert [tuple(v.shape) for v in views("x.out", decoder.layers[0].out, CONFIG, per_head=True)] == [(4, 16, 4)]
    names = {n.rsplit(".", 1)[-1] for n, p in Decoder(MOE, seed=0).named_parameters() if is_matrix(n, p)}
    assert names == {"qkv", "out", "gate_up", "down"}


def test_per_head_differs_from_whole_and_orthogonalises_each_head() -> None:
    """Composer-style per-head Muon; at the first step the update is a multiple of the gradient."""
    updates = []
    for per_head in (False, True):
        decoder = Decoder(CONFIG, seed=3)
        before = decoder.layers[0].qkv.detach().clone()
        optimizer = Optimizer(decoder, OptimizerSettings(kind="muon", muon_per_head=per_head))
        set_gradients(decoder, 0)
        optimizer.step(1.0)
        updates.append((before - decoder.layers[0].qkv.detach()) / 0.02)
    assert (updates[0] - updates[1]).abs().max() > 0.05
    set_gradients(decoder, 0)
    heads = decoder.layers[0].qkv.grad.unflatten(0, (-1, 4))
    torch.testing.assert_close(updates[1].unflatten(0, (-1, 4)), orthogonalise(heads), rtol=1e-3, atol=1e-4)
    assert torch.linalg.svdvals(updates[1].unflatten(0, (-1, 4))).min() > 0.4


def test_state_continues_exactly() -> None:
    settings = OptimizerSettings(kind="muon")
    a, b = Decoder(CONFIG, seed=3), Decoder(CONFIG, seed=3)
    first, second = Optimizer(a, settings), Optimizer(b, settings)
    set_gradients(a, 0)
    first.step(1.0)
    b.load_state_dict(a.state_dict())
    second.load_state({k: v.clone() for k, v in first.state().items()})
    for model, optimizer in ((a, first), (b, second)):
        set_gradients(model, 1)
        optimizer.step(0.5)
    for x, y in zip(a.parameters(), b.parameters()):
        assert torch.equal(x, y)
    with pytest.raises(ValueError, match=r"optimizer\.kind"):
        second.load_state({})
    with pytest.raises(ValueError, match="do not have"):
        Optimizer(b, OptimizerSettings()).load_state(first.state())


def test_every_learning_rate_is_multiplied_and_iterations_are_as_many_as_asked() -> None:
    """A factor of 0.5 is the same as half of both learning rates; weight decay goes with them."""
    decay = {"weight_decay": 0.1, "muon_weight_decay": 0.1}
    half = OptimizerSettings(kind="muon", lr=0.01, muon_lr=0.02, muon_steps=2, **decay)
    whole = half.model_copy(update={"lr": 0.005, "muon_lr": 0.01})
    start, a, b = (Decoder(CONFIG, seed=3) for _ in range(3))
    for model, settings, factor in ((a, half, 0.5), (b, whole, 1.0)):
        set_gradients(model, 0)
        Optimizer(model, settings).step(factor)
    for before, x, y in zip(start.parameters(), a.parameters(), b.parameters()):
        torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-7)
        assert not torch.equal(before, x)
    down = b.layers[0].down
    expected = start.layers[0].down * (1 - 0.01 * 0.1) - 0.01 * orthogonalise(down.grad[None], 2)[0]
    torch.testing.assert_close(down, expected, rtol=1e-5, atol=1e-6)


def test_schedules() -> None:
    constant = ScheduleSettings(warmup_steps=4)
    assert [lr_factor(s, constant) for s in (0, 1, 3, 4, 999)] == [0.25, 0.5, 1.0, 1.0, 1.0]
    linear = ScheduleSettings(kind="linear", warmup_steps=0, total_steps=10, floor=0.3)
    assert lr_factor(0, linear) == 1.0
    assert lr_factor(5, linear) == pytest.approx(0.65)
    assert lr_factor(10, linear) == lr_factor(50, linear) == pytest.approx(0.3)
    cosine = ScheduleSettings(kind="cosine", warmup_steps=2, total_steps=12, floor=0.1)
    assert lr_factor(7, cosine) == pytest.approx(0.1 + 0.9 * 0.5)
    assert lr_factor(4, cosine) == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * 0.2)))
    with pytest.raises(ValueError, match="total_steps"):
        ScheduleSettings(kind="linear")


def test_loaded_state_is_where_the_parameters_are() -> None:
    """Steps included: on a GPU the fused kernel refuses steps that lie on the CPU."""
    settings = OptimizerSettings()
    decoder, other = Decoder(CONFIG, seed=1), Decoder(CONFIG, seed=1)
    set_gradients(decoder, 0)
    optimizer = Optimizer(decoder, settings)
    optimizer.step(1.0)
    saved = {name: tensor.clone() for name, tensor in optimizer.state().items()}
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():  # no memory, but devices are checked
        for module in other.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                fake = torch.empty(parameter.shape, device="cuda:0")
                module.register_parameter(name, torch.nn.Parameter(fake, requires_grad=False))
        for parameter in other.parameters():
            parameter.requires_grad_()
        resumed = Optimizer(other, settings)
        resumed.load_state(saved)
        assert {tensor.device for tensor in resumed.state().values()} == {torch.device("cuda:0")}
