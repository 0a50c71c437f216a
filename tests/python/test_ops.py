"""Operations against float64: every type, major, output type and option; functions and classes; sizes that divide nothing."""

import copy
import itertools
import pickle
import re
import sys
import threading
from pathlib import Path

import ml_dtypes
import numpy as np
import ops_oracle as oracle
import pytest
import verglas
from ops_oracle import TYPES, close, laid, matrix, poisoned, same
from verglas import _verglas, ops

INPUTS = ["fp32", "fp16", "bf16"]
SIZES = [(1, 64, 1, 1), (5, 64, 3, 1), (7, 128, 33, 3), (129, 192, 65, 2), (33, 64, 0, 2), (0, 64, 5, 1), (3, 0, 5, 2)]
MAJORS = list(itertools.product("km", "km", "nm"))


def inputs(size, dtype, a_major="k", b_major="k"):
    m, n, k, batch = size
    return matrix((m, k, batch), TYPES[dtype], a_major, 1), matrix((n, k, batch), TYPES[dtype], b_major, 2)


def probabilities(m, batch):
    return matrix((m, 1, batch), np.float32, "n", 5)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", INPUTS)
def test_swiglu(size, dtype):
    a, b = inputs(size, dtype)
    for alpha, (ab12_type, c_type) in zip([1.0, -0.5, 2.0], [("fp32", "fp16"), ("bf16", "bf16"), ("fp16", "fp32")], strict=True):
        r = ops.gemm_swiglu_forward(a, b, alpha, ab12_dtype=ab12_type, c_dtype=c_type)
        ab12, c = oracle.swiglu(a, b, alpha)
        assert r.ab12_tensor.dtype == TYPES[ab12_type] and r.c_tensor.dtype == TYPES[c_type]
        same(r.ab12_tensor, ab12, TYPES[ab12_type])
        close(r.c_tensor, c, TYPES[c_type])
        assert r.sfc_tensor is None and r.amax_tensor is None


@pytest.mark.parametrize(("ab12_type", "c_type"), itertools.product(INPUTS, INPUTS))
@pytest.mark.parametrize("dtype", INPUTS)
def test_swiglu_types(dtype, ab12_type, c_type):
    a, b = inputs((5, 64, 7, 2), dtype)
    r = ops.gemm_swiglu_forward(a, b, ab12_dtype=ab12_type, c_dtype=TYPES[c_type])
    ab12, c = oracle.swiglu(a, b, 1.0)
    same(r.ab12_tensor, ab12, TYPES[ab12_type])
    close(r.c_tensor, c, TYPES[c_type])


def test_swiglu_of_large_gates_is_minus_zero_not_nan():
    a = laid(np.full((1, 1, 1), 1.0, np.float32), "k")
    b = np.zeros((64, 1, 1), np.float32)
    b[:32], b[32:] = 3.0, -1e30
    c = ops.gemm_swiglu_forward(a, b, c_dtype="fp32").c_tensor
    assert (c == 0).all() and np.signbit(c).all()


