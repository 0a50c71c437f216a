"""Plans of a real GPU on JAX arrays as inputs. They never change, so that outputs are CuPy's."""

import importlib
import os

import pytest
import verglas
from support import lacking

required = os.environ.get("VERGLAS_REQUIRE", "").split(",")
jax = importlib.import_module("jax") if "jax" in required else pytest.importorskip("jax")
cupy = importlib.import_module("cupy") if "jax" in required else pytest.importorskip("cupy")
if jax.default_backend() != "gpu":
    lacking("gpu", f"JAX runs on {jax.default_backend()}", module=True)
if getattr(jax.devices()[0], "compute_capability", "9.0") != "9.0":
    lacking("gpu", f"JAX's device has compute capability {jax.devices()[0].compute_capability}, not 9.0", module=True)

M, N, K = 130, 200, 72


def plan_of():
    graph = verglas.Graph(io_data_type="bf16", device="cuda:0")
    a = graph.tensor(name="a", dim=(1, M, K), stride=(M * K, K, 1))
    b = graph.tensor(name="b", dim=(1, K, N), stride=(K * N, 1, K))
    graph.matmul(a, b).set_output(True).set_name("d").set_data_type("fp32")
    graph.build()
    assert graph.plan.engine == "sm90"
    return graph.plan


def operands(seed=0):
    keys = jax.random.split(jax.random.key(seed))
    a = jax.random.randint(keys[0], (1, M, K), -3, 4).astype(jax.numpy.bfloat16)
    b = jax.random.randint(keys[1], (1, N, K), -3, 4).astype(jax.numpy.bfloat16)
    return a, b


def right(a, b):
    wide = jax.numpy.float32
    return jax.device_get(jax.numpy.einsum("lmk,lnk->lmn", a.astype(wide), b.astype(wide), precision="highest"))


def test_arrays_that_are_still_being_computed_are_waited_for():
    plan = plan_of()
    grow = jax.jit(lambda x: jax.lax.fori_loop(0, 50, lambda _, v: (v @ v) * 0 + x, x))
    big = jax.numpy.ones((4096, 4096), jax.numpy.bfloat16)
    for seed in range(3):
        a, b = operands(seed)
        d = cupy.full((1, M, N), cupy.nan, cupy.float32)
        late = grow(big)[:1, :1] * 0 + a[0, 0, 0]  # a chain of long products before one value of A
        plan(a.at[0, 0, 0].set(late[0, 0]), b, d)
        assert (cupy.asnumpy(d) == right(a, b)).all()


def test_a_jax_array_is_no_output():
    plan = plan_of()
    a, b = operands()
    with pytest.raises(verglas.Error, match=r"call.read_only"):
        plan(a, b, jax.numpy.zeros((1, M, N), jax.numpy.float32))
