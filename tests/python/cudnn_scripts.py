"""Short scripts as cuDNN's users write them, with torch's tensors: each takes the module under its name, and a device.

Nothing in them but the import is ours. Small integers make every order of summation exact: results are compared bit for bit.
"""

import torch

F32, BF16, F16, INT8, E4M3 = torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.float8_e4m3fn


def integers(shape, device, dtype=BF16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-3, 4, shape, generator=generator).to(dtype).to(device)


def packed(rows, columns, batch, device, dtype=BF16, seed=0):
    """(rows, columns, batch), the second axis contiguous and the batch outermost."""
    return integers((batch, rows, columns), device, dtype, seed).permute(1, 2, 0)


def product(a, b):
    return torch.einsum("mkl,nkl->mnl", a.double(), b.double())


def stream_of(device):
    return torch.cuda.current_stream().cuda_stream if device == "cuda" else None


def equal(got, want, device):
    assert got.device.type == device
    assert torch.equal(got, want.to(got.dtype)), (got, want)


def matmul_bias_relu(cudnn, device):
    x, w, bias = integers((1, 64, 32), device), integers((1, 32, 48), device, seed=1), integers((1, 1, 48), device, seed=2)
    handle = cudnn.create_handle()
    if device == "cuda":
        cudnn.set_stream(handle=handle, stream=stream_of(device))
    graph = cudnn.pygraph(
        handle=handle,
        name="layer",
        io_data_type=cudnn.data_type.BFLOAT16,
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
    )
    X, W, B = graph.tensor_like(x), graph.tensor_like(w), graph.tensor_like(bias)
    product = graph.matmul(name="matmul", A=X, B=W)
    Y = graph.relu(name="relu", input=graph.bias(name="bias", input=product, bias=B))
    Y.set_output(True)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.check_support()
    graph.build_plans(cudnn.build_plan_policy.HEURISTICS_CHOICE)
    y = torch.empty(1, 64, 48, device=device, dtype=BF16)
    workspace = torch.empty(graph.get_workspace_size(), device=device, dtype=torch.uint8)
    graph.execute({X: x, W: w, B: bias, Y: y}, workspace, handle=handle)
    cudnn.destroy_handle(handle)
    equal(y, torch.relu(x.double() @ w.double() + bias.double()), device)


def mixed_precision(cudnn, device):
    a, b = integers((2, 64, 32), device, INT8), integers((2, 48, 32), device, BF16, 1).transpose(1, 2)
    graph = cudnn.pygraph(io_data_type=cudnn.data_type.BFLOAT16, compute_data_type=cudnn.data_type.FLOAT)
    A = graph.tensor(name="A", dim=[2, 64, 32], stride=[64 * 32, 32, 1], data_type=cudnn.data_type.INT8)
    B = graph.tensor(name="B", dim=[2, 32, 48], stride=[32 * 48, 1, 32])
    cast = graph.identity(name="cast", input=A, compute_data_type=cudnn.data_type.FLOAT)
    cast.set_data_type(cudnn.data_type.BFLOAT16)
    C = graph.matmul(name="mm", A=cast, B=B)
    C.set_output(True).set_data_type(cudnn.data_type.FLOAT)
    graph.build([cudnn.heur_mode.A])
    c = torch.empty(2, 64, 48, device=device)
    graph.execute({A: a, B: b, C: c}, None)
    equal(c, a.double() @ b.double(), device)


def low_precision(cudnn, device):
    a, b = integers((1, 64, 32), device, E4M3), integers((1, 48, 32), device, E4M3, 1).transpose(1, 2)
    graph = cudnn.pygraph(io_data_type=cudnn.data_type.FP8_E4M3, compute_data_type=cudnn.data_type.FLOAT)
    A = graph.tensor(name="A", dim=[1, 64, 32], stride=[64 * 32, 32, 1])
    B = graph.tensor(name="B", dim=[1, 32, 48], stride=[32 * 48, 1, 32])
    descale = graph.tensor(name="descale", dim=[1, 1, 1], stride=[1, 1, 1], data_type=cudnn.data_type.FLOAT)
    C = graph.mul(name="scaled", a=graph.matmul(A=A, B=B), b=descale)
    C.set_output(True).set_data_type(cudnn.data_type.BFLOAT16)
    graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    c = torch.empty(1, 64, 48, device=device, dtype=BF16)
    graph.execute({A: a, B: b, descale: torch.full((1, 1, 1), 0.5, device=device), C: c}, None)
    equal(c, 0.5 * (a.double() @ b.double()), device)


