"""Operations on JAX' arrays, eagerly and in what JAX compiles, maps and differentiates; on the CPU."""

import subprocess
import sys

import ml_dtypes
import numpy as np
import ops_oracle as oracle
import pytest
import verglas
from support import lacking
from verglas import _verglas, ops

try:
    import jax
    import jax.numpy as jnp
    from jax import export
except ImportError:
    lacking("xla", "jax is not installed", module=True)
if _verglas.xla_targets() is None:
    lacking("xla", "the module was built without JAX' headers", module=True)


@pytest.fixture(autouse=True)
def on_the_cpu():
    with jax.default_device(jax.devices("cpu")[0]):
        yield


F32 = jnp.float32
TYPES = [np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.float8_e4m3fn)]


def integers(shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32).astype(dtype)


def operands(m=5, n=64, k=7, batch=1, dtype=np.float32):
    return integers((m, k, batch), 1, dtype), integers((n, k, batch), 2, dtype)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("jit", [False, True])
def test_values(dtype, batch, jit):
    a, b = operands(batch=batch, dtype=dtype)
    prob, dy = integers((5, 1, batch), 5), integers((5, 64, batch), 6)
    wrap = jax.jit if jit else lambda f: f
    c, amax = wrap(lambda a, b: verglas.gemm_amax_jax_forward(a, b, c_dtype="bf16"))(a, b)
    np.testing.assert_array_equal(np.asarray(c, np.float64), oracle.product(a, b).astype(ml_dtypes.bfloat16))
    assert amax.shape == (1, 1, 1) and amax.item() == oracle.amax(a, b)[1]
    ab12, c = wrap(lambda a, b: ops.gemm_swiglu_jax_forward(a, b, 0.5, c_dtype=F32))(a, b)
    np.testing.assert_array_equal(ab12, oracle.swiglu(a, b, 0.5)[0])
    np.testing.assert_allclose(c, oracle.swiglu(a, b, 0.5)[1], rtol=1e-5, atol=1e-6)
    c, d = wrap(lambda a, b, p: ops.gemm_srelu_jax_forward(a, b, prob_tensor=p, alpha=2.0, d_dtype=F32))(a, b, prob)
    np.testing.assert_array_equal(d, oracle.srelu(a, b, prob, 2.0)[1])
    assert c.dtype == jnp.bfloat16
    d, dprob = wrap(lambda a, b, y, p: ops.gemm_srelu_jax_backward(a, b, y, prob_tensor=p, d_dtype=F32))(a, b, dy, prob)
    np.testing.assert_array_equal(d, oracle.dsrelu(a, b, dy, prob, 1.0)[0])
    np.testing.assert_array_equal(dprob, oracle.dsrelu(a, b, dy, prob, 1.0)[1])


def test_functions_take_arrays_and_agree_with_numpy_bit_for_bit():
    a, b = (np.random.default_rng(i).normal(size=s).astype(np.float32) for i, s in enumerate([(33, 40, 1), (128, 40, 1)]))
    want = ops.gemm_swiglu_forward(a, b, 1.5, c_dtype="bf16")
    eager = ops.gemm_swiglu_forward(jnp.asarray(a), jnp.asarray(b), 1.5, c_dtype="bf16")
    jitted = jax.jit(lambda a, b: ops.gemm_swiglu_jax_forward(a, b, 1.5, c_dtype="bf16"))(a, b)
    assert isinstance(eager.c_tensor, jax.Array) and list(eager.keys()) == list(want.keys()) and eager.sfc_tensor is None
    for i in range(2):
        assert np.asarray(eager[i]).tobytes() == np.ascontiguousarray(want[i]).tobytes() == np.asarray(jitted[i]).tobytes()


def test_cases_a_50_no_output_is_filled_before_a_call():
    a, b = operands()
    text = jax.jit(lambda a, b: ops.gemm_swiglu_jax_forward(a, b)).lower(a, b).as_text()
    (call,) = [line for line in text.splitlines() if "custom_call" in line]
    arguments = call[call.index("(") + 1 : call.index(")")].split(", ")
    made_of = {
        argument: [line for line in text.splitlines() if line.strip().startswith(argument + " = ")] for argument in arguments
    }
    assert len(arguments) == 2 and not any(
        "constant" in line or "broadcast" in line for lines in made_of.values() for line in lines
    )
    assert "output_operand_alias" not in call