@pytest.mark.parametrize("majors", MAJORS)
@pytest.mark.parametrize("dtype", INPUTS)
def test_majors(majors, dtype):
    a_major, b_major, out = majors
    a, b = inputs((9, 128, 6, 2), dtype, a_major, b_major)
    prob, dy = probabilities(9, 2), matrix((9, 128, 2), TYPES["bf16"], out, 6)
    r = ops.gemm_swiglu_forward(a, b, c_major=out)
    same(r.ab12_tensor, oracle.swiglu(a, b, 1.0)[0], np.float32)
    close(r.c_tensor, oracle.swiglu(a, b, 1.0)[1], np.float16)
    s = ops.gemm_srelu_forward(a, b, prob_tensor=prob, c_major=out)
    g = ops.gemm_srelu_backward(a, b, dy, prob_tensor=prob, d_major=out)
    x = ops.gemm_amax_forward(a, b, c_major=out)
    same(s.d_tensor, oracle.srelu(a, b, prob, 1.0)[1], TYPES["bf16"])
    same(g.d_tensor, oracle.dsrelu(a, b, dy, prob, 1.0)[0], TYPES["bf16"])
    same(x.c_tensor, oracle.product(a, b), np.float32)
    axis = 1 if out == "n" else 0
    for array in (r.ab12_tensor, r.c_tensor, s.c_tensor, s.d_tensor, g.d_tensor, x.c_tensor):
        assert array.strides[axis] == array.itemsize and array.strides[2] == array[..., 0].size * array.itemsize


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", INPUTS)
def test_amax(size, dtype):
    a, b = inputs(size, dtype)
    for c_type in INPUTS:
        r = ops.gemm_amax_forward(a, b, c_dtype=c_type)
        c, largest = oracle.amax(a, b)
        same(r.c_tensor, c, TYPES[c_type])
        assert r.amax_tensor.shape == (1, 1, 1) and r.amax_tensor.dtype == np.float32
        assert r.amax_tensor.item() == largest


def test_amax_is_of_each_call_and_nan_wins():
    a, b = inputs((4, 6, 5, 1), "fp32")
    large = ops.gemm_amax_forward(a * 100, b).amax_tensor.item()
    assert ops.gemm_amax_forward(a, b).amax_tensor.item() * 100 == large
    a[0, 0, 0] = np.nan
    assert np.isnan(ops.gemm_amax_forward(a, b).amax_tensor.item())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", INPUTS)
def test_srelu_and_its_gradient(size, dtype):
    a, b = inputs(size, dtype)
    m, n, _, batch = size
    prob = probabilities(m, batch)
    for alpha, c_type, d_type in [(1.0, "bf16", "bf16"), (-2.0, "fp32", "fp16"), (0.5, "fp16", "fp32")]:
        dy = matrix((m, n, batch), TYPES[c_type], "n", 6)
        r = ops.gemm_srelu_forward(a, b, prob_tensor=prob, alpha=alpha, c_dtype=c_type, d_dtype=d_type)
        g = ops.gemm_srelu_backward(a, b, dy, prob_tensor=prob, alpha=alpha, d_dtype=d_type)
        c, d = oracle.srelu(a, b, prob, alpha)
        dx, dprob = oracle.dsrelu(a, b, dy, prob, alpha)
        same(r.c_tensor, c, TYPES[c_type])
        same(r.d_tensor, d, TYPES[d_type])
        same(g.d_tensor, dx, TYPES[d_type])
        same(g.dprob_tensor, dprob, np.float32)
        assert r.amax_tensor is None and r.sfd_tensor is None and g.amax_tensor is None and g.sfd_tensor is None


def test_srelu_without_prob_and_with_prob_of_any_strides():
    a, b = inputs((6, 10, 4, 2), "fp32")
    dy = matrix((6, 10, 2), np.float32, "n", 6)
    ones = np.ones((6, 1, 2), np.float32)
    same(ops.gemm_srelu_forward(a, b).d_tensor, oracle.srelu(a, b, ones, 1.0)[1], TYPES["bf16"])
    same(ops.gemm_srelu_backward(a, b, dy).d_tensor, oracle.dsrelu(a, b, dy, ones, 1.0)[0], TYPES["bf16"])
    wide = np.random.default_rng(1).integers(1, 4, (12, 3, 4)).astype(np.float32)
    prob = wide[::2, 1:2, ::2]
    same(ops.gemm_srelu_forward(a, b, prob_tensor=prob).d_tensor, oracle.srelu(a, b, prob, 1.0)[1], TYPES["bf16"])
    row = np.broadcast_to(np.float32(2.0), (6, 1, 2))
    same(ops.gemm_srelu_forward(a, b, prob_tensor=row).d_tensor, oracle.srelu(a, b, row, 1.0)[1], TYPES["bf16"])


