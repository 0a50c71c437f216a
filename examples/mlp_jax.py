#!/usr/bin/env python3
"""The feed-forward block of a Llama-style model in JAX: a step of training under jit, fused and unfused."""

import jax
import jax.numpy as jnp
import verglas

jax.config.update("jax_default_device", jax.devices("cpu")[0])
ROWS, WIDTH, HIDDEN = 14, 48, 96


def interleave(up, gate):
    """Rows of both in runs of 32: up, gate, up, gate, …"""
    return jnp.stack((up.reshape(-1, 32, WIDTH), gate.reshape(-1, 32, WIDTH)), 1).reshape(2 * HIDDEN, WIDTH)


def fused(x, up, gate, down):
    _, c = verglas.gemm_swiglu_jax_forward(x[..., None], interleave(up, gate)[..., None], c_dtype=jnp.float32)
    return c[..., 0] @ down.T


def unfused(x, up, gate, down):
    return (jax.nn.silu(x @ gate.T) * (x @ up.T)) @ down.T


def step(block):
    def loss(weights, x):
        return (block(x, *weights) ** 2).sum()

    @jax.jit
    def run(weights, x):
        value, gradients = jax.value_and_grad(loss)(weights, x)
        return value, [w - 1e-4 * g for w, g in zip(weights, gradients, strict=True)]

    return run


keys = jax.random.split(jax.random.key(0), 4)
x = jax.random.normal(keys[0], (ROWS, WIDTH))
start = [jax.random.normal(k, s) / 7 for k, s in zip(keys[1:], [(HIDDEN, WIDTH), (HIDDEN, WIDTH), (WIDTH, HIDDEN)], strict=True)]
ours, theirs = start, start
for _ in range(5):
    loss, ours = step(fused)(ours, x)
    expected, theirs = step(unfused)(theirs, x)
    print(f"loss {loss:.4f}, unfused {expected:.4f}")
worst = max(float(jnp.abs(a - b).max()) for a, b in zip(ours, theirs, strict=True))
print(f"largest difference of weights after five steps {worst:.1e}")
assert worst < 1e-5
