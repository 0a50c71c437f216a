"""Projection + RoPE + MXFP8 in what JAX compiles, operands with scales, and programs mapped over axes and devices; on the CPU."""

import functools

import numpy as np
import ops_oracle as oracle
import pytest
import verglas
from support import integers, lacking
from test_ops_proj_rope import inputs
from test_ops_scaled import FORMATS, operand, physical
from verglas import _verglas, ops

try:
    import jax
    import jax.numpy as jnp
except ImportError:
    lacking("xla", "jax is not installed", module=True)
if _verglas.xla_targets() is None:
    lacking("xla", "the module was built without XLA's headers", module=True)

F32 = jnp.float32
ROWS, ALL = jax.sharding.PartitionSpec("x"), jax.sharding.PartitionSpec()
rope = ops.gemm_proj_rope_mxfp8_jax_forward


@pytest.fixture(autouse=True)
def on_the_cpu():
    with jax.default_device(jax.devices("cpu")[0]):
        yield


def same_bytes(got, want):
    for g, w in zip(got, want, strict=True):
        assert g.shape == w.shape and np.asarray(g).tobytes() == np.ascontiguousarray(w).tobytes()


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("w_out_in", [True, False])
def test_the_projection_gives_the_bits_of_the_function(scaled, w_out_in):
    passed, _, _ = inputs(96, 64, 2, scaled)
    if not w_out_in:
        flip = lambda a: np.ascontiguousarray(a.T)  # noqa: E731
        passed = passed[0], flip(passed[1]), *passed[2:5], *(flip(s) for s in passed[5:])
    want = ops.gemm_proj_rope_mxfp8_forward(*passed, w_out_in=w_out_in)
    arrays = [jnp.asarray(t) for t in passed]
    same_bytes(jax.jit(functools.partial(rope, w_out_in=w_out_in))(*arrays), want)
    eager = ops.gemm_proj_rope_mxfp8_forward(*arrays, w_out_in=w_out_in)
    assert list(eager.keys()) == list(want.keys())
    same_bytes(eager, want)


def test_the_projection_takes_e8m0_and_refuses_while_tracing():
    (x, w, cos, sin, xs, ws), _, _ = inputs(64, 64, 2, True)
    want = ops.gemm_proj_rope_mxfp8_forward(x, w, cos, sin, xs, ws)
    same_bytes(rope(x, w, cos, sin, xs.view(jnp.float8_e8m0fnu), ws.view(jnp.float8_e8m0fnu)), want)
    (y, v, _, _), _, _ = inputs(64, 64, 2, False)
    for words, given in [
        ("must share a dtype", (x, v, cos, sin)),
        ("require x_scale and w_scale", (x, w, cos, sin, xs)),
        ("must not be given MXFP8 scales", (y, v, cos, sin, xs, ws)),
        ("a multiple of 32", (y[:33], v, cos[:33], sin[:33])),
    ]:
        with pytest.raises(ValueError, match=words):
            jax.eval_shape(rope, *given)
    with pytest.raises(Exception, match="differentiat"):
        jax.grad(lambda x: rope(x, jnp.asarray(v), jnp.asarray(cos), jnp.asarray(sin))[0].astype(F32).sum())(jnp.asarray(y))


def test_rope_of_other_heads_under_jit():
    (x, w, cos, sin), _, _ = inputs(64, 32, 2, False)
    want = ops.gemm_proj_rope_mxfp8_forward(x, w, cos, sin, head_dim=128)
    got = jax.jit(lambda *given: rope(*given, head_dim=128))(*(jnp.asarray(t) for t in (x, w, cos, sin)))
    same_bytes(got, want)
    assert got[0].shape == (64, 3, 128) and got[3].shape == (2, 3, 128)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("weights", [False, True])