def test_the_gradient_is_that_of_the_forward_formula():
    """Central differences of float64 formulas: C of the backward is the gradient of D."""
    rng = np.random.default_rng(3)
    x, prob, dy = rng.normal(size=(4, 5)), rng.normal(size=(4, 1)), rng.normal(size=(4, 5))
    step = 1e-6
    forward = lambda x, prob: (prob * np.maximum(x, 0) ** 2 * dy).sum()  # noqa: E731
    a, b = x.astype(np.float32)[:, :, None], np.eye(5, dtype=np.float32)[:, :, None]
    g = ops.gemm_srelu_backward(
        a, b, dy.astype(np.float32)[:, :, None], prob_tensor=prob.astype(np.float32)[:, :, None], d_dtype="fp32"
    )
    for i, j in np.ndindex(x.shape):
        e = np.zeros_like(x)
        e[i, j] = step
        slope = (forward(x + e, prob) - forward(x - e, prob)) / (2 * step)
        assert abs(g.d_tensor[i, j, 0] - slope) < 1e-4
    for i in range(4):
        e = np.zeros_like(prob)
        e[i] = step
        slope = (forward(x, prob + e) - forward(x, prob - e)) / (2 * step)
        assert abs(g.dprob_tensor[i, 0, 0] - slope) < 1e-3


def prepared(size=(5, 64, 3, 2), major="n"):
    """Each class with its inputs, poisoned outputs and what those shall be."""
    a, b = inputs(size, "bf16")
    m, n, _, batch = size
    prob, dy = probabilities(m, batch), matrix((m, n, batch), TYPES["bf16"], major, 6)
    out = lambda columns, dtype: poisoned((m, columns, batch), TYPES[dtype], major)  # noqa: E731
    c, largest = oracle.amax(a, b)
    scalar, column = np.full((1, 1, 1), 7e9, np.float32), poisoned((m, 1, batch), np.float32)
    yield ops.GemmAmax, (a, b, None, None, out(n, "fp16"), scalar), {4: c, 5: np.full((1, 1, 1), largest)}, {}
    ab12, half = oracle.swiglu(a, b, 2.0)
    yield ops.GemmSwiglu, (a, b, out(n, "fp32"), out(n // 2, "fp32")), {2: ab12, 3: half}, {"alpha": 2.0}
    c, d = oracle.srelu(a, b, prob, 2.0)
    largest = np.abs(d).max(initial=-np.inf)
    amax = np.full(1, 7e9, np.float32)
    yield (
        ops.GemmSrelu,
        (a, b, out(n, "bf16"), out(n, "fp32"), None, None, prob, None, amax),
        {2: c, 3: d, 8: np.full(1, largest)},
        {"alpha": 2.0},
    )
    d, dprob = oracle.dsrelu(a, b, dy, prob, 2.0)
    yield ops.GemmDsrelu, (a, b, dy, out(n, "fp32"), column, None, None, prob), {3: d, 4: dprob}, {"alpha": 2.0}


@pytest.mark.parametrize("major", "nm")
def test_classes_write_every_element_of_their_outputs(major):
    for kind, tensors, want, options in prepared(major=major):
        op = kind(*tensors, **options)
        assert op.check_support() is True
        op.compile()
        op.compile()
        assert op.execute(*tensors) is None
        for place, value in want.items():
            if kind is ops.GemmSwiglu and place == 3:
                close(tensors[place], value, np.float32)
            else:
                same(tensors[place], value, tensors[place].dtype)
        if options:
            op.execute(*tensors, alpha=0.0)
            assert (tensors[next(iter(want))].astype(np.float32) == 0).all()


def test_a_class_runs_other_sizes_and_can_be_called():
    _, first, _, _ = next(prepared())
    op = ops.GemmAmax(*first)
    for size in [(3, 8, 5, 2), (64, 1, 9, 7)]:
        _, tensors, want, _ = next(prepared(size))
        op(*tensors)
        same(tensors[4], want[4], np.float16)


@pytest.mark.parametrize(("m", "k", "batch"), [(1, 16, 1), (1, 16, 3), (5, 1, 1), (1, 1, 1), (0, 16, 1), (5, 0, 2), (1, 16, 0)])
@pytest.mark.parametrize("majors", itertools.product("mk", "mk", "mn"), ids="".join)
def test_cases_a_26_of_one_row_or_column_no_major_can_be_told_and_none_is_asked(m, k, batch, majors):
    """A class for columns one after another runs on one row, whose strides say nothing."""
    first = 1 if batch == 1 else 2
    samples = [
        matrix(shape, np.float32, major, 1) for shape, major in zip(((8, 16, first), (64, 16, first)), majors, strict=False)
    ]
    outputs = [poisoned((8, n, first), np.float32, majors[2]) for n in (64, 32)]
    op = ops.GemmSwiglu(*samples, *outputs)
    op.compile()
    plain = (
        matrix((m, k, batch), np.float32, "k", 2),
        matrix((64, k, batch), np.float32, "k" if k < 2 or batch == 0 else majors[1], 3),
    )
    for a_major, out_major in itertools.product({"k", majors[0]}, {"n", majors[2]}):
        if m > 1 and out_major != majors[2]:
            continue
        a = laid(plain[0], a_major)
        made = [poisoned((m, n, batch), np.float32, out_major) for n in (64, 32)]
        op.execute(a, plain[1], *made)
        ab12, c = oracle.swiglu(*plain, 1.0)
        same(made[0], ab12, np.float32)
        close(made[1], c, np.float32, 16)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda op: pickle.loads(pickle.dumps(op))])
