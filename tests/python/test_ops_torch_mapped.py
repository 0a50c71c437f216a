"""Operations under torch's transforms: vmap, gradients of many at once, what is mapped to nothing."""

import numpy as np
import pytest
from ops_torch import F32, drawn, tensor
from support import lacking
from verglas import ops

try:
    import torch
except ImportError:
    lacking("torch", "torch is not installed", module=True)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def test_transforms_of_functions():
    a, b, _, _ = drawn(5, 64, 7, 1, 1)
    srelu = lambda x, w: ops.gemm_srelu_forward(x, w, d_dtype="fp32").d_tensor.square().sum()  # noqa: E731
    swiglu = lambda x, w: ops.gemm_swiglu_forward(x, w, c_dtype="fp32").c_tensor.square().sum()  # noqa: E731
    for loss in (srelu, swiglu):
        x, w = a.clone().requires_grad_(), b.clone().requires_grad_()
        loss(x, w).backward()
        got = torch.func.grad(loss, argnums=(0, 1))(a, b)
        assert torch.equal(got[0], x.grad) and torch.equal(got[1], w.grad)
        many = torch.stack([a, -a, 2 * a])
        each = torch.stack([torch.func.grad(loss)(one, b) for one in many])
        torch.testing.assert_close(torch.func.vmap(torch.func.grad(loss), (0, None))(many, b), each)
    with pytest.raises(RuntimeError, match="no derivative"):
        torch.func.grad(lambda x: ops.gemm_amax_forward(x, b).c_tensor.sum())(a)


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_mapped_axes_lie_anywhere(axis):
    """Where an axis is mapped, elements lie as torch has put them, which is no packed matrix."""
    torch.manual_seed(0)
    a, b, dy, prob = (
        torch.randn(batch, 2, *shape).permute(0, 2, 3, 1)
        for batch, shape in [(3, (5, 7)), (3, (64, 7)), (3, (5, 64)), (3, (5, 1))]
    )
    calls = [
        lambda a, b, dy, prob: list(ops.gemm_amax_forward(a, b))[:2],
        lambda a, b, dy, prob: list(ops.gemm_swiglu_forward(a, b, 0.5, "m"))[:2],
        lambda a, b, dy, prob: list(ops.gemm_srelu_forward(a, b, prob_tensor=prob))[:2],
        lambda a, b, dy, prob: list(ops.gemm_srelu_backward(a, b, dy, prob_tensor=prob))[:2],
    ]
    moved = [x.movedim(0, axis).contiguous() for x in (a, b, dy, prob)]
    for call in calls:
        each = [call(*one) for one in zip(a, b, dy, prob, strict=True)]
        for got, want in zip(torch.func.vmap(call, axis)(*moved), zip(*each, strict=True), strict=True):
            assert torch.equal(got, torch.stack(want))
        if axis == 0:  # and with weights that are not mapped
            each = [call(x, b[0], y, p) for x, y, p in zip(a, dy, prob, strict=True)]
            for got, want in zip(torch.func.vmap(call, (0, None, 0, 0))(a, b[0], dy, prob), zip(*each, strict=True), strict=True):
                assert torch.equal(got, torch.stack(want))


def test_results_pass_through_maps_and_programs():
    class Module(torch.nn.Module):
        def forward(self, a, b):
            return ops.gemm_swiglu_forward(a, b, c_dtype=F32)

    a, b, _, _ = drawn(5, 64, 7, 1, 1)
    want = Module()(a, b)
    for got in (
        torch.export.export(Module(), (a, b)).module()(a, b),
        torch.func.vmap(Module(), (0, None))(a[None], b),
        torch.utils._pytree.tree_map(lambda x: x.clone(), want),
        torch.compile(Module(), fullgraph=True, backend="eager")(a, b),
    ):
        assert type(got) is ops.TupleDict and list(got.keys()) == list(want.keys())
        assert torch.equal(got.c_tensor.reshape(5, 32, 1), want.c_tensor) and got.sfc_tensor is None and got.amax_tensor is None