def test_vmap_of_the_projection(scaled, weights):
    each = [inputs(64, 64, 2, scaled, seed)[0] for seed in range(3)]
    mapped = [weights or place not in (1, 3, 5) for place in range(len(each[0]))]  # the table of sines is shared once
    stacked = [jnp.stack([e[i] for e in each]) if m else jnp.asarray(each[0][i]) for i, m in enumerate(mapped)]
    got = jax.jit(jax.vmap(rope, [0 if m else None for m in mapped]))(*stacked)
    for i, own in enumerate(each):
        given = [own[place] if m else each[0][place] for place, m in enumerate(mapped)]
        same_bytes([g[i] for g in got], ops.gemm_proj_rope_mxfp8_forward(*given))
    twice = jax.vmap(jax.vmap(rope, [0 if m else None for m in mapped]), [0 if m else None for m in mapped])
    same_bytes([g[0] for g in twice(*[s[None] if m else s for s, m in zip(stacked, mapped, strict=True)])], got)


def scaled_operands(form, batch=1):
    a, sfa, wide_a = operand(8, 64, batch, form, 1)
    b, sfb, wide_b = operand(64, 64, batch, form, 2)
    return [np.ascontiguousarray(t) for t in (a, b, physical(sfa), physical(sfb))], wide_a, wide_b


@pytest.mark.parametrize("form", FORMATS, ids=str)
@pytest.mark.parametrize("alpha", [2.0, np.float32(2)])
def test_beside_scales_prob_has_a_gradient(form, alpha):
    given, wide_a, wide_b = scaled_operands(form)
    prob, weight = integers((8, 1, 1), 3), integers((8, 64, 1), 4)
    alpha = alpha if isinstance(alpha, float) else jnp.asarray(alpha)

    def loss(prob, *tensors):
        _, d = ops.gemm_srelu_jax_forward(*tensors, prob, alpha, d_dtype=F32, sf_vec_size=form[2])
        return (weight * d).sum()

    got = jax.jit(jax.grad(loss))(prob, *given)
    want = oracle.dsrelu(wide_a, wide_b, weight, prob, 2.0)[1]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6 * np.abs(want).max())
    both = jax.vmap(jax.grad(loss), (0, *[None] * 4))(jnp.stack([prob, 2 * prob]), *given)
    np.testing.assert_array_equal(both, [np.asarray(got)] * 2)
    if given[0].dtype != np.uint8:
        with pytest.raises(TypeError, match="cannot be differentiated"):
            jax.grad(loss, argnums=1)(prob, *map(jnp.asarray, given))


@pytest.mark.parametrize("form", FORMATS, ids=str)
@pytest.mark.parametrize("batch", [1, 2])
def test_vmap_of_scales(form, batch):
    (a, b, sfa, sfb), wide_a, wide_b = scaled_operands(form, batch)
    srelu = lambda *t: ops.gemm_srelu_jax_forward(*t, d_dtype=F32, sf_vec_size=form[2])[1]  # noqa: E731
    d = jax.jit(jax.vmap(srelu, (0, None, 0, None)))(np.stack([a, a[::-1]]), b, np.stack([sfa, sfa]), sfb)
    same = srelu(a, b, sfa, sfb)
    np.testing.assert_array_equal(d[0], same)
    np.testing.assert_array_equal(d[1], srelu(a[::-1], b, sfa, sfb))
    np.testing.assert_allclose(same, np.maximum(oracle.product(wide_a, wide_b), 0) ** 2, rtol=1e-6)


@pytest.mark.parametrize("jit", [False, True])
def test_fp4_is_bytes_or_jaxs_own(jit):
    if not hasattr(jnp, "float4_e2m1fn"):
        pytest.skip("this JAX has no type for fp4")
    form = FORMATS[4]
    (a, sfa, _), (b, sfb, _) = operand(6, 64, 2, form, 1), operand(8, 64, 2, form, 2)
    sfa, sfb = (np.ascontiguousarray(physical(x)) for x in (sfa, sfb))
    own = [
        jnp.asarray(verglas.scale_layout.unpack_fp4(x.transpose(0, 2, 1)).transpose(0, 2, 1)).astype(jnp.float4_e2m1fn)
        for x in (a, b)
    ]
    call = functools.partial(ops.gemm_amax_jax_forward, sf_vec_size=16)
    got = (jax.jit(call) if jit else call)(*own, sfa, sfb)
    same_bytes(got, call(a, b, sfa, sfb))
    wide = operand(32, 64, 2, form, 2)
    given = a, wide[0], sfa, np.ascontiguousarray(physical(wide[1]))
    want = call(*given, c_dtype="uint8")
    assert want[0].shape == (6, 16, 2)
    for name in ("fp4_e2m1", jnp.float4_e2m1fn):
        stored = functools.partial(call, c_dtype=name)
        same_bytes((jax.jit(stored) if jit else stored)(*given), want)
    with pytest.raises(ValueError, match=r"op\.extent.*63 fp4"):
        call(own[0][:, :63], own[1], sfa, sfb)
    with pytest.raises(ValueError, match=r"op\.dtype.*fp4"):
        ops.gemm_amax_jax_forward(*own)


