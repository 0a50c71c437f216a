"""Grouped products (mixture of experts) in NumPy's terms, against float64."""

import itertools
import re

import ml_dtypes
import numpy as np
import pytest
import verglas
from support import BF16, Output, declare, integers
from verglas import scale_layout

MODE = verglas.moe_grouped_matmul_mode
ENDS = verglas.moe_offsets.END


def owners(offsets, rows, ends=False):
    """The group of each row, -1 where there is none."""
    bounds = [0, *offsets] if ends else [*offsets, rows]
    group = np.full(rows, -1)
    for g, (first, last) in enumerate(itertools.pairwise(bounds)):
        group[first:last] = g
    return group


def multiplied(token, weight, group):
    """float64 rows of the product; zeros where nobody owns one."""
    out = np.zeros((len(group), weight.shape[2]))
    for r, g in enumerate(group):
        if g >= 0:
            out[r] = token[r].astype(np.float64) @ weight[g % len(weight)].astype(np.float64)
    return out


@pytest.mark.parametrize("kind", [np.float32, np.float16, BF16])
@pytest.mark.parametrize("wide", [np.int32, np.int64])
@pytest.mark.parametrize("offsets,experts", [([0, 5, 5, 30], 4), ([3, 3, 8, 41], 2), ([0], 1), ([41, 41], 2)])
def test_rows_in_place(kind, wide, offsets, experts):
    token, weight = integers((1, 41, 24), 1, kind), integers((experts, 24, 17), 2, kind)
    first = np.array(offsets, wide)
    graph = verglas.Graph(io_data_type=kind)
    t, w, o = declare(graph, "t", token), declare(graph, "w", weight), declare(graph, "o", first)
    y = graph.moe_grouped_matmul(t, w, o).set_output(True).set_data_type("float32")
    graph.build()
    out = np.full((1, 41, 17), 7.5, np.float32)
    graph.execute({t: token, w: weight, o: first, y: out})
    group = owners(offsets, 41)
    want = multiplied(token[0], weight, group)
    assert (out[0][group >= 0] == want[group >= 0]).all()
    assert (out[0][group < 0] == 7.5).all()
    graph.check()