def graph_of_tensors(cudnn, device):
    x, w, bias = integers((1, 64, 32), device), integers((1, 32, 48), device, seed=1), integers((1, 1, 48), device, seed=2)
    with cudnn.Graph(
        io_data_type=BF16,
        compute_data_type=F32,
        inputs=["mm::A", "mm::B", "shift::bias"],
        outputs=["act::OUT_0"],
        handle="auto",
    ) as graph:
        product = graph.matmul(A=x, B=w, name="mm")
        graph.relu(input=graph.bias(input=product, bias=bias, name="shift"), name="act").set_output(True)
    equal(graph(x, w, bias), torch.relu(x.double() @ w.double() + bias.double()), device)
    equal(graph(2 * x, w, 2 * bias), 2 * torch.relu(x.double() @ w.double() + bias.double()), device)


def residual_and_amax(cudnn, device):
    x, w, r = integers((2, 64, 32), device), integers((2, 32, 48), device, seed=1), integers((2, 64, 48), device, seed=2)
    graph = cudnn.pygraph(io_data_type=cudnn.data_type.BFLOAT16, compute_data_type=cudnn.data_type.FLOAT)
    X, W, R = graph.tensor_like(x), graph.tensor_like(w), graph.tensor_like(r)
    total = graph.add(name="residual", a=graph.matmul(name="mm", A=X, B=W), b=R)
    largest = graph.reduction(name="amax", input=total, mode=cudnn.reduction_mode.AMAX)
    largest.set_output(True).set_dim([1, 1, 1]).set_stride([1, 1, 1]).set_data_type(cudnn.data_type.FLOAT)
    total.set_output(True)
    graph.build([cudnn.heur_mode.A])
    y, amax = torch.empty(2, 64, 48, device=device, dtype=BF16), torch.empty(1, 1, 1, device=device)
    graph.execute({X: x, W: w, R: r, total: y, largest: amax}, None)
    want = x.double() @ w.double() + r.double()
    equal(y, want, device)
    equal(amax, want.to(BF16).double().abs().max().view(1, 1, 1), device)


def swiglu_wrapper(cudnn, device):
    a, b = packed(64, 32, 2, device), packed(128, 32, 2, device, seed=1)
    result = cudnn.gemm_swiglu_wrapper_sm100(
        a,
        b,
        alpha=0.5,
        c_major="n",
        ab12_dtype=F32,
        c_dtype=BF16,
        acc_dtype=F32,
        mma_tiler_mn=(256, 256),
        cluster_shape_mn=(2, 2),
        stream=None,
    )
    ab12, c, sfc, amax = result
    assert result["ab12_tensor"] is ab12 and result["c_tensor"] is c and sfc is amax is None
    want = 0.5 * product(a, b)
    equal(ab12, want, device)
    up, gate = want.view(64, 2, 2, 32, 2).unbind(2)
    torch.testing.assert_close(c.double(), (up * torch.nn.functional.silu(gate)).reshape(64, 64, 2), rtol=2**-7, atol=1e-5)


def swiglu_class(cudnn, device):
    a, b = packed(64, 32, 1, device), packed(128, 32, 1, device, seed=1)
    ab12, c = packed(64, 128, 1, device, F32), packed(64, 64, 1, device, F16)
    gemm = cudnn.GemmSwigluSm100(a, b, ab12, c, alpha=0.5, mma_tiler_mn=(128, 128))
    assert gemm.check_support()
    gemm.compile(current_stream=stream_of(device))
    for factor in (1, 2):
        gemm.execute(factor * a, b, ab12, c, current_stream=stream_of(device))
        equal(ab12, 0.5 * factor * product(a, b), device)


def amax_wrapper(cudnn, device):
    a, b = packed(64, 32, 1, device, F16), packed(48, 32, 1, device, F16, 1)
    c, amax = cudnn.gemm_amax_wrapper_sm100(a, b, None, None, "m", F32, sf_vec_size=32)
    equal(c, product(a, b), device)
    equal(amax, product(a, b).abs().max().view(1, 1, 1), device)
    assert c.stride()[0] == 1