def test_results_pass_through_jit():
    a, b = map(jnp.asarray, operands())
    r = jax.jit(lambda a, b: ops.gemm_swiglu_forward(a, b, c_dtype="fp32"))(a, b)
    assert isinstance(r, ops.TupleDict) and r.amax_tensor is None
    np.testing.assert_array_equal(r.ab12_tensor, oracle.product(np.asarray(a), np.asarray(b)))


def test_cases_a_64_transposed_arrays():
    a, b = operands()
    c, _ = jax.jit(lambda a, b: ops.gemm_amax_jax_forward(jnp.transpose(a, (1, 0, 2)), b))(a.transpose(1, 0, 2), b)
    np.testing.assert_array_equal(c, oracle.product(np.asarray(a), np.asarray(b)))
    c = ops.gemm_amax_forward(jnp.asarray(a.transpose(1, 0, 2)).transpose(1, 0, 2), jnp.asarray(b)).c_tensor
    np.testing.assert_array_equal(c, oracle.product(np.asarray(a), np.asarray(b)))


@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0), (2, 1)])
def test_vmap(axes):
    size = 4
    full = [integers((size, 5, 7, 2), 1), integers((size, 64, 7, 2), 2)]
    given = [x if axis == 0 else x[0] if axis is None else np.moveaxis(x, 0, axis) for x, axis in zip(full, axes, strict=True)]
    each = [x if axis is not None else np.broadcast_to(x[0], x.shape) for x, axis in zip(full, axes, strict=True)]
    ab12, c = jax.jit(jax.vmap(lambda a, b: ops.gemm_swiglu_jax_forward(a, b, c_dtype=F32), axes))(*given)
    top, amax = jax.vmap(ops.gemm_amax_jax_forward, axes)(*given)
    _, d = jax.vmap(lambda a, b: ops.gemm_srelu_jax_forward(a, b, d_dtype=F32), axes)(*given)
    assert amax.shape == (size, 1, 1, 1)
    for i in range(size):
        want = oracle.swiglu(each[0][i], each[1][i], 1.0)
        np.testing.assert_array_equal(ab12[i], want[0])
        np.testing.assert_allclose(c[i], want[1], rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(top[i], want[0])
        assert amax[i].item() == np.abs(want[0]).max()
        np.testing.assert_array_equal(d[i], np.maximum(want[0], 0) ** 2)


def plain(a, b, prob, alpha=1.5):
    c = alpha * jnp.einsum("mkl,nkl->mnl", a, b)
    return c, prob * jnp.maximum(c, 0) ** 2


@pytest.mark.parametrize("jit", [False, True])
def test_gradients(jit):
    rng = np.random.default_rng(0)
    a, b, prob = (jnp.asarray(rng.normal(size=s), F32) for s in [(5, 7, 2), (64, 7, 2), (5, 1, 2)])
    weight = jnp.asarray(rng.normal(size=(2, 5, 64, 2)), F32)

    def loss(function):
        return lambda *x: sum((w * y).sum() for w, y in zip(weight, function(*x), strict=True))

    def fused(a, b, prob):
        return ops.gemm_srelu_jax_forward(a, b, prob_tensor=prob, alpha=1.5, c_dtype=F32, d_dtype=F32)

    take = lambda f: (jax.jit if jit else lambda g: g)(jax.grad(loss(f), argnums=(0, 1, 2)))  # noqa: E731
    for got, want in zip(take(fused)(a, b, prob), take(plain)(a, b, prob), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)
    mapped = jax.vmap(jax.grad(loss(fused)), (0, None, None))(jnp.stack([a, 2 * a]), b, prob)
    np.testing.assert_allclose(mapped[1], jax.grad(loss(plain))(2 * a, b, prob), rtol=1e-4, atol=1e-3)
    without = jax.grad(lambda a: ops.gemm_srelu_jax_forward(a, b, d_dtype=F32)[1].sum())(a)
    want = jax.grad(lambda a: plain(a, b, 1.0, 1.0)[1].sum())(a)
    np.testing.assert_allclose(without, want, rtol=1e-4, atol=1e-3)


def plain_swiglu(a, b, alpha=1.5):
    ab12 = alpha * jnp.einsum("mkl,nkl->mnl", a, b)
    m, n, batch = ab12.shape
    runs = ab12.reshape(m, n // 64, 2, 32, batch)
    return ab12, (runs[:, :, 0] * jax.nn.silu(runs[:, :, 1])).reshape(m, n // 2, batch)


def test_gradients_of_swiglu():
    rng = np.random.default_rng(0)
    a, b = (jnp.asarray(rng.normal(size=s), F32) for s in [(5, 7, 2), (128, 7, 2)])
    weights = [jnp.asarray(rng.normal(size=s), F32) for s in [(5, 128, 2), (5, 64, 2)]]

    def loss(function):
        return lambda *x: sum((w * y).sum() for w, y in zip(weights, function(*x), strict=True))

    fused = lambda a, b: ops.gemm_swiglu_jax_forward(a, b, 1.5, c_dtype=F32)  # noqa: E731
    got = jax.jit(jax.grad(loss(fused), argnums=(0, 1)))(a, b)
    for g, w in zip(got, jax.grad(loss(plain_swiglu), argnums=(0, 1))(a, b), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-3)


def test_the_gradient_of_alpha_as_an_array():
    rng = np.random.default_rng(0)
    a, b, prob = (jnp.asarray(rng.normal(size=s), F32) for s in [(5, 7, 2), (64, 7, 2), (5, 1, 2)])
    swiglu = lambda alpha, a: ops.gemm_swiglu_jax_forward(a, b, alpha, c_dtype=F32)[1].sum()  # noqa: E731
    srelu = lambda alpha, a: ops.gemm_srelu_jax_forward(a, b, None, None, prob, alpha, d_dtype=F32)[1].sum()  # noqa: E731
    wants = [lambda alpha, a: plain_swiglu(a, b, alpha)[1].sum(), lambda alpha, a: plain(a, b, prob, alpha)[1].sum()]
    for fused, want in zip([swiglu, srelu], wants, strict=True):
        got = jax.jit(jax.grad(fused, argnums=(0, 1)))(jnp.float32(1.5), a)
        for g, w in zip(got, jax.grad(want, argnums=(0, 1))(jnp.float32(1.5), a), strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-3)
        np.testing.assert_allclose(jax.grad(fused)(1.5, a), got[0], rtol=1e-6)  # of a number, which is none while it is traced


def test_alpha_may_be_a_constant_of_the_program():
    a, b = map(jnp.asarray, operands())
    f = jax.jit(lambda a: ops.gemm_swiglu_jax_forward(a, b, jnp.float32(2), c_dtype=F32)[0].sum())
    np.testing.assert_array_equal(jax.grad(f)(a), 2 * np.broadcast_to(np.asarray(b).sum(0), a.shape))


def test_there_is_no_gradient_but_the_documented_ones():
    a, b = map(jnp.asarray, operands())
    with pytest.raises(Exception, match="differentiat"):
        jax.grad(lambda a: ops.gemm_amax_jax_forward(a, b)[0].sum())(a)


def test_a_function_compiles_no_program_for_each_alpha():
    from verglas.ops import _jax

    a, b = (jnp.asarray(x) for x in operands())
    verglas.gemm_swiglu_forward(a, b, 0.5)
    before = _jax._one_by_one.cache_info().misses
    for alpha in (0.25, -3.0, np.float32(7), jnp.float32(2)):
        ab12 = verglas.gemm_swiglu_forward(a, b, alpha).ab12_tensor
        np.testing.assert_array_equal(ab12, float(alpha) * oracle.product(np.asarray(a), np.asarray(b)))
    assert _jax._one_by_one.cache_info().misses == before
    jitted = jax.jit(lambda a, b: verglas.gemm_swiglu_forward(a, b, 0.5).ab12_tensor)
    np.testing.assert_array_equal(jitted(a, b), 0.5 * oracle.product(np.asarray(a), np.asarray(b)))


def test_alpha_may_be_an_array_without_a_retrace():
    a, b = operands()
    traces = []

    @jax.jit
    def f(a, b, alpha):
        traces.append(1)
        return ops.gemm_swiglu_jax_forward(a, b, alpha)[0]

    for alpha in (1.0, -2.0, 0.5):
        np.testing.assert_array_equal(f(a, b, jnp.float32(alpha)), alpha * oracle.product(np.asarray(a), np.asarray(b)))
    assert len(traces) == 1


def test_cases_a_67_a_loop_inside_a_program():
    a, b = operands(n=7)
    step = lambda i, x: ops.gemm_amax_jax_forward(x, jnp.asarray(b))[0] % 5 + i  # noqa: E731
    got = jax.jit(lambda a: jax.lax.fori_loop(0, 20, step, a))(a)
    want = a
    for i in range(20):
        want = (oracle.product(want, b) % 5 + i).astype(np.float32)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize(("m", "n", "k", "batch"), [(0, 64, 7, 1), (5, 0, 7, 1), (5, 64, 0, 1), (5, 64, 7, 0), (0, 0, 0, 1)])
def test_nothing_is_a_number_of_rows(jit, m, n, k, batch):
    wrap = jax.jit if jit else lambda f: f
    a, b = operands(m, n, k, batch)
    c, amax = wrap(ops.gemm_amax_jax_forward)(a, b)
    assert c.shape == (m, n, batch) and not np.asarray(c).any()
    assert amax.item() == (0 if c.size else -np.inf)
    d, dprob = wrap(ops.gemm_srelu_jax_backward)(a, b, np.ones((m, n, batch), np.float32))
    assert d.shape == c.shape and dprob.shape == (m, 1, batch) and not np.asarray(d).any() and not np.asarray(dprob).any()
    gradients = jax.grad(lambda a, b: wrap(ops.gemm_srelu_jax_forward)(a, b)[1].astype(F32).sum(), (0, 1))(a, b)
    assert [g.shape for g in gradients] == [a.shape, b.shape] and not any(np.asarray(g).any() for g in gradients)


def test_refusals_are_raised_while_tracing():
    a, b = operands()
    for rule, call in [
        ("op.extent", lambda a, b: ops.gemm_swiglu_jax_forward(a, b[:32])),
        ("op.rank", lambda a, b: ops.gemm_amax_jax_forward(a[..., 0], b)),
        ("op.dtype", lambda a, b: ops.gemm_amax_jax_forward(a, b.astype(jnp.bfloat16))),
        ("op.missing", lambda a, b: ops.gemm_amax_jax_forward(a, b, sfa_tensor=a)),
        ("op.dtype", lambda a, b: ops.gemm_srelu_jax_forward(a, b, d_dtype="float8_e4m3fn")),
        ("op.dtype", lambda a, b: ops.gemm_swiglu_jax_forward(a, b, jnp.ones(2))),
        ("op.option", lambda a, b: ops.gemm_amax_forward(a, b, c_major="m")),
    ]:
        with pytest.raises(verglas.Error) as caught:
            jax.eval_shape(call, a, b)
        assert caught.value.rule == rule
    symbolic = jax.ShapeDtypeStruct(export.symbolic_shape("m, 7, 1"), F32)
    with pytest.raises(ValueError, match=r"op\.extent.* gemm_amax, a: got shape \(m, 7, 1\)"):
        jax.eval_shape(ops.gemm_amax_jax_forward, symbolic, b)
    with pytest.raises(ValueError, match="row-major"):
        ops.gemm_amax_forward(jnp.asarray(a), jnp.asarray(b), c_major="m")
    with pytest.raises(ValueError, match="a stream"):
        ops.gemm_amax_forward(jnp.asarray(a), jnp.asarray(b), stream=1)
    with pytest.raises(ValueError, match=r"op\.framework"):
        ops.gemm_amax_forward(jnp.asarray(a), b)


def test_a_class_refuses_to_write_into_a_jax_array():
    a, b = operands()
    out = jnp.zeros((5, 64, 1), F32)
    op = ops.GemmAmax(a, b, None, None, out, np.zeros((1, 1, 1), np.float32))
    with pytest.raises(ValueError, match=r"call\.read_only"):
        op(a, b, None, None, out, np.zeros((1, 1, 1), np.float32))
    assert (out == 0).all()


def test_arrays_of_numpy_are_of_jaxs_types_in_every_entry():
    a, b = (np.ones(shape, np.float64) for shape in ((5, 16, 1), (64, 16, 1)))
    for entry in (ops.gemm_amax_jax_forward, ops.gemm_swiglu_jax_forward, ops.gemm_srelu_jax_forward):
        assert float(entry(a, b)[0][0, 0, 0]) == 16
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        for entry in (ops.gemm_amax_jax_forward, ops.gemm_swiglu_jax_forward, ops.gemm_srelu_jax_forward):
            with pytest.raises(verglas.InvalidCallError, match=r"op\.dtype.*, a: got float64"):
                entry(a, b)


FOREIGN_PROGRAM = """
import jax, numpy as np
import verglas
verglas.gemm_amax_jax_forward
call = jax.ffi.ffi_call("verglas.operation", jax.ShapeDtypeStruct((1,), np.float32))
try:
    jax.jit(call)(np.ones(1, np.float32)).block_until_ready()
except Exception as e:
    print(e)
"""


def test_programs_of_other_processes_find_the_operations():
    """As `jax.export` makes them: no entry is called before they run."""
    done = subprocess.run([sys.executable, "-c", FOREIGN_PROGRAM], capture_output=True, text=True, check=True)
    assert "attribute" in done.stdout.lower() and "registered" not in done.stdout


def test_a_call_moves_nothing_to_a_device_unasked():
    a, b = map(jnp.asarray, operands())
    with jax.transfer_guard("disallow"):
        twice = ops.gemm_swiglu_forward(a, b, 2.0).ab12_tensor
    np.testing.assert_array_equal(twice, 2 * oracle.product(*operands()))


def test_a_class_refuses_what_is_being_traced():
    a, b = map(jnp.asarray, operands())
    c, amax = np.zeros((5, 64, 1), np.float32), np.zeros(1, np.float32)
    op = ops.GemmAmax(a, b, None, None, c, amax)
    op.compile()
    with pytest.raises(ValueError, match=r"pack\.object.*gemm_amax, array 'a'.*not a concrete array"):
        jax.jit(lambda x: op.execute(x, b, None, None, c, amax))(a)
    assert (c == 0).all()


@pytest.mark.parametrize("shape", [(3, 0, 2), (0, 5, 2), (3, 5, 0), (3, 0, 1)])
@pytest.mark.parametrize("name", ["gemm_swiglu_jax_forward", "gemm_srelu_jax_forward"])
def test_nothing_has_gradients_and_is_mapped(shape, name):
    """XLA's compiler ended the process where a product of no depth was differentiated."""
    m, k, batch = shape
    a, b = jnp.ones((m, k, batch)), jnp.ones((64, k, batch))

    def total(a, b, alpha=1.0):
        return sum(x.astype(F32).sum() for x in getattr(ops, name)(a, b, alpha=alpha))

    for places in ((0, 1), (0, 1, 2)):
        of = (a, b, jnp.float32(2))[: len(places)]
        for found in (jax.grad(total, places)(*of), jax.jit(jax.grad(total, places))(*of)):
            assert all(g.shape == x.shape and (g == 0).all() for g, x in zip(found, of, strict=True))
    beside = jax.jit(lambda a, b: (getattr(ops, name)(a, b), 2 * a))(a, b)
    assert beside[1].shape == a.shape
    c, d = jax.vmap(getattr(ops, name), (0, None))(jnp.stack([a, a]), b)
    assert c.shape == (2, m, 64, batch) and (c == 0).all() and (d == 0).all()


@pytest.mark.parametrize(
    "form", [("float8_e4m3fn", "float8_e8m0fnu", 32), ("uint8", "uint8", 32), ("uint8", "float8_e4m3fn", 16)]
)
def test_operands_with_scales_have_no_depth_either(form):
    data, scale, v = form
    a, b = jnp.zeros((3, 0, 2), data), jnp.zeros((64, 0, 2), data)
    scales = jnp.zeros((2, 1, 0, 32, 4, 4), scale)
    (c, amax), beside = jax.jit(lambda *t: (ops.gemm_amax_jax_forward(*t, sf_vec_size=v), t[0]))(a, b, scales, scales)
    assert (c == 0).all() and amax.item() == 0 and beside.shape == a.shape
    table = jnp.ones((32, 64), jnp.bfloat16)
    x, w, of = jnp.zeros((32, 0), "float8_e4m3fn"), jnp.zeros((192, 0), "float8_e4m3fn"), jnp.zeros((32, 0), "uint8")
    row, byte, _, _ = jax.jit(ops.gemm_proj_rope_mxfp8_jax_forward)(x, w, table, table, of, jnp.zeros((192, 0), "uint8"))
    assert row.shape == (32, 1, 192) and (byte == 0).all() and (row.astype(F32) == 0).all()