def test_a_feed_forward_layer_of_experts():
    """Gather, two products, biases of groups, SwiGLU; then scatter of the second layer with probabilities, top 2."""
    rng = np.random.default_rng(5)
    tokens, top_k, experts, hidden, inner = 23, 2, 5, 16, 32
    rows = tokens * top_k
    expert_of = np.stack([rng.permutation(experts)[:top_k] for _ in range(tokens)])
    order = np.argsort(expert_of.ravel(), kind="stable")
    index, slot = (order // top_k).astype(np.int32), (order % top_k).astype(np.int32)
    first = np.searchsorted(expert_of.ravel()[order], np.arange(experts)).astype(np.int32)
    x = rng.normal(size=(1, tokens, hidden)).astype(np.float32)
    gate, up = (rng.normal(size=(experts, hidden, inner)).astype(np.float32) for _ in range(2))
    down = rng.normal(size=(experts, inner, hidden)).astype(np.float32)
    bias = rng.normal(size=(experts, 1, inner)).astype(np.float32)
    probability = rng.uniform(size=(tokens, top_k)).astype(np.float32)

    graph = verglas.Graph(io_data_type="float32")
    tx, tg, tu, tb = (declare(graph, n, a) for n, a in (("x", x), ("gate", gate), ("up", up), ("bias", bias)))
    to, ti = declare(graph, "o", first), declare(graph, "i", index)
    pair = {"first_token_offset": to, "token_index": ti, "mode": MODE.GATHER}
    g = graph.bias(graph.moe_grouped_matmul(tx, tg, **pair), tb)
    h = graph.mul(graph.swish(g), graph.moe_grouped_matmul(tx, tu, **pair)).set_output(True)
    most = graph.reduction(h, verglas.reduction_mode.AMAX, group_offset=to).set_dim([experts, 1, 1]).set_output(True)
    graph.build()
    between, largest = np.empty((1, rows, inner), np.float32), np.empty((experts, 1, 1), np.float32)
    graph.execute({tx: x, tg: gate, tu: up, tb: bias, to: first, ti: index, h: between, most: largest})
    group = owners(first, rows)
    sums = multiplied(x[0][index], gate, group) + bias[group, 0].astype(np.float64)
    want = sums / (1 + np.exp(-sums)) * multiplied(x[0][index], up, group)
    np.testing.assert_allclose(between[0], want, rtol=2e-5, atol=2e-5)
    for e in range(experts):
        assert largest[e, 0, 0] == np.abs(between[0][group == e]).max(initial=0)

    second = verglas.Graph(io_data_type="float32")
    th, td, to = declare(second, "h", between), declare(second, "down", down), declare(second, "o", first)
    ti, ts = declare(second, "i", index), declare(second, "s", slot)
    tp = second.tensor(name="p", dim=[1, rows, 1], stride=[rows, 1, 1])
    y = second.moe_grouped_matmul(th, td, to, ti, ts, mode=MODE.SCATTER, top_k=top_k)
    y = second.mul(y, tp).set_output(True)
    second.build()
    out = Output((1, rows, hidden))
    second.execute({th: between, td: down, to: first, ti: index, ts: slot, tp: probability.reshape(1, rows, 1), y: out.array})
    result = out.array.astype(np.float64).reshape(tokens, top_k, hidden).sum(axis=1)
    exact = np.zeros((tokens, hidden))
    for r, g in enumerate(group):
        scale = float(probability[index[r], slot[r]])
        exact[index[r]] += between[0][r].astype(np.float64) @ down[g].astype(np.float64) * scale
    np.testing.assert_allclose(result, exact, rtol=1e-4, atol=1e-4)
    assert out.gaps_untouched()

    combined = verglas.Graph(io_data_type="float32")
    arrays = {"h": between, "down": down, "o": first, "i": index, "s": slot, "p": probability}
    t = {name: declare(combined, name, a) for name, a in arrays.items()}
    z = combined.moe_grouped_matmul(
        t["h"], t["down"], t["o"], t["i"], t["s"], mode=MODE.COMBINE, top_k=top_k, top_k_scores=t["p"]
    ).set_output(True)
    combined.build()
    out = Output((1, tokens, hidden))
    combined.execute({**{t[name]: a for name, a in arrays.items()}, z: out.array})
    np.testing.assert_allclose(out.array[0], exact, rtol=1e-4, atol=1e-4)
    assert out.gaps_untouched()


@pytest.mark.parametrize("kind", [np.float32, np.float16, BF16])
@pytest.mark.parametrize("shape", ["(tokens, top_k)", "(1, tokens, top_k)", "(tokens, top_k, 1)"])
@pytest.mark.parametrize("top_k", [1, 4])
def test_combine_adds_up_what_each_token_has(kind, shape, top_k):
    """By NumPy in float64, exactly; other tokens and rows than described; rows without a token, tokens without a row."""
    graph = verglas.Graph(io_data_type=kind)
    dim = {"(tokens, top_k)": [8, top_k], "(1, tokens, top_k)": [1, 1, top_k], "(tokens, top_k, 1)": [8, top_k, 1]}[shape]
    t = graph.tensor(name="t", dim=[1, 20, 12], stride=[240, 12, 1])
    w = graph.tensor(name="w", dim=[3, 12, 10], stride=[120, 10, 1])
    o = graph.tensor(name="o", dim=[4], stride=[1], data_type="int32")
    i, s = (graph.tensor(name=n, dim=[1, 20, 1], stride=[20, 1, 1], data_type="int32") for n in "is")
    p = graph.tensor(name="p", dim=dim, stride=[int(np.prod(dim[a + 1 :])) for a in range(len(dim))])
    y = graph.moe_grouped_matmul(t, w, o, i, s, mode=MODE.COMBINE, top_k=top_k, top_k_scores=p)
    y.set_output(True).set_data_type("float32")
    graph.build()
    rng = np.random.default_rng(top_k)
    for tokens, rows in ((8, 20), (33, 57), (1, 5), (40, 0)):
        token = integers((1, rows, 12 * 2), 1, kind)[:, :, ::2].copy()
        weight, score = integers((3, 12, 10), 2, kind), integers((tokens, top_k), 3, kind)
        first = np.sort(rng.integers(0, rows + 1, 4)).astype(np.int32)
        index = rng.integers(-1, max(tokens - 2, 1), rows).astype(np.int32)
        slot = rng.integers(0, top_k, rows).astype(np.int32)
        out = Output((1, tokens, 10))
        graph.execute({t: token, w: weight, o: first, i: index, s: slot, p: score, y: out.array})
        graph.check()
        want = np.zeros((tokens, 10))
        for r, g in enumerate(owners(first, rows)):
            if g >= 0 and index[r] >= 0:
                product = token[0, r].astype(np.float64) @ weight[g % 3].astype(np.float64)
                want[index[r]] += float(score[index[r], slot[r]]) * product
        np.testing.assert_array_equal(out.array[0], want)
        assert out.gaps_untouched()
    with pytest.raises(verglas.InvalidCallError, match=r"call\.aux_extent\] top_k_scores 'p': .*\(tokens, "):
        graph.execute({t: token, w: weight, o: first, i: index, s: slot, p: np.ones((40, top_k + 1), kind), y: out.array})


@pytest.mark.parametrize("accumulate", [False, True])
def test_the_gradient_of_the_weights(accumulate):
    sizes = [7, 0, 30, 4, 0]
    ends = np.cumsum(sizes).astype(np.int32)
    x, dout = integers((1, 41, 12), 1, BF16), integers((1, 41, 9), 2, BF16)
    before = integers((5, 12, 9), 3)
    graph = verglas.Graph(io_data_type="bfloat16")
    tx, td, to = declare(graph, "x", x), declare(graph, "dout", dout), declare(graph, "o", ends)
    dw = graph.moe_grouped_matmul_bwd(tx, td, to, offsets=ENDS, accumulate=accumulate).set_output(True)
    dw.set_data_type("float32")
    graph.build()
    out = before.copy()
    graph.execute({tx: x, td: dout, to: ends, dw: out})
    want = before * accumulate
    for g, (last, size) in enumerate(zip(ends, sizes, strict=True)):
        rows = slice(last - size, last)
        want[g] += x[0, rows].astype(np.float64).T @ dout[0, rows].astype(np.float64)
    assert (out == want).all()


@pytest.mark.parametrize("rows", [0, 1, 4, 5, 6, 9])
@pytest.mark.parametrize(("k", "n"), [(3, 4), (4, 4), (5, 4), (6, 6), (4, 5)])
@pytest.mark.parametrize("along_rows", [False, True])
def test_a_gradient_takes_any_number_of_rows(rows, k, n, along_rows):
    """Whatever their number is as an extent of another operand: rows are never taken for columns."""
    graph = verglas.Graph(io_data_type="float32")
    x = graph.tensor(name="x", dim=[1, 6, k], stride=[6 * k, k, 1])
    dout = graph.tensor(name="dout", dim=[1, 6, n], stride=[6 * n, 1, 6] if along_rows else [6 * n, n, 1])
    o = graph.tensor(name="o", dim=[2, 1, 1], stride=[1, 1, 1], data_type="int32")
    dw = graph.moe_grouped_matmul_bwd(x, dout, o, offsets=ENDS).set_output(True)
    graph.build()
    a, b = integers((1, rows, k), rows), integers((1, rows, n), n)
    passed = np.asfortranarray(b[0])[None] if along_rows else b
    cut, out = rows // 2, np.full((2, k, n), 7, np.float32)
    graph.execute({x: a, dout: passed, o: np.array([cut, rows], np.int32).reshape(2, 1, 1), dw: out})
    assert (out == np.stack([a[0, :cut].T @ b[0, :cut], a[0, cut:].T @ b[0, cut:]])).all()


@pytest.mark.parametrize("mode", [MODE.NONE, MODE.GATHER, MODE.SCATTER])
@pytest.mark.parametrize("flat", [False, True])
def test_a_description_of_one_row_takes_more_and_of_one_group_no_more(mode, flat):
    """Lists of several numbers are never read as the one that was declared."""
    graph = verglas.Graph(io_data_type="float32")
    t = graph.tensor(name="t", dim=[1, 1, 4], stride=[4, 4, 1])
    w = graph.tensor(name="w", dim=[1, 4, 3], stride=[12, 3, 1])
    o = graph.tensor(name="o", dim=[1, 1, 1], stride=[1, 1, 1], data_type="int32")
    lists = [graph.tensor(name=n, dim=[1, 1, 1], stride=[1, 1, 1], data_type="int32") for n in "is"]
    given = {MODE.NONE: 0, MODE.GATHER: 1, MODE.SCATTER: 2}[mode]
    y = graph.moe_grouped_matmul(t, w, o, *lists[:given], mode=mode, offsets=ENDS).set_output(True)
    graph.build()
    rows, x, weights = 6, integers((1, 6, 4)), integers((1, 4, 3), 1)
    index, slot = np.arange(rows, dtype=np.int32)[::-1].copy(), np.zeros(rows, np.int32)
    shaped = (lambda a: a) if flat else (lambda a: a.reshape(1, -1, 1))
    out = np.full((1, rows, 3), 7, np.float32)
    pack = {t: x, w: weights, y: out} | dict(zip(lists[:given], map(shaped, (index, slot)), strict=False))
    with pytest.raises(verglas.InvalidCallError, match=r"call\.aux_extent"):
        ends = np.array([2, 3, 5], np.int32)
        graph.execute(pack | {o: ends if flat else ends.reshape(-1, 1, 1)})
    assert (out == 7).all()
    graph.execute(pack | {o: np.array([5], np.int32)})
    want = x[0] @ weights[0] if mode == MODE.NONE else x[0, ::-1] @ weights[0]
    owned = slice(1, 6) if mode == MODE.SCATTER else slice(0, 5)
    assert (out[0, owned] == want[owned]).all() and (np.delete(out[0], owned, 0) == 7).all()


def test_weights_by_address():
    token = integers((1, 20, 8), 1)
    weights = [integers((8, 6), 10 + e) for e in range(3)]
    first = np.array([0, 4, 15], np.int32)
    graph = verglas.Graph(io_data_type="float32")
    t, o = declare(graph, "t", token), declare(graph, "o", first)
    w = graph.tensor(name="w", dim=[3, 8, 6], stride=[48, 6, 1]).set_by_pointers(True)
    y = graph.moe_grouped_matmul(t, w, o).set_output(True)
    graph.build()
    table = np.array([a.__array_interface__["data"][0] for a in weights], np.int64)
    out = np.empty((1, 20, 6), np.float32)
    graph.execute({t: token, w: table, o: first, y: out})
    assert (out[0] == multiplied(token[0], np.stack(weights), owners(first, 20))).all()
    with pytest.raises(verglas.InvalidCallError, match=r"call\.dtype"):
        graph.execute({t: token, w: np.stack(weights), o: first, y: out})


def test_data_that_do_not_fit_are_told_and_never_followed():
    token, weight = integers((1, 6, 4), 1), integers((2, 4, 3), 2)
    index = np.array([0, 5, -1, 6, 2**31 - 1, 2], np.int32)
    first = np.array([0, 3], np.int32)
    graph = verglas.Graph(io_data_type="float32")
    t, w, o = declare(graph, "t", token), declare(graph, "w", weight), declare(graph, "o", first)
    i = graph.tensor(name="i", dim=[1, 6, 1], stride=[6, 1, 1], data_type="int32")
    y = graph.moe_grouped_matmul(t, w, o, i, mode=MODE.GATHER).set_output(True)
    graph.build()
    out = np.full((1, 6, 3), 9.5, np.float32)
    pack = {t: token, w: weight, o: first, i: index, y: out}
    graph.execute(pack)
    for r, (at, group) in enumerate(zip(index, owners(first, 6), strict=True)):
        inside = 0 <= at < 6
        want = token[0, at].astype(np.float64) @ weight[group].astype(np.float64) if inside else 9.5
        assert (out[0, r] == want).all()
    with pytest.raises(verglas.InvalidCallError, match="token indices outside the tokens"):
        graph.execute(pack)
    with pytest.raises(verglas.InvalidCallError, match=r"call\.data"):
        graph.check()
    graph.check()
    index[3:5] = -1
    graph.execute(pack)
    graph.check()


def test_zero_fill_and_quantised_rows():
    token, weight = integers((1, 10, 16), 1), integers((2, 16, 64), 2)
    first = np.array([4, 6], np.int64)
    graph = verglas.Graph(io_data_type="float32")
    t, w, o = declare(graph, "t", token), declare(graph, "w", weight), declare(graph, "o", first)
    x = graph.moe_grouped_matmul(t, w, o, zero_fill=True).set_output(True)
    data, scale = graph.block_scale_quantize(x, 32)
    data.set_output(True).set_data_type("fp8_e4m3")
    scale.set_output(True).set_data_type("fp8_e8m0")
    graph.build()
    out, q = np.full((1, 10, 64), np.nan, np.float32), np.full((1, 10, 64), 0x7F, np.uint8)
    s = np.full((1, 10, 2), 0xFF, np.uint8)
    graph.execute({t: token, w: weight, o: first, x: out, data: q, scale: s})
    assert (out[0] == multiplied(token[0], weight, owners(first, 10))).all()
    assert not q[0, :4].any() and not s[0, :4].any()
    decoded = q.view(ml_dtypes.float8_e4m3fn).astype(np.float64) * np.repeat(2.0 ** (s.astype(int) - 127), 32, axis=2)
    np.testing.assert_allclose(decoded[0, 4:], out[0, 4:], rtol=2**-4, atol=1e-6)


def test_a_graph_file_holds_all_of_it():
    graph = verglas.Graph(io_data_type="float32")
    t = graph.tensor(name="t", dim=[1, 6, 4], stride=[24, 4, 1])
    w = graph.tensor(name="w", dim=[2, 4, 3], stride=[12, 3, 1]).set_by_pointers(True)
    o = graph.tensor(name="o", dim=[2], stride=[1], data_type="int64")
    i, s = (graph.tensor(name=n, dim=[6], stride=[1], data_type="int32") for n in "is")
    y = graph.moe_grouped_matmul(t, w, o, i, s, mode=MODE.SCATTER, top_k=3, offsets=ENDS, zero_fill=True).set_output(True)
    graph.reduction(y, verglas.reduction_mode.ADD, group_offset=o).set_dim([2, 1, 3]).set_output(True)
    text = graph.to_json()
    assert verglas.Graph.from_json(text).to_json() == text
    for word in ('"by_pointers": true', '"mode": "scatter"', '"top_k": 3', '"offsets": "end"', '"zero_fill": true'):
        assert word in text


def test_alphas_biases_and_probabilities_beside_reductions_of_groups():
    """GeGLU of two products; numbers of each group and of each row; the largest and the sums of groups, the mean of all rows."""
    rng = np.random.default_rng(11)
    rows, experts, k, n = 57, 5, 16, 32
    first = np.array([0, 0, 20, 21, 57], np.int32)
    given = {"x": (1, rows, k), "up": (experts, k, n), "gate": (experts, k, n), "bias": (experts, 1, n), "alpha": (experts, 1, 1)}
    given["p"] = (1, rows, 1)
    value = {name: rng.normal(size=dim).astype(np.float32) for name, dim in given.items()}
    graph = verglas.Graph(io_data_type="float32")
    t = {name: declare(graph, name, a) for name, a in value.items()}
    o = declare(graph, "o", first)

    def branch(name):
        return graph.add(graph.mul(graph.moe_grouped_matmul(t["x"], t[name], o), t["alpha"]), t["bias"])

    y = graph.mul(graph.mul(graph.gelu_approx_tanh(branch("gate")), branch("up")), t["p"]).set_output(True)
    most = graph.reduction(y, verglas.reduction_mode.AMAX, group_offset=o).set_dim([experts, 1, 1]).set_output(True)
    sums = graph.reduction(y, verglas.reduction_mode.ADD, group_offset=o).set_dim([experts, 1, n]).set_output(True)
    mean = graph.reduction(y, verglas.reduction_mode.AVG).set_dim([1, 1, 1]).set_output(True)
    graph.build()
    out = {h: np.full(d, np.nan, np.float32) for h, d in ((y, (1, rows, n)), (most, (experts, 1, 1)), (sums, (experts, 1, n)))}
    out[mean] = np.full((1, 1, 1), np.nan, np.float32)
    graph.execute({**{t[name]: a for name, a in value.items()}, o: first, **out})
    graph.check()

    group = owners(first, rows)
    alpha, bias = value["alpha"][group, 0], value["bias"][group, 0]
    u, v = (multiplied(value["x"][0], value[name], group) * alpha + bias for name in ("gate", "up"))
    want = 0.5 * u * (1 + np.tanh(np.sqrt(2 / np.pi) * (u + 0.044715 * u**3))) * v * value["p"][0]
    np.testing.assert_allclose(out[y][0], want, rtol=1e-4, atol=1e-4)
    for e in range(experts):
        own = out[y][0][group == e].astype(np.float64)
        assert out[most][e, 0, 0] == np.abs(own).max(initial=0)
        np.testing.assert_allclose(out[sums][e, 0], own.sum(axis=0), rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(out[mean], out[y].astype(np.float64).mean(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "found,named",
    [
        ({"o": [3, 1]}, "group_offset 'o': got offsets that fall or leave the rows"),
        ({"i": [0, 1, 2, 6, 5, 4]}, "token_index 'i': got token indices outside the tokens"),
        ({"s": [0, 0, 0, 0, 2, 0]}, "token_ks 's': got slots outside top_k"),
        ({"o": [3, 1], "s": [0, 0, 0, 0, 2, 0]}, "group_offset 'o' and token_ks 's': got offsets"),
    ],
)
def test_data_that_do_not_fit_are_told_by_operand(found, named):
    data = {"o": [0, 3], "i": [0, 1, 2, 3, 4, 5], "s": [0] * 6} | found
    token, weight = integers((1, 6, 4), 1), integers((2, 4, 3), 2)
    graph = verglas.Graph(io_data_type="float32")
    t, w, o = declare(graph, "t", token), declare(graph, "w", weight), declare(graph, "o", np.array(data["o"], np.int32))
    i, s = (graph.tensor(name=name, dim=[1, 6, 1], stride=[6, 1, 1], data_type="int32") for name in "is")
    y = graph.moe_grouped_matmul(t, w, o, i, s, mode=MODE.SCATTER, top_k=1).set_output(True)
    graph.build()
    lists = [np.array(data[name], np.int32) for name in "ois"]
    pack = {t: token, w: weight, o: lists[0], i: lists[1], s: lists[2], y: np.empty((1, 6, 3), np.float32)}
    graph.execute(pack)
    with pytest.raises(verglas.InvalidCallError, match=r"call\.data\] .* in a call before this one"):
        graph.execute(pack)
    with pytest.raises(verglas.InvalidCallError, match=re.escape("[call.data] " + named)):
        graph.check()
    graph.check()


@pytest.mark.parametrize("end", [False, True])
@pytest.mark.parametrize("poison", [0x00, 0x7F, 0xFF])
def test_scales_in_atoms_of_each_group(end, poison):
    e4m3, e8m0 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu
    rng = np.random.default_rng(3)
    sizes, k, n, rows = [130, 0, 1, 128, 57], 96, 64, 330
    first = 0 if end else rows - sum(sizes)
    bounds = first + np.cumsum([0, *sizes])
    offsets = (bounds[1:] if end else bounds[:-1]).astype(np.int64)
    x, w = (rng.integers(-2, 3, s).astype(e4m3) for s in ((1, rows, k), (5, n, k)))
    sx, sw = (np.exp2(rng.integers(-2, 3, (*s.shape[:2], 3))).astype(e8m0) for s in (x, w))
    blob = scale_layout.interleave(sx.view(np.uint8), group_offsets=offsets, end=end)
    assert blob.shape == (1, scale_layout.grouped_rows(rows, 5), 4)
    inside = scale_layout.interleave(np.ones((1, rows, 3), np.uint8), group_offsets=offsets, end=end)
    back = scale_layout.plain(blob, rows, 3, group_offsets=offsets, end=end)
    owned = slice(bounds[0], bounds[-1])
    assert (back[owned] == sx.view(np.uint8)[0, owned]).all()
    assert not back[: bounds[0]].any()
    # Independently: one ungrouped blob a group, behind one another.
    parts = [scale_layout.interleave(sx.view(np.uint8)[0, a:b]).reshape(-1) for a, b in itertools.pairwise(bounds)]
    behind = np.concatenate(parts)
    assert (blob.reshape(-1)[: behind.size] == behind).all()
    graph = verglas.Graph()
    held = np.where(inside == 1, blob, poison).astype(np.uint8).view(e8m0)
    wt, swt = w.transpose(0, 2, 1), sw.transpose(0, 2, 1)
    reordered = declare(graph, "sx", held).set_reordering_type(verglas.tensor_reordering.F8_128x4)
    X = graph.block_scale_dequantize(declare(graph, "x", x), reordered, block_size=[1, 32])
    W = graph.block_scale_dequantize(declare(graph, "w", wt), declare(graph, "sw", swt), block_size=[32, 1])
    mode = ENDS if end else verglas.moe_offsets.FIRST_TOKEN
    y = graph.moe_grouped_matmul(X, W, declare(graph, "o", offsets), offsets=mode)
    y.set_output(True).set_data_type(verglas.data_type.FLOAT)
    graph.build()
    out = np.full((1, rows, n), np.nan, np.float32)
    graph.execute({"x": x, "sx": held, "w": wt, "sw": swt, "o": offsets, y: out})
    fx, fw = (v.astype(np.float64) * np.repeat(s.astype(np.float64), 32, -1) for v, s in ((x, sx), (w, sw)))
    for g, (a, b) in enumerate(itertools.pairwise(bounds)):
        assert (out[0, a:b] == fx[0, a:b] @ fw[g].T).all()
    assert np.isnan(out[0, : bounds[0]]).all()
    assert np.isnan(out[0, bounds[-1] :]).all()


def test_offsets_of_groups_that_do_not_fit_their_scales():
    scales = np.zeros((8, 2), np.uint8)
    for offsets in ([3, 2], [-1, 2], [0, 9]):
        with pytest.raises(ValueError, match="numbers that do not fall, from 0 to 8"):
            scale_layout.interleave(scales, group_offsets=offsets)
    with pytest.raises(ValueError, match="got 512 bytes, wanted 256 · 4 or more"):
        scale_layout.plain(np.zeros(512, np.uint8), 8, 2, group_offsets=[0, 2])
