"""Operations as torch calls them: modes, tracers, threads, and the short way of a function that has run before."""

import numpy as np
import pytest
import verglas
from ops_oracle import matrix
from ops_torch import F32, drawn, functions, operands, whole_way
from support import lacking
from verglas import ops

try:
    import torch
except ImportError:
    lacking("torch", "torch is not installed", module=True)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def test_modes_of_torch_see_the_operator():
    _, _, a, b = operands()
    seen = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    want = ops.gemm_amax_forward(a, b).c_tensor
    with Watch():
        assert torch.equal(ops.gemm_amax_forward(a, b).c_tensor, want)
    assert any("verglas.gemm_amax" in name for name in seen)
    with torch._subclasses.FakeTensorMode() as mode:
        fake = ops.gemm_swiglu_forward(mode.from_tensor(a), mode.from_tensor(b))
        assert fake.c_tensor.shape == (5, 32, 2) and fake.c_tensor.dtype == torch.float16


@pytest.mark.parametrize("batch", [1, 2])
def test_a_function_takes_the_short_way_for_other_sizes_and_values(batch, monkeypatch):
    for call, _ in functions(*drawn(5, 64, 7, batch, 1)):
        call()
    monkeypatch.setattr("verglas.ops._torch.run", whole_way)
    for seed, (m, n, k) in enumerate([(5, 64, 7), (5, 64, 7), (9, 128, 3), (5, 64, 7), (9, 128, 3)]):
        for call, want in functions(*drawn(m, n, k, batch, 7 * seed)):
            for got, exact in zip(call(), want, strict=False):
                np.testing.assert_allclose(got.numpy().squeeze(), np.squeeze(exact), rtol=1e-6)


def test_a_function_tells_its_options_apart(monkeypatch):
    a, b, _, _ = drawn(5, 64, 7, 1, 1)
    ops.gemm_amax_forward(a, b)
    monkeypatch.setattr("verglas.ops._torch.run", whole_way)
    n, m = "nm"
    for _ in range(2):
        for name, dtype in (("bf16", torch.bfloat16), (torch.float16, torch.float16), (None, F32), (np.float32, F32)):
            for major, stride in ((n, (64, 1, 320)), ("".join([m]), (1, 5, 320))):
                tile = tuple(int(x) for x in (128, 128))
                r = ops.gemm_amax_forward(a, b, None, None, major, name, mma_tiler_mn=tile, sf_vec_size=16)
                assert r.c_tensor.dtype == dtype and r.c_tensor.stride() == stride
        tile = [256, 256]  # can change, so that it is looked at each time
        ops.gemm_amax_forward(a, b, mma_tiler_mn=tile)
        tile[0] = 96
        with pytest.raises(verglas.Error, match=r"op\.option"):
            ops.gemm_amax_forward(a, b, mma_tiler_mn=tile)
    for wrong in ({"c_major": "k"}, {"c_dtype": torch.int8}, {"sf_vec_size": 7}, {"mma_tiler_mn": (96, 96)}):
        with pytest.raises(verglas.Error):
            ops.gemm_amax_forward(a, b, **wrong)


def test_streams_are_what_has_an_address():
    a, b, _, _ = drawn(5, 64, 7, 1, 1)
    kinds = [
        type("Torchs", (), {"cuda_stream": 0}),
        type("Protocol", (), {"__cuda_stream__": lambda self: (0, 0)}),
        type("Number", (), {"__index__": lambda self: 0}),
    ]
    inputs = [(a, b), (a.clone().requires_grad_(), b), (a.to("meta"), b.to("meta")), (a.numpy(), b.numpy())]
    for x, w in inputs:
        for kind in (*kinds, int):
            ops.gemm_amax_forward(x, w, stream=kind())
        for wrong in ("none", object(), 0.5):
            with pytest.raises(verglas.Error, match=r"pack\.stream"):
                ops.gemm_amax_forward(x, w, stream=wrong)


def test_a_function_says_what_python_says_of_wrong_arguments():
    a, b, _, _ = drawn(5, 64, 7, 1, 1)
    for _ in range(2):
        ops.gemm_swiglu_forward(a, b)
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'b_tensor'"):
            ops.gemm_swiglu_forward(a)
        with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
            ops.gemm_swiglu_forward(a, b, nonsense=1)
        with pytest.raises(TypeError, match="multiple values for argument 'a_tensor'"):
            ops.gemm_swiglu_forward(a, b, a_tensor=a)
        with pytest.raises(ValueError, match="ab12_stages"):
            ops.gemm_swiglu_forward(a, b, ab12_stages=0)
        with pytest.raises(verglas.Error, match=r"pack\.stream"):
            ops.gemm_swiglu_forward(a, b, stream="none")
        with pytest.raises(verglas.InvalidCallError, match=r"op\.option.*gemm_swiglu, alpha: got 'two', wanted a number"):
            ops.gemm_swiglu_forward(a, b, alpha="two")
        with pytest.raises(verglas.Error, match=r"op\.missing"):
            ops.gemm_swiglu_forward(a, None)