def test_copies_of_classes_are_compiled_where_the_original_is(copied):
    a, b = matrix((5, 6, 2), np.float32, seed=1), matrix((64, 6, 2), np.float32, seed=2)
    samples = [poisoned((5, n, 2), np.float32, "m") for n in (64, 32)]
    op = ops.GemmSwiglu(a, b, *samples, 0.5, mma_tiler_mn=(256, 128), cluster_shape_mn=(2, 1))
    for is_compiled in (False, True):
        twin = copied(op)
        outputs = [poisoned((5, n, 2), np.float32, "m") for n in (64, 32)]
        if not is_compiled:
            with pytest.raises(RuntimeError, match="compile"):
                twin.execute(a, b, *outputs)
            assert twin.check_support() is True
            op.compile()
            continue
        twin.execute(a, b, *outputs)
        same(outputs[0], oracle.swiglu(a, b, 0.5)[0], np.float32)
        with pytest.raises(ValueError, match="batch"):
            twin.execute(a[..., :1], b[..., :1], *(x[..., :1] for x in outputs))
    wrong = copied(ops.GemmSwiglu(a, b, *samples, mma_tiler_mn=(96, 96)))
    with pytest.raises(ValueError, match="mma_tiler_mn"):
        wrong.compile()


def test_execute_before_compile_and_with_other_types():
    kind, tensors, _, _ = next(prepared())
    op = kind(*tensors)
    with pytest.raises(RuntimeError) as caught:
        op.execute(*tensors)
    assert caught.value.rule == "plan.stage"
    op.compile()
    with pytest.raises(ValueError, match=r"op\.sample"):
        op.execute(*tensors[:4], poisoned((5, 64, 2), np.float32), tensors[5])


def test_constructors_check_nothing():
    op = ops.GemmAmax(np.ones(3, np.float32), None, None, None, None, None)
    with pytest.raises(ValueError, match=r"op\.missing"):
        op.check_support()


