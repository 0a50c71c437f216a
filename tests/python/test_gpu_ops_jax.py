"""Operations in what JAX compiles for a real GPU: values, alpha as an array, loops, vmap, gradients, streams of XLA's."""

import importlib
import os

import numpy as np
import ops_oracle as oracle
import pytest
from support import lacking
from verglas import _verglas, ops

required = os.environ.get("VERGLAS_REQUIRE", "").split(",")
jax = importlib.import_module("jax") if "jax" in required else pytest.importorskip("jax")
if jax.default_backend() != "gpu":
    lacking("gpu", f"JAX runs on {jax.default_backend()}", module=True)
if getattr(jax.devices()[0], "compute_capability", "9.0") != "9.0":
    lacking("gpu", f"JAX's device has compute capability {jax.devices()[0].compute_capability}, not 9.0", module=True)
if _verglas.xla_targets() is None:
    lacking("xla", "the module was built without XLA's headers", module=True)

jnp = jax.numpy
F32, BF16 = jnp.float32, jnp.bfloat16
M, N, K = 130, 192, 72


def integers(shape, seed=0, dtype=BF16):
    return jnp.asarray(np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)).astype(dtype)


def operands(batch=1, dtype=BF16):
    return integers((M, K, batch), 1, dtype), integers((N, K, batch), 2, dtype)


def wide(x):
    return np.asarray(x).astype(np.float64)


@pytest.mark.parametrize("dtype, batch, jit", [(BF16, 1, True), (BF16, 3, False), (jnp.float16, 3, True)])
def test_values(dtype, batch, jit):
    a, b = operands(batch, dtype)
    prob, dy = integers((M, 1, batch), 3, F32), integers((M, N, batch), 4)
    x, y, p, g = (wide(t) for t in (a, b, prob, dy))
    wrap = jax.jit if jit else lambda f: f
    c, amax = wrap(ops.gemm_amax_jax_forward)(a, b)
    assert c.devices() == a.devices()
    np.testing.assert_array_equal(c, oracle.product(x, y))
    assert amax.item() == oracle.amax(x, y)[1]
    ab12, c = wrap(lambda a, b: ops.gemm_swiglu_jax_forward(a, b, 0.5, c_dtype=F32))(a, b)
    np.testing.assert_array_equal(ab12, oracle.swiglu(x, y, 0.5)[0])
    np.testing.assert_allclose(c, oracle.swiglu(x, y, 0.5)[1], rtol=2e-6, atol=1e-5)
    c, d = wrap(lambda a, b, p: ops.gemm_srelu_jax_forward(a, b, prob_tensor=p, alpha=2.0, d_dtype=F32))(a, b, prob)
    np.testing.assert_array_equal(d, oracle.srelu(x, y, p, 2.0)[1])
    d, dprob = wrap(lambda *t: ops.gemm_srelu_jax_backward(*t[:3], prob_tensor=t[3], d_dtype=F32))(a, b, dy, prob)
    np.testing.assert_array_equal(d, oracle.dsrelu(x, y, g, p, 1.0)[0])
    np.testing.assert_array_equal(dprob, oracle.dsrelu(x, y, g, p, 1.0)[1])


def test_functions_take_arrays_of_the_gpu():
    a, b = operands()
    r = ops.gemm_swiglu_forward(a, b, c_dtype="bf16")
    assert isinstance(r, ops.TupleDict) and r.c_tensor.devices() == a.devices()
    np.testing.assert_array_equal(r.ab12_tensor, oracle.product(wide(a), wide(b)))


def test_alpha_stays_on_the_gpu_and_traces_once():
    a, b = operands(2)
    traces = []

    @jax.jit
    def f(a, b, alpha):
        traces.append(1)
        return ops.gemm_swiglu_jax_forward(a, b, alpha * 2)[0]

    for alpha in (1.0, -2.0, 0.25):
        np.testing.assert_array_equal(f(a, b, jnp.float32(alpha)), 2 * alpha * oracle.product(wide(a), wide(b)))
    assert len(traces) == 1


