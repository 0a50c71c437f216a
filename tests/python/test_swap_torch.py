"""Feed-forward blocks of torch's modules that are swapped for fused ones: what they give, what they keep, which stay."""

import copy
import pickle

import pytest
from support import lacking

try:
    import torch
except ImportError:
    lacking("torch", "torch is not installed", module=True)

import verglas.torch

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


class Block(torch.nn.Module):
    """A feed-forward block as models have them, with or without a gate."""

    def __init__(self, act, gate=True, bias=False, hidden=64):
        super().__init__()
        linear = lambda rows, columns: torch.nn.Linear(columns, rows, bias=bias)  # noqa: E731
        self.up_proj, self.down_proj, self.act_fn = linear(hidden, 16), torch.nn.Linear(hidden, 16), act
        if gate:
            self.gate_proj = linear(hidden, 16)

    def forward(self, x):
        up = self.up_proj(x)
        return self.down_proj(self.act_fn(self.gate_proj(x)) * up if hasattr(self, "gate_proj") else self.act_fn(up))


class SquaredRelu(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x).square()


@pytest.mark.parametrize("gate", [True, False])
def test_swapped_blocks_give_what_they_gave_forward_and_backward(gate):
    torch.manual_seed(0)
    plain = torch.nn.Sequential(Block(torch.nn.SiLU() if gate else SquaredRelu(), gate), torch.nn.Tanh())
    fused = copy.deepcopy(plain)
    assert verglas.torch.swap_mlp(fused) == 1
    assert type(fused[0]) is (verglas.torch.SwigluMlp if gate else verglas.torch.SquaredReluMlp)
    x = torch.randn(2, 5, 16)
    answers = []
    for model in (plain, fused):
        source = x.clone().requires_grad_()
        y = model(source)
        y.square().sum().backward()
        answers.append((y.detach(), source.grad, model[0].down_proj.weight.grad))
    for got, want in zip(*answers, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
    assert fused[0].weight.grad is not None


@pytest.mark.parametrize(
    "block",
    [
        Block(torch.nn.GELU()),
        Block(torch.nn.SiLU(), bias=True),
        Block(torch.nn.SiLU(), hidden=40),
        Block(torch.nn.ReLU(), gate=False),
        Block(torch.nn.PReLU(), gate=False),
        Block(SquaredRelu(), gate=False, bias=True),
        Block(SquaredRelu(), gate=False).double(),
    ],
)
def test_blocks_without_a_fused_counterpart_stay(block):
    model = torch.nn.Sequential(block)
    assert verglas.torch.swap_mlp(model) == 0 and model[0] is block


class Lora(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x) + 1


def changed(change, **options):
    block = Block(torch.nn.SiLU() if options.get("gate", True) else SquaredRelu(), **options)
    change(block)
    return block


def acts(block, function):
    del block.act_fn
    block.act_fn = function


@pytest.mark.parametrize(
    "block",
    [
        changed(lambda b: setattr(b, "gate_proj", Lora(16, 64, bias=False))),
        changed(lambda b: setattr(b, "up_proj", Lora(16, 64, bias=False)), gate=False),
        changed(lambda b: torch.nn.utils.parametrizations.weight_norm(b.gate_proj)),
        changed(lambda b: setattr(b, "dropout", torch.nn.Dropout())),
        changed(lambda b: b.register_buffer("scale", torch.ones(1))),
        changed(lambda b: setattr(b, "scale", torch.nn.Parameter(torch.ones(1))), gate=False),
        changed(lambda b: b.register_forward_hook(lambda *_: None)),
        changed(lambda b: b.up_proj.register_forward_pre_hook(lambda *_: None)),
        changed(lambda b: b.act_fn.register_forward_hook(lambda *_: None)),
        changed(lambda b: setattr(b, "forward", lambda x: x)),
        changed(lambda b: setattr(b, "gate_proj", b.up_proj)),
        changed(lambda b: setattr(b.gate_proj, "weight", b.up_proj.weight)),
        changed(lambda b: b.gate_proj.requires_grad_(False)),
        changed(lambda b: acts(b, lambda x: torch.nn.functional.relu6(x).square()), gate=False),
        changed(lambda b: acts(b, lambda x, y: x), gate=False),
        changed(lambda b: acts(b, lambda x: None), gate=False),
    ],
)
def test_blocks_that_do_more_than_a_fused_one_stay(block):
    model = torch.nn.Sequential(block)
    assert verglas.torch.swap_mlp(model) == 0 and model[0] is block


class Roles(Block):
    def forward(self, x):
        return self.down_proj(self.act_fn(self.up_proj(x)) * self.gate_proj(x))


class Clamped(Block):
    def forward(self, x):
        return self.down_proj((self.act_fn(self.gate_proj(x)) * self.up_proj(x)).clamp(-7, 7))


class Dropped(Block):
    def forward(self, x):
        return torch.nn.functional.dropout(super().forward(x), 0.5, self.training)


class Residual(Block):
    def forward(self, x):
        return x + super().forward(x)


class Two(Block):
    def forward(self, x):
        return super().forward(x), x


class Scaled(Block):
    def forward(self, x):
        return super().forward(x) * self.up_proj.weight.shape[0]


@pytest.mark.parametrize("kind", [Roles, Clamped, Dropped, Residual, Two, Scaled])
@pytest.mark.parametrize("training", [True, False])
def test_blocks_whose_forward_is_another_stay(kind, training):
    for gate in (True, False):
        if gate or kind not in (Roles, Clamped):
            block = kind(torch.nn.SiLU() if gate else SquaredRelu(), gate)
            model, state = torch.nn.Sequential(block).train(training), torch.get_rng_state()
            assert verglas.torch.swap_mlp(model) == 0 and model[0] is block
            assert torch.equal(torch.get_rng_state(), state) and all(m.training == training for m in model.modules())


class OwnSilu(torch.nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(x)


class Shaped(Block):
    def forward(self, x):
        rows = super().forward(x.view(-1, 16).to(self.up_proj.weight.dtype))
        return rows.view(*x.shape)


@pytest.mark.parametrize(
    "block",
    [
        Block(OwnSilu()),
        Block(torch.nn.SiLU(inplace=True)),
        changed(lambda b: acts(b, lambda x: torch.nn.functional.silu(x))),
        Shaped(torch.nn.SiLU()),
        Shaped(SquaredRelu(), gate=False),
        Block(torch.nn.SiLU()).to("meta"),
        changed(lambda b: setattr(b, "down_proj", Lora(64, 16))),
    ],
)
def test_blocks_that_compute_the_same_by_other_words_are_swapped(block):
    model = torch.nn.Sequential(block)
    on_host = block.up_proj.weight.device.type == "cpu"
    want = model(torch.ones(3, 16)) if on_host else None
    assert verglas.torch.swap_mlp(model) == 1
    if on_host:
        torch.testing.assert_close(model(torch.ones(3, 16)), want)


@pytest.mark.parametrize("gate", [True, False])
def test_what_a_swapped_block_keeps(gate):
    act = torch.nn.SiLU() if gate else SquaredRelu()
    shared = Block(act, gate)
    model = torch.nn.Sequential(shared, shared, Block(act, gate)).eval()
    model[2].requires_grad_(False)
    want = model(torch.ones(3, 16))
    assert verglas.torch.swap_mlp(model) == 2
    assert model[0] is model[1] and not any(module.training for module in model.modules())
    assert [p.requires_grad for p in model[0].parameters()] == [True] * 3 and not any(
        p.requires_grad for p in model[2].parameters()
    )
    torch.testing.assert_close(model(torch.ones(3, 16)), want)
    torch.testing.assert_close(pickle.loads(pickle.dumps(copy.deepcopy(model)))(torch.ones(3, 16)), want)
    for shape in ((16,), (0, 16), (2, 0, 16), (2, 3, 4, 16)):
        assert model(torch.ones(shape)).shape == shape
    assert copy.deepcopy(model).to("meta")(torch.ones(3, 16, device="meta")).device.type == "meta"


def test_a_block_with_transposed_weights_is_swapped():
    block = Block(torch.nn.SiLU())
    block.up_proj.weight = torch.nn.Parameter(block.up_proj.weight.detach().t().contiguous().t())
    model = torch.nn.Sequential(block)
    want = model(torch.ones(3, 16))
    assert verglas.torch.swap_mlp(model) == 1
    torch.testing.assert_close(model(torch.ones(3, 16)), want)


@pytest.mark.parametrize("gate", [True, False])
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16])
def test_swapped_blocks_follow_autocast(gate, given):
    torch.manual_seed(0)
    plain = torch.nn.Sequential(Block(torch.nn.SiLU() if gate else SquaredRelu(), gate))
    fused = copy.deepcopy(plain)
    assert verglas.torch.swap_mlp(fused) == 1
    answers = []
    for model in (plain, fused):
        x = torch.linspace(-1, 1, 80).view(5, 16).to(given).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            y = model(x)
        y.float().sum().backward()
        answers.append((y.detach(), x.grad, model[0].down_proj.weight.grad))
    for got, want in zip(*answers, strict=True):
        assert got.dtype == want.dtype
        torch.testing.assert_close(got, want, rtol=0.05, atol=0.02)
    assert fused[0].weight.grad.dtype == torch.float32


@pytest.mark.parametrize("gate", [True, False])
def test_blocks_are_swapped_under_other_defaults(gate):
    block = Block(OwnSilu() if gate else SquaredRelu(), gate)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"), torch.autocast("cpu", torch.bfloat16):
            assert verglas.torch.swap_mlp(torch.nn.Sequential(block)) == 1
    finally:
        torch.set_default_dtype(before)