def test_vmap_of_a_maximum_runs_one_after_another():
    (a, b, sfa, sfb), wide_a, wide_b = scaled_operands(FORMATS[0])
    c, amax = jax.vmap(ops.gemm_amax_jax_forward, (0, None, 0, None))(np.stack([a, a]), b, np.stack([sfa, sfa]), sfb)
    want = oracle.product(wide_a, wide_b)
    np.testing.assert_array_equal(c, [want, want])
    assert amax.ravel().tolist() == [np.abs(want).max()] * 2


def sharded(function, specs, results):
    mesh = jax.sharding.Mesh(np.array(jax.devices("cpu")), ("x",))
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=results, check_vma=False))


needs_devices = pytest.mark.skipif(len(jax.devices("cpu")) < 4, reason="JAX was started before the tests, with fewer devices")


@needs_devices
def test_sharded_rows_and_columns():
    a, b, prob = integers((16, 24, 2), 1), integers((256, 24, 2), 2), integers((16, 1, 2), 3)
    product = oracle.product(a, b)
    c, amax = sharded(ops.gemm_amax_jax_forward, (ROWS, ALL), (ROWS, ROWS))(a, b)
    np.testing.assert_array_equal(c, product)
    np.testing.assert_array_equal(amax.ravel(), np.abs(product).reshape(4, -1).max(1))  # of its own rows each
    columns = jax.sharding.PartitionSpec(None, "x")
    swiglu = functools.partial(ops.gemm_swiglu_jax_forward, c_dtype=F32)
    ab12, c = sharded(swiglu, (ALL, ROWS), (columns, columns))(a, b)
    np.testing.assert_array_equal(ab12, product)
    np.testing.assert_allclose(c, oracle.swiglu(a, b, 1.0)[1], rtol=1e-5, atol=1e-6)
    srelu = lambda a, b, p: ops.gemm_srelu_jax_forward(a, b, prob_tensor=p, d_dtype=F32)[1]  # noqa: E731
    np.testing.assert_array_equal(sharded(srelu, (ROWS, ALL, ROWS), ROWS)(a, b, prob), oracle.srelu(a, b, prob, 1.0)[1])


@needs_devices
def test_sharded_gradients_are_summed():
    a, b = integers((16, 24, 1), 1).astype(np.float32), integers((64, 24, 1), 2).astype(np.float32)

    def of_b(a, b):
        loss = lambda b: ops.gemm_srelu_jax_forward(a, b, c_dtype=F32, d_dtype=F32)[1].sum()  # noqa: E731
        return jax.lax.psum(jax.grad(loss)(b), "x")

    got = sharded(of_b, (ROWS, ALL), ALL)(a, b)
    want = 2 * np.einsum("mnl,mkl->nkl", np.maximum(oracle.product(a, b), 0), a)
    np.testing.assert_array_equal(got, want)


