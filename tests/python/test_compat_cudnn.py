"""verglas.compat.cudnn: short scripts in cuDNN's style, and the table of docs/compat-cudnn.md against the module."""

import re
import sys
from pathlib import Path

import numpy as np
import ops_oracle as oracle
import pytest
import verglas
import verglas.compat.cudnn as cudnn
from ops_oracle import BF16, matrix
from support import integers

PAGE = Path(__file__).resolve().parents[2] / "docs/compat-cudnn.md"
ROWS = re.findall(r"^\| (`[^|]+`) \| (here|here, with JAX|missing) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
STATES = {name: state for names, state in ROWS for name in re.findall(r"`([\w.]+)`", names)}


@pytest.mark.parametrize("name", STATES)
def test_the_table_is_true(name):
    of, _, attribute = name.rpartition(".")
    owner = cudnn.pygraph() if of == "pygraph" else getattr(cudnn, of) if of else cudnn
    if of == "tensor":
        with pytest.raises(NotImplementedError, match=rf"tensor\.{attribute}"):
            getattr(cudnn.pygraph().tensor(dim=[1, 1], stride=[1, 1]), attribute)(None)
    elif STATES[name] == "missing":
        with pytest.raises(NotImplementedError, match=attribute):
            getattr(owner, attribute)
    elif STATES[name] == "here, with JAX":
        pytest.importorskip("jax")
        assert callable(getattr(owner, attribute))
    else:
        assert hasattr(type(owner) if of == "pygraph" else owner, attribute)


def test_the_table_is_whole():
    methods = {f"pygraph.{name}" for name in (*cudnn._MISSING_METHODS, *vars(verglas.Graph)) if not name.startswith("_")}
    enums = (cudnn.data_type, cudnn.pointwise_mode, cudnn.reduction_mode, cudnn.tensor_reordering)
    members = {f"{e.__name__}.{name}" for e in enums for name in e._missing}
    of_tensors = {f"tensor.{name}" for name in cudnn._MISSING_OF_TENSORS}
    assert set(STATES) == {*cudnn.__all__, *cudnn._MISSING, *cudnn._WITH_JAX, *methods, *members, *of_tensors}


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    """Also where torch sees a GPU."""
    monkeypatch.setattr(cudnn, "_default_device", lambda: "cpu")


def test_names_that_cudnn_has_not_either():
    with pytest.raises(AttributeError, match="gemm_nonsense"):
        cudnn.gemm_nonsense  # noqa: B018
    with pytest.raises(AttributeError, match="nonsense"):
        cudnn.pygraph().nonsense  # noqa: B018
    with pytest.raises(NotImplementedError, match="sdpa"):
        cudnn.pygraph().sdpa()


def test_script_matmul_bias_relu():
    handle = cudnn.create_handle()
    x, w, bias = integers((1, 16, 32)), integers((1, 32, 24), 1), integers((1, 1, 24), 2)
    graph = cudnn.pygraph(
        handle=handle,
        name="layer",
        io_data_type=cudnn.data_type.FLOAT,
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
    )
    X, W, B = graph.tensor_like(x), graph.tensor_like(w), graph.tensor_like(bias)
    product = graph.matmul(name="matmul", A=X, B=W)
    shifted = graph.bias(name="bias", input=product, bias=B)
    Y = graph.relu(name="relu", input=shifted)
    Y.set_output(True).set_data_type(cudnn.data_type.FLOAT)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.check_support()
    graph.build_plans(cudnn.build_plan_policy.HEURISTICS_CHOICE)
    y, workspace = np.empty((1, 16, 24), np.float32), np.empty(max(graph.get_workspace_size(), 1), np.uint8)
    graph.execute({X: x, W: w, B: bias, Y: y}, workspace, handle=handle)
    cudnn.destroy_handle(handle)
    np.testing.assert_array_equal(y, np.maximum(x @ w + bias, 0))


def test_enumerations_are_ours_under_their_names():
    for name in ("data_type", "pointwise_mode", "reduction_mode", "tensor_reordering"):
        theirs, ours = getattr(cudnn, name), getattr(verglas, name)
        assert list(theirs) == list(ours)
        for member in ours:
            assert getattr(theirs, member.name) is theirs[member.name] is theirs(member.value) is member
            assert member in theirs and isinstance(member, theirs)
        assert theirs.__members__ == ours.__members__
        with pytest.raises(AttributeError, match=f"{name} has no NONSENSE"):
            theirs.NONSENSE  # noqa: B018
        with pytest.raises(KeyError):
            theirs["NONSENSE"]
    assert cudnn.pointwise_mode.RELU_FWD is verglas.pointwise_mode.RELU
    table = {np.dtype(np.float16): cudnn.data_type.HALF}
    assert table[np.dtype("f2")] is verglas.data_type.HALF
    with pytest.raises(NotImplementedError, match=r"data_type\.DOUBLE"):
        cudnn.data_type.DOUBLE  # noqa: B018


def test_arguments_by_position_are_cudnns():
    a, b = integers((1, 4, 8)), integers((1, 8, 4), 1)
    F = cudnn.data_type.FLOAT
    handle = cudnn.create_handle()
    graph = cudnn.pygraph("layer", F, F, F, handle, 132, 90, None, None, False, False)
    A = graph.tensor([1, 4, 8], [32, 8, 1], F, False, False, None, cudnn.tensor_reordering.NONE, "A", 7, 1)
    B = graph.tensor_like(input=b, name="B")
    C = graph.matmul(A, B, F, 0.0, "mm").set_output(True)
    graph.build([cudnn.heur_mode.A])
    assert (A.get_uid(), A.get_name(), graph.get_workspace_size(handle=handle)) == (7, "A", 0)
    assert graph.get_workspace_size_plan_at_index(0, handle=handle) == 0
    c = np.empty((1, 4, 4), np.float32)
    graph.execute({7: a, "B": b, C: c}, None, handle)
    np.testing.assert_array_equal(c, a @ b)
    with pytest.raises(NotImplementedError, match="ragged_offset"):
        cudnn.pygraph().tensor([1, 4, 8], [32, 8, 1], ragged_offset=A)
    assert cudnn.pygraph().tensor(dim=(1, 1), stride=(1, 1), uid=-1).get_uid() > 0


def test_overrides_by_position_follow_the_handle():
    a, b, c = integers((1, 4, 8)), integers((1, 8, 4), 1), np.zeros((1, 4, 4), np.float32)
    graph = cudnn.pygraph(io_data_type=cudnn.data_type.FLOAT, is_override_shape_enabled=True)
    A, B = graph.tensor_like(a), graph.tensor_like(b)
    C = graph.matmul(A, B).set_output(True)
    graph.build([cudnn.heur_mode.A])
    overrides = [A.get_uid(), C.get_uid()], [(1, 2, 8), (1, 2, 4)], [(32, 8, 1), (16, 4, 1)]
    want = np.concatenate([(a @ b)[:, :2], np.zeros((1, 2, 4))], 1)
    graph.execute({A: a, B: b, C: c}, None, cudnn.create_handle(), *overrides)
    np.testing.assert_array_equal(c, want)
    c[...] = 0
    graph.execute_plan_at_index({A: a, B: b, C: c}, None, 0, None, *overrides)
    np.testing.assert_array_equal(c, want)
    assert graph.get_workspace_size(None, *overrides) == 0


def test_packs_may_have_more_and_may_be_lists_with_uids():
    a, b, c = integers((1, 4, 8)), integers((1, 8, 4), 1), np.zeros((1, 4, 4), np.float32)
    graph = cudnn.pygraph(io_data_type=cudnn.data_type.FLOAT)
    A = graph.tensor([1, 4, 8], [32, 8, 1], None, False, False, None, None, "A", 7, 1)
    B, stranger = graph.tensor_like(b), cudnn.pygraph().tensor(dim=[1, 1], stride=[1, 1], uid=99)
    product = graph.matmul(A, B)
    C = graph.relu(product).set_output(True)
    graph.build([cudnn.heur_mode.A])
    for run in (graph.execute, lambda pack, **more: graph.execute_plan_at_index(pack, None, 0, **more)):
        for pack in ({A: a, B: b, C: c, stranger: a}, {7: a, B: b, C: c, 12345: object(), product: c}):
            c[...] = 0
            run(pack)
            np.testing.assert_array_equal(c, np.maximum(a @ b, 0))
        c[...] = 0
        run([c, a, b], tensor_uids=[C.get_uid(), 7, B.get_uid()])
        np.testing.assert_array_equal(c, np.maximum(a @ b, 0))
        with pytest.raises(verglas.InvalidCallError, match=r"pack\.missing"):
            run({A: a, B: b, stranger: c})
        with pytest.raises(ValueError, match="zip"):
            run([a, b], tensor_uids=[7])
    assert graph.get_workspace_size_plan_at_index(0, None, [7], [(1, 2, 8)], [(32, 8, 1)]) == 0


def test_calls_are_on_the_stream_of_the_graphs_handle():
    a = integers((1, 4, 4))
    handle = cudnn.create_handle()
    graph = cudnn.pygraph(io_data_type=cudnn.data_type.FLOAT, handle=handle)
    A = graph.tensor_like(a)
    C = graph.matmul(A, A).set_output(True)
    graph.build([cudnn.heur_mode.A])
    c = np.empty_like(a)
    cudnn.set_stream(handle, "no stream")
    for run in (graph.execute, lambda pack, **more: graph.execute_plan_at_index(pack, None, 0, **more)):
        with pytest.raises(verglas.InvalidCallError, match=r"pack\.stream"):
            run({A: a, C: c})
        run({A: a, C: c}, handle=cudnn.create_handle())
        run({A: a, C: c}, stream=7)
    cudnn.set_stream(handle, 7)
    graph.execute({A: a, C: c})
    np.testing.assert_array_equal(c, a @ a)


def test_one_number_on_the_host_is_passed_by_value_to_a_gpu():
    for device, on_gpu in (("cuda:0", True), ("cpu", False)):
        graph = cudnn.pygraph(device=device)
        assert graph.tensor_like(np.ones((1, 1, 1), np.float32)).get_is_pass_by_value() == on_gpu
        assert not graph.tensor_like(np.ones((1, 1, 2), np.float32)).get_is_pass_by_value()
        assert not graph.tensor_like(graph.tensor(dim=[1, 1, 1], stride=[1, 1, 1])).get_is_pass_by_value()


def test_the_plan_that_was_built_last_by_its_index_is_executed():
    a = integers((1, 64, 64))
    graph = cudnn.pygraph(io_data_type=cudnn.data_type.FLOAT)
    A = graph.tensor_like(a)
    C = graph.matmul(A, A).set_output(True)
    graph.create_execution_plans([cudnn.heur_mode.A])
    assert graph.get_execution_plan_count() > 1
    for i in (*range(graph.get_execution_plan_count()), 0):
        graph.build_plan_at_index(i)
        assert graph.plan.name == graph.get_plan_name_at_index(i)
        for run in (
            lambda pack: graph.execute(pack, None, handle=cudnn.create_handle()),
            lambda pack, i=i: graph.execute_plan_at_index(pack, index=i),
            lambda pack, i=i: graph.execute_plan_at_index(pack, None, i, cudnn.create_handle()),
        ):
            c = np.empty_like(a)
            run({A: a, C: c})
            np.testing.assert_array_equal(c, a @ a)


def test_gradients_of_grouped_products_take_the_gradient_first():
    tokens, doutput = integers((1, 6, 8)), integers((1, 6, 8), 1)
    graph = cudnn.pygraph(io_data_type=cudnn.data_type.FLOAT)
    T, D = graph.tensor_like(tokens), graph.tensor_like(doutput)
    offsets = graph.tensor(dim=[2, 1, 1], stride=[1, 1, 1], data_type=cudnn.data_type.INT32)
    W = graph.moe_grouped_matmul_bwd(D, T, offsets, name="gradient").set_output(True)
    graph.build()
    w = np.empty((2, 8, 8), np.float32)
    graph.execute({T: tokens, D: doutput, offsets: np.array([0, 4], np.int32).reshape(2, 1, 1), W: w})
    for i, rows in enumerate((slice(0, 4), slice(4, 6))):
        np.testing.assert_array_equal(w[i], tokens[0, rows].T @ doutput[0, rows])


def test_grouped_product_by_cudnns_defaults():
    tokens, weights = integers((1, 6, 8)), integers((2, 8, 4), 1)
    graph = cudnn.pygraph(io_data_type=cudnn.data_type.FLOAT)
    T, W = graph.tensor_like(tokens), graph.tensor_like(weights)
    offsets = graph.tensor(dim=[2, 1, 1], stride=[1, 1, 1], data_type=cudnn.data_type.INT32)
    none = cudnn.moe_grouped_matmul_mode.NONE
    Y = graph.moe_grouped_matmul(T, W, offsets, None, None, none, cudnn.data_type.FLOAT, 0, "mm").set_output(True)
    graph.build()
    y = np.empty((1, 6, 4), np.float32)
    graph.execute({T: tokens, W: weights, offsets: np.array([0, 4], np.int32).reshape(2, 1, 1), Y: y})
    np.testing.assert_array_equal(y[0], np.concatenate([tokens[0, :4] @ weights[0], tokens[0, 4:] @ weights[1]]))


def test_grouped_product_of_which_each_token_has_the_sum():
    """FC2 of a mixture of experts, by cuDNN's arguments in their order."""
    tokens, top_k = 3, 2
    token, weight, score = integers((1, 6, 8)), integers((2, 8, 4), 1), integers((tokens, top_k), 2)
    graph = cudnn.pygraph(io_data_type=cudnn.data_type.FLOAT)
    T, W, P = graph.tensor_like(token), graph.tensor_like(weight), graph.tensor_like(score)
    offsets = graph.tensor(dim=[2, 1, 1], stride=[1, 1, 1], data_type=cudnn.data_type.INT32)
    index, slot = (graph.tensor(dim=[1, 6, 1], stride=[6, 1, 1], data_type=cudnn.data_type.INT32) for _ in range(2))
    combine = cudnn.moe_grouped_matmul_mode.COMBINE
    Y = graph.moe_grouped_matmul(T, W, offsets, index, slot, combine, cudnn.data_type.FLOAT, top_k, "fc2", P).set_output(True)
    graph.build()
    first = np.array([0, 3], np.int32).reshape(2, 1, 1)
    of_row, of_slot = (np.array(x, np.int32).reshape(1, 6, 1) for x in ([0, 1, 2, 2, 0, 1], [0, 0, 1, 0, 1, 1]))
    y = np.empty((1, tokens, 4), np.float32)
    graph.execute({T: token, W: weight, offsets: first, index: of_row, slot: of_slot, P: score, Y: y})
    want = np.zeros((tokens, 4))
    for r, (t, s) in enumerate(zip(of_row.ravel(), of_slot.ravel(), strict=True)):
        want[t] += score[t, s] * (token[0, r] @ weight[r // 3])
    np.testing.assert_array_equal(y[0], want)


def test_script_mixed_precision():
    a, b = integers((2, 8, 16), dtype=np.int8), integers((2, 16, 8), 1, BF16)
    graph = cudnn.pygraph(io_data_type=cudnn.data_type.BFLOAT16, compute_data_type=cudnn.data_type.FLOAT)
    A = graph.tensor(name="A", dim=[2, 8, 16], stride=[128, 16, 1], data_type=cudnn.data_type.INT8)
    B = graph.tensor(name="B", dim=[2, 16, 8], stride=[128, 8, 1])
    cast = graph.identity(name="cast", input=A, compute_data_type=cudnn.data_type.FLOAT)
    cast.set_data_type(cudnn.data_type.BFLOAT16)
    C = graph.matmul(name="mm", A=cast, B=B)
    C.set_output(True).set_data_type(cudnn.data_type.FLOAT)
    graph.build([cudnn.heur_mode.A])
    c = np.empty((2, 8, 8), np.float32)
    graph.execute({A: a, B: b, C: c}, None)
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32))


def test_script_low_precision():
    graph = cudnn.pygraph(io_data_type=cudnn.data_type.FP8_E4M3, compute_data_type=cudnn.data_type.FLOAT)
    a, b = integers((1, 8, 16), 0, "float8_e4m3fn"), integers((1, 16, 8), 1, "float8_e4m3fn")
    A, B = graph.tensor_like(a), graph.tensor_like(b)
    scale = graph.tensor(name="scale", dim=[1, 1, 1], stride=[1, 1, 1], data_type=cudnn.data_type.FLOAT)
    C = graph.mul(name="scaled", a=graph.matmul(A=A, B=B), b=scale)
    C.set_output(True).set_data_type(cudnn.data_type.HALF)
    graph.build([cudnn.heur_mode.A])
    c = np.empty((1, 8, 8), np.float16)
    graph.execute({A: a, B: b, scale: np.full((1, 1, 1), 0.5, np.float32), C: c}, None)
    np.testing.assert_array_equal(c, 0.5 * (a.astype(np.float32) @ b.astype(np.float32)))


def test_script_what_no_engine_serves():
    graph = cudnn.pygraph(io_data_type=cudnn.data_type.FLOAT)
    x = graph.tensor(dim=[1, 4, 4], stride=[16, 4, 1])
    graph.relu(graph.matmul(graph.matmul(x, x), x)).set_output(True)
    with pytest.raises(cudnn.cudnnGraphNotSupportedError):
        graph.build([cudnn.heur_mode.A])


def test_script_swiglu_wrapper_and_class():
    a, b = matrix((8, 32, 2), BF16, seed=1), matrix((128, 32, 2), BF16, seed=2)
    result = cudnn.gemm_swiglu_wrapper_sm100(
        a,
        b,
        alpha=0.5,
        c_major="n",
        ab12_dtype=np.float32,
        c_dtype=np.float32,
        acc_dtype=np.float32,
        mma_tiler_mn=(256, 256),
        cluster_shape_mn=(2, 2),
        stream=None,
    )
    ab12, c, sfc, amax = result
    assert isinstance(result, cudnn.TupleDict) and result["c_tensor"] is c and sfc is amax is None
    want = oracle.swiglu(a, b, 0.5)
    np.testing.assert_array_equal(ab12, want[0])
    out = np.empty_like(ab12), np.empty_like(c)
    gemm = cudnn.GemmSwigluSm100(a, b, out[0], out[1], alpha=0.5, mma_tiler_mn=(128, 128))
    assert gemm.check_support()
    gemm.compile()
    gemm.execute(a, b, out[0], out[1], current_stream=None)
    np.testing.assert_array_equal(out[0], want[0])
    np.testing.assert_array_equal(out[1], c)


def test_script_amax():
    a, b = matrix((8, 32, 1), np.float16, seed=1), matrix((16, 32, 1), np.float16, seed=2)
    c, amax = cudnn.gemm_amax_wrapper_sm100(a, b, None, None, "m", np.float32, sf_vec_size=32)
    np.testing.assert_array_equal(c, oracle.product(a, b))
    assert amax.shape == (1, 1, 1) and amax.item() == oracle.amax(a, b)[1]


def test_script_srelu_and_dsrelu():
    a, b, prob = matrix((8, 32, 1), BF16, seed=1), matrix((16, 32, 1), BF16, seed=2), matrix((8, 1, 1), np.float32, "n", 3)
    dy = matrix((8, 16, 1), BF16, "n", 4)
    result = cudnn.gemm_srelu_wrapper_sm100(a, b, None, None, prob, 1.0, c_dtype=np.float32, d_dtype=np.float32)
    np.testing.assert_array_equal(result["d_tensor"], oracle.srelu(a, b, prob, 1.0)[1])
    gradients = cudnn.gemm_dsrelu_wrapper_sm100(a, b, dy, None, None, prob, d_dtype=np.float32)
    want = oracle.dsrelu(a, b, dy, prob, 1.0)
    np.testing.assert_array_equal(gradients["d_tensor"], want[0])
    np.testing.assert_array_equal(gradients["dprob_tensor"], want[1])
    d, dprob = np.empty((8, 16, 1), np.float32), np.zeros((8, 1, 1), np.float32)
    op = cudnn.GemmDsreluSm100(a, b, dy, d, dprob, None, None, prob)
    op(a, b, dy, d, dprob, None, None, prob)
    np.testing.assert_array_equal(dprob, want[1])


def test_script_projection_asserts_its_arguments():
    from test_ops_proj_rope import inputs

    (x, w, cos, sin), _, _ = inputs(32, 64, 1, False)
    (x8, w8, _, _, xs, ws), _, _ = inputs(32, 64, 1, True)
    f = cudnn.gemm_proj_rope_mxfp8_wrapper_sm100
    assert list(f(x, w, cos, sin)) and list(f(x8, w8, cos, sin, xs, ws))
    for kind in (AssertionError, ValueError, verglas.Error):
        for call in (lambda: f(x, w8, cos, sin), lambda: f(x8, w8, cos, sin), lambda: f(x, w, cos, sin, xs, ws)):
            with pytest.raises(kind, match=r"op\.(dtype|missing)"):
                call()
    with pytest.raises(ValueError, match=r"op\.extent") as caught:
        f(x, w, cos[:16], sin)
    assert not isinstance(caught.value, AssertionError)


def test_script_activations_by_mode():
    graph = cudnn.pygraph(io_data_type="fp32")
    a = integers((1, 4, 4))
    A = graph.tensor_like(a)
    Y = graph.pointwise(cudnn.pointwise_mode.RELU_FWD, [graph.matmul(A, A)])
    Y.set_output(True)
    y = np.empty((1, 4, 4), np.float32)
    graph.build()
    graph.execute([a, y])
    np.testing.assert_array_equal(y, np.maximum(a @ a, 0))
    assert cudnn.pointwise_mode["GELU_APPROX_TANH_FWD"] is verglas.pointwise_mode.GELU_APPROX_TANH
    assert cudnn.pointwise_mode.ADD in list(cudnn.pointwise_mode)


def test_script_record_and_replay():
    def describe():
        graph = cudnn.pygraph(io_data_type="fp32")
        A = graph.tensor(name="a", dim=[1, 4, 4], stride=[16, 4, 1])
        graph.matmul(A, A).set_output(True)
        return graph

    graph = describe()
    graph.create_execution_plans([cudnn.heur_mode.A])
    engine, knobs = graph.get_engine_and_knobs_at_index(graph.get_execution_plan_count() - 1)
    again = describe()
    again.create_execution_plan(engine, knobs)
    again.build_plans()
    a, y = integers((1, 4, 4)), np.empty((1, 4, 4), np.float32)
    again.execute([a, y])
    np.testing.assert_array_equal(y, a @ a)


def test_streams_and_versions():
    handle = cudnn.create_handle()
    cudnn.set_stream(handle=handle, stream=7)
    assert cudnn.get_stream(handle) == 7

    class Stream:
        cuda_stream = 9

    cudnn.set_stream(handle=handle, stream=Stream())
    assert cudnn.get_stream(handle) == 9
    assert cudnn.backend_version() >= 90000 and cudnn.backend_version_string().count(".") == 2


def test_it_can_stand_in_for_the_module(monkeypatch):
    monkeypatch.setitem(sys.modules, "cudnn", cudnn)
    import cudnn as theirs

    assert theirs.pygraph is cudnn.pygraph


def layer(**options):
    x, w, bias = integers((1, 16, 32)), integers((1, 32, 24), 1), integers((1, 1, 24), 2)
    with cudnn.Graph(io_data_type=cudnn.data_type.FLOAT, compute_data_type=cudnn.data_type.FLOAT, **options) as graph:
        product = graph.matmul(A=x, B=w, name="mm")
        graph.relu(input=graph.bias(input=product, bias=bias, name="shift"), name="act").set_output(True)
    return graph, x, w, bias, np.maximum(x @ w + bias, 0)


@pytest.mark.parametrize("outputs", [["act::OUT_0"], ["act::0"], ["act::out"]])
def test_script_graph_of_arrays_called_by_position(outputs):
    graph, x, w, bias, want = layer(inputs=["mm::A", "mm::B", "shift::bias"], outputs=outputs, handle="auto")
    y = graph(x, w, bias)
    assert isinstance(y, np.ndarray)
    np.testing.assert_array_equal(y, want)
    np.testing.assert_array_equal(graph(2 * x, w, 2 * bias, handle=cudnn.create_handle()), 2 * want)
    with pytest.raises(ValueError, match="Number of arguments"):
        graph(x, w)


@pytest.mark.parametrize("name", ["mm", None])
def test_arguments_of_a_node_have_their_names_however_they_are_passed(name):
    x, w = integers((1, 8, 8)), integers((1, 8, 8), 1)
    with cudnn.Graph(io_data_type=np.float32) as graph:
        named = {} if name is None else {"name": name}
        graph.relu(graph.matmul(x, w, **named), 0.5, None, None, "fp32", "act").set_output(True)
        with pytest.raises(TypeError):
            graph.matmul(x, w, A=x)
        with pytest.raises(ValueError, match="act already used"):
            graph.relu(x, name="act")
    node = name or "matmul.0"
    product = x @ w
    want = np.where(product > 0, product, 0.5 * product)
    np.testing.assert_array_equal(graph({f"{node}::A": x, f"{node}::B": w})["act::out"], want)
    graph.set_io_tuples([f"{node}::A", f"{node}::B"], ["act::0"])
    np.testing.assert_array_equal(graph(x, w), want)


def test_script_graph_called_by_name():
    graph, x, w, bias, want = layer()
    made = graph({"mm::A": x, "mm::B": w, "shift::bias": bias})
    np.testing.assert_array_equal(made["act::out"], want)
    own = np.empty_like(want)
    graph({"mm::A": x, "mm::B": w, "shift::bias": bias, "act::OUT_0": own})
    np.testing.assert_array_equal(own, want)
    with pytest.raises(RuntimeError, match="inputs are missing: "):
        graph({"mm::A": x, "mm::B": w})
    with pytest.raises(ValueError, match="no tensor of this graph"):
        graph({"nobody": x})
    with pytest.raises(ValueError, match="by position needs"):
        graph(x, w, bias)
    graph.set_io_tuples([x, w, bias], ["act::0"])
    np.testing.assert_array_equal(graph(x, w, bias), want)


def test_script_graph_of_declared_tensors_and_two_outputs():
    with cudnn.Graph(inputs=["X", "W"], outputs=["P", "Y"], io_data_type=np.float32, heuristics=[cudnn.heur_mode.A]) as graph:
        x = graph.tensor(name="X", dim=[1, 8, 8], stride=[64, 8, 1])
        w = graph.tensor(name="W", dim=[1, 8, 8], stride=[64, 8, 1])
        product = graph.matmul(name="mm", A=x, B=w)
        product.set_output(True).set_name("P")
        graph.relu(product).set_output(True).set_name("Y")
    a, b = integers((1, 8, 8)), integers((1, 8, 8), 1)
    p, y = graph(a, b)
    np.testing.assert_array_equal(p, a @ b)
    np.testing.assert_array_equal(y, np.maximum(a @ b, 0))


def test_what_a_graph_refuses():
    with pytest.raises(ValueError, match="inputs must be"):
        cudnn.Graph(inputs="X")
    with pytest.raises(RuntimeError, match="inside of its with block"):
        cudnn.Graph().matmul(1, 2)
    with pytest.raises(ValueError, match="not named"):
        layer(inputs=["mm::A", "mm::B"], outputs=["act::0"])
    with pytest.raises(ValueError, match="duplicate"):
        layer(inputs=["mm::A", "mm::A", "mm::B"], outputs=["act::0"])
    with cudnn.Graph(io_data_type="fp32") as graph:
        x = integers((1, 4, 4))
        graph.matmul(x, x, name="mm").set_output(True)
        with pytest.raises(ValueError, match="already used"):
            graph.matmul(x, x, name="mm")
        with pytest.raises(RuntimeError, match="execute is called by"):
            graph.execute({})
        with pytest.raises(RuntimeError, match="after its block"):
            graph(x)
        with pytest.raises(NotImplementedError, match="sdpa"):
            graph.sdpa(x)
    with pytest.raises(KeyError), cudnn.Graph():
        raise KeyError("an error of the script")


def test_script_jit_and_cache():
    built = []

    @cudnn.jit(heur_modes=[cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    @cudnn.graph_cache(key_fn=lambda handle, n: n, maxsize=2)
    def square(handle, n):
        built.append(n)
        with cudnn.graph(handle, io_data_type=cudnn.data_type.FLOAT) as (g, _):
            x = g.tensor(name="x", dim=[1, n, n], stride=[n * n, n, 1])
            y = g.matmul(x, x)
            y.set_output(True)
        return g, [x, y]

    handle = cudnn.create_handle()
    for n in (4, 8, 4, 16, 4):
        graph, (x, y) = square(handle, n)
        a, out = integers((1, n, n)), np.empty((1, n, n), np.float32)
        graph.execute({x: a, y: out}, None, handle=handle)
        np.testing.assert_array_equal(out, a @ a)
    assert built == [4, 8, 16, 4]


def test_the_example_of_the_page_runs():
    for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        exec(compile(block, str(PAGE), "exec"), {})