def test_nothing_is_mapped_to_nothing():
    a, b, dy, prob = (torch.zeros(0, *shape, 1) for shape in ((5, 7), (64, 7), (5, 64), (5, 1)))
    swiglu = lambda x, w: ops.gemm_swiglu_forward(x, w).c_tensor  # noqa: E731
    assert torch.func.vmap(swiglu)(a, b).shape == (0, 5, 32, 1)
    assert torch.func.vmap(swiglu, (0, None))(a, torch.zeros(64, 7, 1)).shape == (0, 5, 32, 1)
    of_prob = torch.func.vmap(lambda x, w, y, p: ops.gemm_srelu_backward(x, w, y, prob_tensor=p).dprob_tensor)
    assert of_prob(a, b, dy, prob).shape == (0, 5, 1, 1)


def test_mapped_scales_and_tokens():
    from test_ops_proj_rope import inputs
    from test_ops_scaled import FORMATS, operand

    bytes_of = lambda x, kind: tensor(np.ascontiguousarray(x).view(np.uint8), torch.uint8).view(kind)  # noqa: E731
    (a, sfa, _), (b, sfb, _) = operand(130, 160, 3, FORMATS[0], 1), operand(64, 160, 3, FORMATS[0], 2)
    a, b = bytes_of(a, torch.float8_e4m3fn), bytes_of(b, torch.float8_e4m3fn)
    sfa, sfb = bytes_of(sfa, torch.uint8), bytes_of(sfb, torch.uint8)
    packed = lambda x: x.permute(2, 0, 1).contiguous().permute(1, 2, 0)  # noqa: E731
    atoms = lambda x: x.permute(5, 2, 4, 0, 1, 3).contiguous()  # noqa: E731
    call = lambda a, b, x, y: ops.gemm_srelu_forward(a, b, x, y, sf_vec_size=32).d_tensor  # noqa: E731
    want = call(packed(a), packed(b), atoms(sfa), atoms(sfb))
    for form in (lambda x: x.unsqueeze(-2), lambda x: atoms(x).unsqueeze(1).movedim(0, -1)):
        given = *(x.unsqueeze(-2) for x in (a, b)), form(sfa), form(sfb)
        got = torch.func.vmap(call, -1, -1)(*given)
        assert torch.equal(got.squeeze(-2), want)
    x, w, cos, sin = (torch.from_numpy(t.astype(np.float32)).bfloat16() for t in inputs(64, 32, 1, False)[0])
    rows = lambda *t: list(ops.gemm_proj_rope_mxfp8_forward(*t))  # noqa: E731
    halves = lambda t: t.reshape(2, 32, -1)  # noqa: E731
    mapped = torch.func.vmap(rows, (1, None, 1, 1))(*(t if t is w else halves(t).transpose(0, 1) for t in (x, w, cos, sin)))
    each = [rows(x, w, y, z) for x, y, z in zip(*map(halves, (x, cos, sin)), strict=True)]
    for got, want in zip(mapped, zip(*each, strict=True), strict=True):
        assert torch.equal(got.view(torch.uint8), torch.stack(want).view(torch.uint8))


def test_gradients_of_many_at_once():
    a, b, _, _ = drawn(5, 64, 7, 2, 1)
    for call in (lambda x: ops.gemm_srelu_forward(x, b, d_dtype="fp32"), lambda x: ops.gemm_swiglu_forward(x, b, c_dtype="fp32")):
        x = a.clone().requires_grad_()
        y = list(call(x))[1]
        many = torch.randn(3, *y.shape)
        (got,) = torch.autograd.grad(y, x, many, is_grads_batched=True, retain_graph=True)
        for g, one in zip(got, many, strict=True):
            torch.testing.assert_close(g, torch.autograd.grad(y, x, one, retain_graph=True)[0])


def test_no_derivative_in_forward_mode_is_said():
    from torch.autograd import forward_ad

    a, b, _, _ = drawn(5, 64, 7, 1, 1)
    calls = [lambda x: ops.gemm_swiglu_forward(x, b).c_tensor, lambda x: ops.gemm_amax_forward(x, b).c_tensor]
    for call in calls:
        call(a)  # brings the short way in, which would have none of it
        with pytest.raises(RuntimeError, match="forward mode"):
            torch.func.jvp(call, (a,), (a,))
        with forward_ad.dual_level():
            assert torch.equal(call(a), call(a))
            with pytest.raises(RuntimeError, match="forward mode"):
                call(forward_ad.make_dual(a, a))