A, B = inputs((4, 64, 16, 2), "bf16")
REFUSED = [
    ("op.rank", lambda f, **k: f(A[..., 0], B, **k)),
    ("op.extent", lambda f, **k: f(A, B[:, :8], **k)),
    ("op.extent", lambda f, **k: f(A[..., :1], B, **k)),
    ("op.dtype", lambda f, **k: f(A, B.astype(np.float32), **k)),
    ("op.dtype", lambda f, **k: f(A.astype(np.int8), B.astype(np.int8), **k)),
    ("op.layout", lambda f, **k: f(A[:, ::2], B[:, ::2], **k)),
    ("op.option", lambda f, **k: f(A, B, acc_dtype="bf16", **k)),
    ("op.option", lambda f, **k: f(A, B, sf_vec_size=64, **k)),
    ("op.option", lambda f, **k: f(A, B, mma_tiler_mn=(100, 128), **k)),
    ("op.option", lambda f, **k: f(A, B, cluster_shape_mn=(3, 1), **k)),
    ("op.missing", lambda f, **k: f(None, B, **k)),
    ("op.missing", lambda f, **k: f(A, B, sfa_tensor=A, **k)),
    ("op.framework", lambda f, **k: f(A, [1.0], **k)),
]


@pytest.mark.parametrize(
    "function", [ops.gemm_amax_forward, ops.gemm_swiglu_forward, ops.gemm_srelu_forward, ops.gemm_srelu_backward]
)
@pytest.mark.parametrize(("rule", "call"), REFUSED)
def test_refusals(function, rule, call):
    options = {"c_tensor": matrix((4, 64, 2), TYPES["bf16"])} if function is ops.gemm_srelu_backward else {}
    function(A, B, **options)
    with pytest.raises(ValueError) as caught:
        call(function, **options)
    assert caught.value.rule == rule


@pytest.mark.parametrize(
    ("function", "legal", "illegal"),
    [
        (ops.gemm_amax_forward, [((256, 128), (4, 4))], [((128, 64), (1, 1)), ((128, 128), (8, 1)), ((192, 128), (1, 1))]),
        (ops.gemm_swiglu_forward, [((256, 32), (2, 8)), ((128, 224), None)], [((128, 32), (1, 2)), ((256, 32), (1, 1))]),
        (ops.gemm_srelu_forward, [((256, 192), (2, 4)), ((128, 64), (1, 1))], [((256, 96), (2, 1)), ((256, 64), (1, 1))]),
    ],
)
def test_tiles_and_clusters_are_those_of_the_pages_and_change_nothing(function, legal, illegal):
    want = function(A, B)
    for tile, cluster in legal:
        for got, expected in zip(function(A, B, mma_tiler_mn=tile, cluster_shape_mn=cluster), want, strict=True):
            assert (got is None and expected is None) or got.tobytes() == expected.tobytes()
    for tile, cluster in illegal:
        with pytest.raises(ValueError, match=r"op\.option"):
            function(A, B, mma_tiler_mn=tile, cluster_shape_mn=cluster)


def test_majors_and_types_that_are_none():
    for function in (ops.gemm_amax_forward, ops.gemm_swiglu_forward, ops.gemm_srelu_forward):
        with pytest.raises(ValueError, match=r"\[op.option\] major: got 'k', wanted 'n' or 'm'"):
            function(A, B, c_major="k")
        with pytest.raises(ValueError, match=r"op\.dtype"):
            function(A, B, c_dtype="int32")
    with pytest.raises(ValueError, match="a multiple of 64"):
        ops.gemm_swiglu_forward(A, laid(B[:32], "k"))
    with pytest.raises(ValueError, match="ab12_stages"):
        ops.gemm_swiglu_forward(A, B, ab12_stages=0)
    with pytest.raises(ValueError, match="Unsupported tensor framework: list"):
        ops.gemm_swiglu_forward([[1.0]], B)
    with pytest.raises(ValueError, match=r"prob.*op.dtype|op.dtype.*prob"):
        ops.gemm_srelu_forward(A, B, prob_tensor=np.ones((4, 1, 2)).astype(np.float16))
    with pytest.raises(ValueError, match=r"op.extent.*prob"):
        ops.gemm_srelu_forward(A, B, prob_tensor=np.ones((4, 64, 2), np.float32))