def test_a_function_goes_pythons_way_where_torch_looks_at_calls():
    a, b, _, _ = drawn(5, 64, 7, 2, 1)
    want = ops.gemm_swiglu_forward(a, b, c_dtype=F32)

    class Own(torch.Tensor):
        pass

    own = ops.gemm_swiglu_forward(a.as_subclass(Own), b, c_dtype=F32)
    assert torch.equal(own.c_tensor, want.c_tensor)
    x = a.clone().requires_grad_()
    assert ops.gemm_swiglu_forward(x, b, c_dtype=F32).c_tensor.requires_grad
    with torch.no_grad():
        assert not ops.gemm_swiglu_forward(x, b, c_dtype=F32).c_tensor.requires_grad
    with torch.inference_mode():
        assert torch.equal(ops.gemm_swiglu_forward(x, b, c_dtype=F32).c_tensor, want.c_tensor)
    negative = ops.gemm_swiglu_forward(torch._neg_view(a), b, c_dtype=F32)
    assert torch.equal(negative.ab12_tensor, -want.ab12_tensor)


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated")
def test_a_tracer_records_the_operator_and_no_constant():
    a, b = (
        torch.from_numpy(np.ascontiguousarray(matrix(shape, np.float32, seed=i)))
        for i, shape in enumerate([(8, 16, 1), (64, 16, 1)])
    )
    function = lambda a, b: a.sum() + ops.gemm_swiglu_forward(a, b, 0.5, c_dtype=torch.float32).c_tensor  # noqa: E731
    function(a, b)
    traced = torch.jit.trace(function, (a, b), check_trace=False)
    assert "verglas::gemm_swiglu" in str(traced.graph)
    for x in (a, 2 * a, a[:3].contiguous()):
        torch.testing.assert_close(traced(x, b), function(x, b))


def test_an_emptied_cache_has_no_plan_for_the_short_way():
    from verglas import _verglas

    a, b, _, _ = drawn(5, 64, 7, 1, 1)
    for _ in range(3):
        ops.gemm_amax_forward(a, b)
    before = _verglas.plan_cache()
    ops.gemm_amax_forward(a, b)
    found = _verglas.plan_cache()
    assert (found["compiled"], found["found"]) == (before["compiled"], before["found"] + 1)
    _verglas.clear_plan_cache()
    ops.gemm_amax_forward(a, b)
    assert _verglas.plan_cache()["compiled"] == before["compiled"] + 1


def test_a_function_serves_many_sizes_and_threads():
    from concurrent.futures import ThreadPoolExecutor

    def work(seed):
        for m in range(1 + seed, 150, 7):
            a, b, _, _ = drawn(m, 64, 3, 1, m)
            r = ops.gemm_amax_forward(a, b)
            assert torch.equal(r.c_tensor, torch.einsum("mkl,nkl->mnl", a, b)), m

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(8)))


def test_an_operator_takes_the_short_way_below_autograd(monkeypatch):
    a, b, _, _ = drawn(5, 64, 7, 1, 1)
    ops.gemm_swiglu_forward(a, b)  # brings the operators in
    call = lambda: torch.ops.verglas.gemm_swiglu(a, b, 0.5, F32, F32)  # noqa: E731
    want = call()
    monkeypatch.setattr("verglas.ops._torch.OperationOptions", whole_way)
    a.requires_grad_()
    for got, exact in zip(call()[:2], want[:2], strict=True):  # the third would be amax
        assert got.requires_grad and torch.equal(got, exact)


def test_outputs_are_tensors_of_their_own():
    a, b, _, _ = drawn(5, 64, 7, 1, 1)
    for again in range(2):  # the second by the short way
        made = [t for t in ops.gemm_swiglu_forward(a, b).values() if t is not None]
        assert all(t._base is None and t.untyped_storage().resizable() and not t.is_inference() for t in made), again
        assert len({t.untyped_storage().data_ptr() for t in made}) == len(made)
    with torch.inference_mode():
        assert all(t.is_inference() for t in ops.gemm_swiglu_forward(a, b).values() if t is not None)