@needs_devices
@pytest.mark.parametrize("jit", [False, True])
def test_what_differs_between_devices_is_known_to_shard_map(jit):
    a, b, prob = integers((16, 24, 1), 1), integers((64, 24, 1), 2), integers((16, 1, 1), 3)
    mesh = jax.sharding.Mesh(np.array(jax.devices("cpu")), ("x",))
    wrap = jax.jit if jit else lambda f: f

    def loss(a, b, prob, alpha):
        c, d = ops.gemm_srelu_jax_forward(a, b, prob_tensor=prob, alpha=alpha, c_dtype=F32, d_dtype=F32)
        ab12, e = ops.gemm_swiglu_jax_forward(a, b, alpha, c_dtype=F32)
        return jax.lax.psum(d.sum() + (c * ab12).sum() + e.sum(), "x")

    whole = lambda a, b, prob, alpha: jax.vmap(loss, in_axes=(0, None, 0, None), axis_name="x")(  # noqa: E731
        a[None], b, prob[None], alpha
    ).sum()
    parts = jax.shard_map(loss, mesh=mesh, in_specs=(ROWS, ALL, ROWS, ALL), out_specs=ALL)
    arguments = a, b, prob, jnp.float32(0.5)
    got = wrap(jax.grad(parts, (0, 1, 2, 3)))(*arguments)
    for g, w in zip(got, jax.grad(whole, (0, 1, 2, 3))(*arguments), strict=True):
        np.testing.assert_allclose(g, w, rtol=2e-5, atol=1e-3)
    amax = lambda a, b: ops.gemm_amax_jax_forward(a, b)[1]  # noqa: E731
    with pytest.raises(ValueError, match="out_specs"):
        wrap(jax.shard_map(amax, mesh=mesh, in_specs=(ROWS, ALL), out_specs=ALL))(a, b)


@needs_devices
def test_sharded_projection():
    passed, _, _ = inputs(128, 64, 4, False)
    want = ops.gemm_proj_rope_mxfp8_forward(*passed)
    same_bytes(sharded(rope, (ROWS, ALL, ROWS, ROWS), (ROWS,) * 4)(*passed), want)
    heads = jax.sharding.PartitionSpec(None, "x")
    same_bytes(sharded(rope, (ALL, ROWS, ALL, ALL), (heads,) * 4)(*passed), want)


def test_arrays_over_several_devices_are_gathered():
    """Under plain jit XLA knows no way to divide the call."""
    a, b = integers((16, 24, 1), 1), integers((64, 24, 1), 2)
    mesh = jax.sharding.Mesh(np.array(jax.devices("cpu")), ("x",))
    spread = jax.device_put(a, jax.sharding.NamedSharding(mesh, ROWS))
    c, _ = jax.jit(verglas.gemm_amax_jax_forward)(spread, jax.device_put(b, jax.sharding.NamedSharding(mesh, ALL)))
    np.testing.assert_array_equal(c, oracle.product(a, b))


@needs_devices
@pytest.mark.skipif(not hasattr(jax, "set_mesh"), reason="this JAX knows no mesh with explicit axes")
@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("of_b", [ALL, ROWS, jax.sharding.PartitionSpec(None, "x")])
def test_gradients_where_types_say_which_device_has_what(jit, of_b):
    a, b, prob = (integers(s, i).astype(np.float32) for i, s in enumerate(((16, 24, 1), (64, 24, 1), (16, 1, 1))))
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,), devices=jax.devices("cpu")[:4])

    def loss(a, b, prob):
        c, d = ops.gemm_srelu_jax_forward(a, b, prob_tensor=prob, c_dtype=F32, d_dtype=F32)
        return c.sum() + d.sum() + ops.gemm_swiglu_jax_forward(a, b, c_dtype=F32)[1].sum()

    gradient = (jax.jit if jit else lambda f: f)(jax.grad(loss, (0, 1, 2)))
    want = gradient(a, b, prob)
    with jax.set_mesh(mesh):
        parts = (ROWS, of_b, ROWS)
        spread = [jax.device_put(t, jax.sharding.NamedSharding(mesh, p)) for t, p in zip((a, b, prob), parts, strict=True)]
        for g, w, t in zip(gradient(*spread), want, spread, strict=True):
            assert jax.typeof(g).sharding.spec == jax.typeof(t).sharding.spec
            np.testing.assert_allclose(g, w, rtol=2e-5, atol=1e-3)