FP8 = [np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)]


@pytest.mark.parametrize("dtype", FP8)
@pytest.mark.parametrize("majors", [("k", "k", "n"), ("m", "m", "m")])
def test_fp8(dtype, majors):
    a, b = matrix((5, 16, 2), dtype, majors[0], 1), matrix((64, 16, 2), dtype, majors[1], 2)
    prob, dy = probabilities(5, 2), matrix((5, 64, 2), np.float32, majors[2], 6)
    for out in (np.dtype(np.float32), TYPES["bf16"], dtype):
        r = ops.gemm_amax_forward(a, b, c_dtype=out, c_major=majors[2])
        assert r.amax_tensor.item() == oracle.amax(a, b)[1]
        saturated(r.c_tensor, oracle.product(a, b), out)
        ab12 = ops.gemm_swiglu_forward(a, b, 0.5, ab12_dtype=out, c_major=majors[2], acc_dtype="fp16").ab12_tensor
        saturated(ab12, oracle.swiglu(a, b, 0.5)[0], out)
        s = ops.gemm_srelu_forward(a, b, prob_tensor=prob, c_dtype=out, c_major=majors[2])
        saturated(s.c_tensor, oracle.product(a, b), out)
        same(s.d_tensor, oracle.srelu(a, b, prob, 1.0)[1], TYPES["bf16"])
    d, dprob, _, _ = ops.gemm_srelu_backward(a, b, dy, prob_tensor=prob)
    want = oracle.dsrelu(a, b, dy, prob, 1.0)
    same(d, want[0], TYPES["bf16"])
    same(dprob, want[1], np.float32)


def saturated(got, want, dtype):
    """Rounded once; fp8 stops at its largest value."""
    if np.dtype(dtype) in FP8:
        limit = float(ml_dtypes.finfo(dtype).max)
        want = np.clip(want, -limit, limit)
    same(got, want, dtype)


def test_scales_come_together_and_quantised_outputs_need_them():
    scales = np.zeros((32, 4, 1, 4, 1, 2), np.uint8)
    a, b = matrix((4, 64, 2), FP8[0]), matrix((64, 64, 2), FP8[0])
    dy = {"c_tensor": matrix((4, 64, 2), np.float32)}
    for function, more in [
        (ops.gemm_amax_forward, {}),
        (ops.gemm_swiglu_forward, {}),
        (ops.gemm_srelu_forward, {}),
        (ops.gemm_srelu_backward, dy),
    ]:
        with pytest.raises(ValueError, match=r"op\.missing.* sfa"):
            function(a, b, sfb_tensor=scales, **more)
    for function, more in [(ops.gemm_srelu_forward, {}), (ops.gemm_srelu_backward, dy)]:
        with pytest.raises(ValueError, match=r"op\.dtype.* beside operands without scales"):
            function(a, b, d_dtype=FP8[0], **more)
        with pytest.raises(ValueError, match=r"op\.missing.* norm_const"):
            function(a, b, norm_const_tensor=np.ones(1, np.float32), **more)


def test_fp16_sums_are_accepted_where_they_are_legal():
    a, b = inputs((4, 64, 16, 1), "fp16")
    same(ops.gemm_swiglu_forward(a, b, acc_dtype="fp16").ab12_tensor, oracle.swiglu(a, b, 1.0)[0], np.float32)
    for dtype in ("bf16", "fp32"):
        with pytest.raises(ValueError, match="acc_dtype"):
            ops.gemm_swiglu_forward(*inputs((4, 64, 16, 1), dtype), acc_dtype="fp16")


