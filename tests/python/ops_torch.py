"""Operands of operations as torch tensors, for the tests of them."""

import numpy as np
import ops_oracle as oracle
from ops_oracle import matrix
from support import lacking
from verglas import ops

try:
    import torch
except ImportError:
    lacking("torch", "torch is not installed", module=True)

F32 = torch.float32


def tensor(array, dtype=torch.float32):
    """With the strides of the array."""
    order = np.argsort([-s for s in array.strides], kind="stable")
    dense = torch.from_numpy(np.ascontiguousarray(array.transpose(order))).to(dtype)
    return dense.permute(*np.argsort(order).tolist())


def operands(m=5, n=64, k=7, batch=2, dtype=torch.float32, **options):
    a = matrix((m, k, batch), np.float32, seed=1)
    b = matrix((n, k, batch), np.float32, seed=2)
    return a, b, tensor(a, dtype), tensor(b, dtype)


def probabilities(m=5, batch=2):
    prob = matrix((m, 1, batch), np.float32, "n", 5)
    return prob, tensor(prob)


def scaled(form, columns=64):
    """Operands with scales as torch's tensors and as numbers; small M and K are no multiples of anything."""
    from test_ops_scaled import operand

    def moved(array):
        order = np.argsort([-s for s in array.strides], kind="stable")
        dense = torch.from_numpy(np.ascontiguousarray(array.transpose(order)).view(np.uint8)).view(
            getattr(torch, str(array.dtype))
        )
        return dense.permute(*np.argsort(order).tolist())

    (a, sfa, wide_a), (b, sfb, wide_b) = operand(5, 96, 2, form, 1), operand(columns, 96, 2, form, 2)
    return [moved(t) for t in (a, b, sfa, sfb)], wide_a, wide_b


def scaled_forms():
    from test_ops_scaled import FORMATS

    return FORMATS


def functions(a, b, dy, prob, **options):
    """Each function with what it takes, and the places of its outputs in float64."""
    wide = [x.double().numpy() for x in (a, b, dy, prob)]
    return [
        (lambda: ops.gemm_amax_forward(a, b, **options), oracle.amax(*wide[:2])),
        (lambda: ops.gemm_swiglu_forward(a, b, 0.5, c_dtype=F32, **options), oracle.swiglu(*wide[:2], 0.5)),
        (lambda: ops.gemm_srelu_forward(a, b, prob_tensor=prob, c_dtype=F32, d_dtype=F32), oracle.srelu(*wide[:2], wide[3], 1.0)),
        (lambda: ops.gemm_srelu_backward(a, b, dy, prob_tensor=prob, d_dtype=F32), oracle.dsrelu(*wide, 1.0)),
    ]


def drawn(m, n, k, batch, seed):
    """Small integers: a, b, a gradient and prob."""
    shapes = ((m, k), (n, k), (m, n), (m, 1))
    return [tensor(matrix((*shape, batch), np.float32, "k", seed + i)) for i, shape in enumerate(shapes)]


def whole_way(*_, **__):
    raise AssertionError("this call need not take Python's way")