def test_a_loop_inside_a_program_repeats_the_call():
    a, b = integers((M, K, 1), 1), integers((K, K, 1), 2)

    @jax.jit
    def run(x):
        def step(i, x):
            c, amax = ops.gemm_amax_jax_forward(x, b)
            return (jnp.fmod(c, 4) + i % 3 + 0 * amax).astype(BF16)

        return jax.lax.fori_loop(0, 30, step, x)

    want = wide(a)
    for i in range(30):
        want = np.fmod(oracle.product(want, wide(b)), 4) + i % 3
    for _ in range(3):
        np.testing.assert_array_equal(wide(run(a)), want)


def test_it_waits_for_what_comes_before_and_is_waited_for():
    a, b = operands()

    @jax.jit
    def run(a, big):
        late = jax.lax.fori_loop(0, 30, lambda _, v: (v @ v) * 0 + 1, big)
        c, _ = ops.gemm_amax_jax_forward(a + late[0, 0] - 1, b)
        return c * 2

    np.testing.assert_array_equal(run(a, jnp.ones((4096, 4096), BF16)), 2 * oracle.product(wide(a), wide(b)))


@pytest.mark.parametrize("axes", [(0, None), (0, 0)])
def test_vmap(axes):
    size = 3
    a, b = integers((size, M, K, 1), 1), integers((size, N, K, 1), 2)
    given = a, b if axes[1] == 0 else b[0]
    ab12, _ = jax.jit(jax.vmap(ops.gemm_swiglu_jax_forward, axes))(*given)
    top, amax = jax.jit(jax.vmap(ops.gemm_amax_jax_forward, axes))(*given)
    for i in range(size):
        want = oracle.product(wide(a[i]), wide(b[i if axes[1] == 0 else 0]))
        np.testing.assert_array_equal(ab12[i], want)
        np.testing.assert_array_equal(top[i], want)
        assert amax[i].item() == np.abs(want).max()


def test_gradients():
    a, b = operands()
    prob = integers((M, 1, 1), 3, F32)

    def loss(a, b, prob, alpha):
        _, d = ops.gemm_srelu_jax_forward(a, b, prob_tensor=prob, alpha=alpha, c_dtype=F32, d_dtype=F32)
        return d.sum() + ops.gemm_swiglu_jax_forward(a, b, alpha, c_dtype=F32)[1].sum()

    def plain(a, b, prob, alpha):
        x = alpha * jnp.einsum("mkl,nkl->mnl", a, b, precision="highest")
        up, gate = jnp.moveaxis(x.reshape(M, N // 64, 2, 32, 1), 2, 0)
        return (prob * jnp.maximum(x, 0) ** 2).sum() + (up * jax.nn.silu(gate)).sum()

    alpha = jnp.float32(0.125)
    got = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))(a, b, prob, alpha)
    with jax.default_device(jax.devices("cpu")[0]):
        host = [jnp.asarray(np.asarray(t), F32) for t in (a, b, prob, alpha)]
        want = jax.grad(plain, argnums=(0, 1, 2, 3))(*host)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(wide(g), wide(w), rtol=1e-2, atol=1e-2 * float(jnp.abs(w).max()))


def test_shard_map_over_the_gpu_there_is():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("m",))
    rows, everywhere = jax.sharding.PartitionSpec("m"), jax.sharding.PartitionSpec()
    f = jax.shard_map(ops.gemm_amax_jax_forward, mesh=mesh, in_specs=(rows, everywhere), out_specs=(rows, rows), check_vma=False)
    a, b = operands()
    np.testing.assert_array_equal(jax.jit(f)(a, b)[0], oracle.product(wide(a), wide(b)))


def test_what_no_engine_serves_says_so():
    with pytest.raises(Exception, match=r"unsupported|op\.|no engine"):
        a = jnp.ones((M, K, 1), jnp.int8)
        jax.block_until_ready(ops.gemm_amax_jax_forward(a, a))