def test_cases_a_51_one_plan_for_every_scalar_and_size():
    _verglas.clear_plan_cache()
    before = _verglas.plan_cache()["compiled"]
    for i in range(1, 40):
        a, b = inputs((i, 64, 2 * i + 1, 1), "bf16")
        ops.gemm_swiglu_forward(a, b, alpha=i / 3)
        ops.gemm_srelu_forward(a, b, alpha=i / 3, prob_tensor=probabilities(i, 1))
    assert _verglas.plan_cache()["compiled"] == before + 2
    ops.gemm_srelu_forward(a, b)  # without prob: another kernel
    ops.gemm_swiglu_forward(a, b, c_major="m")
    assert _verglas.plan_cache()["compiled"] == before + 4
    assert _verglas.plan_cache()["plans"] == 4 < _verglas.plan_cache()["limit"]


def test_threads_share_plans_not_outputs():
    a, b = inputs((31, 64, 17, 2), "fp32")
    wrong = []

    def work(value):
        want = oracle.product(a * value, b)
        for _ in range(20):
            if not np.array_equal(ops.gemm_amax_forward(a * value, b).c_tensor, want):
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(np.float32(i),)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_results_by_name_key_and_place():
    r = ops.gemm_swiglu_forward(A, B)
    ab12, c, sfc, amax = r
    assert list(r.keys()) == ["ab12_tensor", "c_tensor", "sfc_tensor", "amax_tensor"]
    assert r["c_tensor"] is r.c_tensor is r[1] is c and r[0] is ab12 and sfc is amax is r[3] is None
    assert "c_tensor" in r and len(r) == 4 and isinstance(r, dict)
    for wrong in (-1, 4):
        with pytest.raises(IndexError):
            r[wrong]
    with pytest.raises(KeyError):
        r["d_tensor"]
    with pytest.raises(AttributeError, match="ab12_tensor"):
        _ = r.d_tensor


def test_results_are_set_and_copied_for_every_way_of_access():
    r = ops.gemm_swiglu_forward(A, B)
    ab12, c, sfc, amax = r
    assert [v is w for v, w in zip(reversed(r), (amax, sfc, c, ab12), strict=True)] == [True] * 4
    other = r.copy()
    assert type(other) is ops.TupleDict and list(other.keys()) == list(r.keys()) and other[1] is c
    r.c_tensor = ab12
    assert r.c_tensor is r["c_tensor"] is r[1] is ab12 and other.c_tensor is c
    with pytest.raises(AttributeError, match="no output d_tensor; there are ab12_tensor"):
        r.d_tensor = c
    again = pickle.loads(pickle.dumps(r))
    assert type(again) is ops.TupleDict and list(again.keys()) == list(r.keys())


def test_outputs_that_meet_an_input_are_refused():
    memory = np.zeros(4096, np.float32)
    a, b, c = memory[:32].reshape(4, 8, 1), memory[64:128].reshape(8, 8, 1), memory[16:48].reshape(4, 8, 1)
    op = ops.GemmAmax(a, b, None, None, c, np.zeros((1, 1, 1), np.float32))
    with pytest.raises(verglas.InvalidCallError, match=r"call\.overlap\] gemm_amax, output 'c' and a 'a': got bytes"):
        op(a, b, None, None, c, np.zeros((1, 1, 1), np.float32))
    assert (memory == 0).all()


def test_spec_of_outputs_without_memory():
    spec = _verglas.TensorSpec([4, 16, 2], "bf16", [16, 1, 64])
    other = _verglas.TensorSpec([64, 16, 2], "bf16", [16, 1, 1024])
    options = _verglas.OperationOptions(c_dtype="fp16", major="m")
    made = _verglas.Operation("gemm_swiglu").outputs([spec, other] + 7 * [None], options)
    assert [m and (m.shape, m.stride, m.data_type.name) for m in made[:5]] == [
        None, None, ([4, 64, 2], [1, 4, 256], "FLOAT"), ([4, 32, 2], [1, 4, 128], "HALF"), None,
    ]  # fmt: skip