def srelu_wrapper(cudnn, device):
    a, b, prob = packed(64, 32, 1, device), packed(48, 32, 1, device, seed=1), packed(64, 1, 1, device, F32, 2)
    result = cudnn.gemm_srelu_wrapper_sm100(a, b, None, None, prob, 0.5, c_dtype=F32, d_dtype=F32)
    equal(result["c_tensor"], 0.5 * product(a, b), device)
    equal(result["d_tensor"], prob.double() * torch.relu(0.5 * product(a, b)) ** 2, device)


def dsrelu_wrapper(cudnn, device):
    a, b, prob = packed(64, 32, 1, device), packed(48, 32, 1, device, seed=1), packed(64, 1, 1, device, F32, 2)
    dy = packed(64, 48, 1, device, seed=3)
    result = cudnn.gemm_dsrelu_wrapper_sm100(a, b, dy, None, None, prob, d_dtype=F32)
    r = torch.relu(product(a, b))
    equal(result["d_tensor"], 2 * r * dy.double() * prob.double(), device)
    equal(result["dprob_tensor"], (r**2 * dy.double()).sum(1, keepdim=True), device)


def srelu_classes(cudnn, device):
    a, b, prob = packed(64, 32, 2, device), packed(48, 32, 2, device, seed=1), packed(64, 1, 2, device, F32, 2)
    c, d, dy = packed(64, 48, 2, device, F32), packed(64, 48, 2, device, F32), packed(64, 48, 2, device, seed=3)
    dprob = torch.zeros(64, 1, 2, device=device)
    forward = cudnn.GemmSreluSm100(a, b, c, d, None, None, prob)
    forward(a, b, c, d, None, None, prob)
    equal(d, prob.double() * torch.relu(product(a, b)) ** 2, device)
    backward = cudnn.GemmDsreluSm100(a, b, dy, d, dprob, None, None, prob)
    backward(a, b, dy, d, dprob, None, None, prob)
    equal(dprob, (torch.relu(product(a, b)) ** 2 * dy.double()).sum(1, keepdim=True), device)


def jit_and_cache(cudnn, device):
    built = []

    @cudnn.jit(heur_modes=[cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    @cudnn.graph_cache(key_fn=lambda handle, n: n)
    def square(handle, n):
        built.append(n)
        with cudnn.graph(handle, io_data_type=cudnn.data_type.BFLOAT16) as (g, _):
            x = g.tensor(name="x", dim=[1, n, n], stride=[n * n, n, 1])
            y = g.matmul(x, x)
            y.set_output(True)
        return g, [x, y]

    handle = cudnn.create_handle()
    for n in (32, 64, 32):
        graph, (x, y) = square(handle, n)
        a, out = integers((1, n, n), device), torch.empty(1, n, n, device=device, dtype=BF16)
        graph.execute({x: a, y: out}, None, handle=handle)
        equal(out, a.double() @ a.double(), device)
    assert built == [32, 64]


def record_and_replay(cudnn, device):
    def describe():
        graph = cudnn.pygraph(io_data_type=cudnn.data_type.HALF, compute_data_type=cudnn.data_type.FLOAT)
        A = graph.tensor(name="a", dim=[1, 64, 64], stride=[64 * 64, 64, 1])
        graph.matmul(A, A).set_output(True)
        return graph

    graph = describe()
    graph.create_execution_plans([cudnn.heur_mode.A])
    engine, knobs = graph.get_engine_and_knobs_at_index(0)
    again = describe()
    again.create_execution_plan(engine, knobs)
    again.build_plans()
    a, y = integers((1, 64, 64), device, F16), torch.empty(1, 64, 64, device=device, dtype=F16)
    again.execute([a, y])
    equal(y, a.double() @ a.double(), device)


SCRIPTS = [
    matmul_bias_relu,
    mixed_precision,
    low_precision,
    graph_of_tensors,
    residual_and_amax,
    swiglu_wrapper,
    swiglu_class,
    amax_wrapper,
    srelu_wrapper,
    dsrelu_wrapper,
    srelu_classes,
    jit_and_cache,
    record_and_replay,
]
