"""Operations of torch's tensors without memory, and of types that torch does not export."""

import pytest
import verglas
from ops_torch import drawn
from support import lacking
from verglas import ops

try:
    import torch
except ImportError:
    lacking("torch", "torch is not installed", module=True)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def without_memory(tensor):
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def wrong_calls():
    """Rule, and a call of tensors."""
    a, b, dy, prob = drawn(5, 64, 7, 2, 1)
    narrow, e4m3 = b[:33].clone(), torch.float8_e4m3fn
    half = torch.float16
    x, w, turns = (torch.zeros(s, dtype=torch.bfloat16) for s in ((32, 64), (192, 64), (32, 64)))
    amax, swiglu = ops.gemm_amax_forward, ops.gemm_swiglu_forward
    srelu, dsrelu, rope = ops.gemm_srelu_forward, ops.gemm_srelu_backward, ops.gemm_proj_rope_mxfp8_forward
    return [
        ("op.extent", amax, (a, b[:, :6].clone()), {}),
        ("op.dtype", amax, (a, b.to(half)), {}),
        ("op.dtype", amax, (a.double(), b.double()), {}),
        ("op.dtype", amax, (a, b), {"c_dtype": torch.int8}),
        ("op.layout", amax, (a[::2], b), {}),
        ("op.rank", amax, (a[..., 0], b), {}),
        ("op.missing", amax, (a.to(e4m3), b.to(e4m3), prob), {}),
        ("op.extent", swiglu, (a, narrow), {}),
        ("op.dtype", swiglu, (a, b), {"c_dtype": e4m3}),
        ("op.extent", srelu, (a, b, None, None, prob[:4]), {}),
        ("op.dtype", srelu, (a, b, None, None, prob.to(half)), {}),
        ("op.dtype", srelu, (a, b), {"d_dtype": e4m3}),
        ("op.extent", dsrelu, (a, b, dy[:4].clone()), {}),
        ("op.missing", rope, (x.to(e4m3), w.to(e4m3), turns, turns), {}),
        ("op.extent", rope, (x, w[:191], turns, turns), {}),
        ("op.option", rope, (x, w, turns, turns), {"head_dim": 100}),
    ]


@pytest.mark.parametrize(("rule", "function", "tensors", "options"), wrong_calls())
def test_tensors_without_memory_are_refused_as_others_are(rule, function, tensors, options):
    def refused(call):
        with pytest.raises(verglas.Error) as caught:
            call()
        return caught.value.rule

    if rule != "op.dtype":  # of what is no type at all the buffer is refused
        assert refused(lambda: function(*tensors, **options)) == rule
    meta = [t if t is None else without_memory(t) for t in tensors]
    assert refused(lambda: function(*meta, **options)) == rule
    with torch._subclasses.FakeTensorMode() as mode:
        fake = [t if t is None else mode.from_tensor(t) for t in tensors]
        assert refused(lambda: function(*fake, **options)) == rule
    torch._dynamo.reset()
    with pytest.raises(Exception, match=rule.replace(".", r"\.")):
        torch.compile(lambda *t: function(*t, **options)[0], backend="eager", dynamic=True)(*tensors)


def test_tensors_without_memory_have_outputs_likewise():
    a, b, _, prob = drawn(5, 64, 7, 2, 1)
    for call in (lambda *t: ops.gemm_swiglu_forward(*t[:2]), lambda *t: ops.gemm_srelu_forward(t[0], t[1], None, None, t[2])):
        want, got = call(a, b, prob), call(*(t.to("meta") for t in (a, b, prob)))
        for w, g in zip(want, got, strict=True):
            assert (w is None) == (g is None)
            if w is not None:
                assert g.is_meta and (g.shape, g.stride(), g.dtype) == (w.shape, w.stride(), w.dtype)


@pytest.mark.parametrize("place", range(3))
def test_tensors_without_memory_beside_others_are_refused(place):
    """Outputs would be of memory that nobody has written."""
    tensors = drawn(5, 64, 7, 2, 1)
    tensors = [tensors[0], tensors[1], None, None, tensors[3]]
    tensors[(0, 1, 4)[place]] = tensors[(0, 1, 4)[place]].to("meta")
    with pytest.raises(verglas.InvalidCallError, match=r"op\.device.*(prob|b).*as the first tensor"):
        ops.gemm_srelu_forward(*tensors)


class Before210(torch.Tensor):
    """A tensor as torch had them before 2.10: without a table of C functions, and no export of narrow types."""

    __module__ = "torch"
    __dlpack_c_exchange_api__ = None

    def __dlpack__(self, **options):
        if "float8" in str(self.dtype) or "float4" in str(self.dtype):
            raise BufferError("narrow types are not supported by dlpack")
        return super().__dlpack__(**options)


@pytest.mark.parametrize("narrow", ["float8_e4m3fn", "float8_e5m2", "float4_e2m1fn_x2"])
def test_narrow_tensors_are_read_where_torch_does_not_export_them(narrow):
    if not hasattr(torch, narrow):
        pytest.skip(f"this torch has no {narrow}")
    is_pair = narrow.startswith("float4")
    a, b = (
        torch.full((rows, 32, 1), 0x22 if is_pair else 0x38, dtype=torch.uint8).view(getattr(torch, narrow)) for rows in (5, 8)
    )
    one = torch.full((1, 1, 1, 32, 4, 4), 127, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    c, amax = torch.empty(5, 8, 1), torch.empty(1)
    a, b, one = (t.as_subclass(Before210) for t in (a, b, one))
    ops.GemmAmax(a, b, one, one, c, amax, sf_vec_size=32)(a, b, one, one, c, amax)
    each = {"float8_e4m3fn": 1, "float8_e5m2": 0.25, "float4_e2m1fn_x2": 2}[narrow]
    assert (c == 32 * each).all() and amax.item() == 32 * each