PAGES = sorted((Path(__file__).resolve().parents[2] / "docs/ops").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_of_the_pages_run(page):
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert blocks or page.stem == "README"
    for block in blocks:
        exec(compile(block, str(page), "exec"), {})


def test_no_class_has_a_frame_of_its_own_in_a_launch():
    classes = {c for c in vars(ops).values() if isinstance(c, type) and issubclass(c, ops._operation.PreparedOperation)}
    classes.discard(ops._operation.PreparedOperation)
    assert len(classes) >= 6 and {type(vars(c)["execute"]) for c in classes} == {_verglas.OperationMethod}


@pytest.mark.parametrize(
    ("rule", "options", "words"),
    [
        ("op.dtype", {"c_dtype": "float12"}, "c_dtype: got float12, wanted a type of verglas.data_type, or its name"),
        ("op.dtype", {"acc_dtype": 7}, "acc_dtype: got 7, wanted a type of verglas.data_type"),
        ("op.dtype", {"ab12_dtype": np.float64}, "ab12_dtype: got float64, wanted a type"),
        ("op.option", {"c_major": None}, "major: got None, wanted 'n' or 'm'"),
        ("op.option", {"mma_tiler_mn": (128, 128, 64)}, r"mma_tiler_mn: got \(128, 128, 64\), wanted two numbers"),
        ("op.option", {"cluster_shape_mn": "2x1"}, "cluster_shape_mn: got '2x1', wanted two numbers"),
        ("op.option", {"sf_vec_size": 16.0}, r"sf_vec_size: got 16\.0, wanted 16 or 32"),
        ("op.option", {"ab12_stages": "four"}, "ab12_stages: got 'four', wanted 1 or more"),
        ("op.option", {"ab12_stages": 0}, "ab12_stages: got 0, wanted 1 or more"),
        ("op.option", {"alpha": None}, "gemm_swiglu, alpha: got None, wanted a number"),
        ("op.option", {"alpha": "a" * 70}, "gemm_swiglu, alpha: got an object of type str, wanted a number"),
    ],
)
def test_options_of_the_wrong_kind_are_refused_by_their_names(rule, options, words):
    with pytest.raises(verglas.InvalidCallError, match=words) as caught:
        ops.gemm_swiglu_forward(A, B, **options)
    assert caught.value.rule == rule
    if "c_dtype" not in options and "ab12_dtype" not in options and "c_major" not in options:
        outputs = poisoned((5, 128, 2), np.float32), poisoned((5, 64, 2), np.float16)
        with pytest.raises(verglas.InvalidCallError, match=words):
            ops.GemmSwiglu(A, B, *outputs, **options)


def test_outputs_of_types_that_numpy_has_not_say_what_to_install(monkeypatch):
    for without in (None, type(sys)("ml_dtypes")):
        monkeypatch.setitem(sys.modules, "ml_dtypes", without)
        with pytest.raises(ImportError, match=r"NumPy has no bfloat16 of its own: pip install 'ml_dtypes>=0\.5'"):
            ops.gemm_srelu_forward(A, B)
        assert ops.gemm_srelu_forward(A, B, c_dtype="fp32", d_dtype="fp32").d_tensor.dtype == np.float32


def test_an_address_is_no_tensor_of_an_operation():
    outputs = poisoned((4, 64, 2), np.float32), poisoned((4, 32, 2), np.float16)
    op = ops.GemmSwiglu(A, B, *outputs)
    op.compile()
    for place in range(4):
        given = [A, B, *outputs]
        given[place] = given[place].ctypes.data
        with pytest.raises(verglas.InvalidCallError, match=r"op\.(rank|dtype)\] gemm_swiglu, .*got (an address|not_set)"):
            op.execute(*given)


def test_an_operation_names_itself_where_an_array_is_refused():
    with pytest.raises(verglas.InvalidCallError, match=r"call\.dtype\] gemm_swiglu, array 'b': got float64"):
        ops.gemm_swiglu_forward(A, B.astype(np.float64))
