"""Every elementwise method, by its own argument names, against the formula in float64."""

import inspect
import math

import numpy as np
import pytest
import verglas
from hypothesis import given, settings
from hypothesis import strategies as st
from support import Output, declare, integers

erf = np.vectorize(math.erf)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gelu_slope(x):
    return 0.5 * (1 + erf(x / math.sqrt(2))) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def tanh_gelu_slope(x):
    c = math.sqrt(2 / math.pi)
    t = np.tanh(c * (x + 0.044715 * x**3))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 0.134145 * x * x)


def swish_slope(x, beta=1.0):
    s = sigmoid(beta * x)
    return s + beta * x * s * (1 - s)


UNARY = {
    "identity": lambda x: x,
    "abs": np.abs,
    "neg": np.negative,
    "ceil": np.ceil,
    "floor": np.floor,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "exp": np.exp,
    "log": np.log,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "erf": erf,
    "relu": lambda x: np.maximum(x, 0),
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "gelu": lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))),
    "gelu_approx_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "sigmoid": sigmoid,
    "swish": lambda x: x * sigmoid(x),
    "softplus": lambda x: np.log1p(np.exp(x)),
    "tanh": np.tanh,
    "logical_not": lambda x: x == 0,
}
BINARY = {
    "add": (("a", "b"), np.add),
    "bias": (("input", "bias"), np.add),
    "sub": (("a", "b"), np.subtract),
    "mul": (("a", "b"), np.multiply),
    "scale": (("input", "scale"), np.multiply),
    "div": (("a", "b"), np.divide),
    "max": (("input0", "input1"), np.maximum),
    "min": (("input0", "input1"), np.minimum),
    "pow": (("input0", "input1"), np.power),
    "mod": (("input0", "input1"), np.fmod),
    "add_square": (("a", "b"), lambda x, y: x + y * y),
    "cmp_eq": (("input", "comparison"), np.equal),
    "cmp_neq": (("input", "comparison"), np.not_equal),
    "cmp_gt": (("input", "comparison"), np.greater),
    "cmp_ge": (("input", "comparison"), np.greater_equal),
    "cmp_lt": (("input", "comparison"), np.less),
    "cmp_le": (("input", "comparison"), np.less_equal),
    "logical_and": (("a", "b"), np.logical_and),
    "logical_or": (("a", "b"), np.logical_or),
    "relu_backward": (("loss", "input"), lambda dy, x: np.where(x > 0, dy, 0)),
    "sigmoid_backward": (("loss", "input"), lambda dy, x: dy * sigmoid(x) * (1 - sigmoid(x))),
    "tanh_backward": (("loss", "input"), lambda dy, x: dy * (1 - np.tanh(x) ** 2)),
    "elu_backward": (("loss", "input"), lambda dy, x: np.where(x > 0, dy, dy * np.exp(x))),
    "gelu_backward": (("loss", "input"), lambda dy, x: dy * gelu_slope(x)),
    "gelu_approx_tanh_backward": (("loss", "input"), lambda dy, x: dy * tanh_gelu_slope(x)),
    "softplus_backward": (("loss", "input"), lambda dy, x: dy * sigmoid(x)),
    "swish_backward": (("loss", "input"), lambda dy, x: dy * swish_slope(x)),
}
# Methods with parameters: (method, arguments, formula of the inputs).
WITH_PARAMETERS = [
    ("relu", {"lower_clip": -1.0, "upper_clip": 2.0}, lambda x: np.clip(x, -1, 2)),
    ("relu", {"negative_slope": 0.25}, lambda x: np.where(x > 0, x, x * 0.25)),
    (
        "relu",
        {"negative_slope": 0.5, "lower_clip": -1.0, "upper_clip": 2.5},
        lambda x: np.clip(np.where(x > 0, x, x / 2), -1, 2.5),
    ),
    ("leaky_relu", {"negative_slope": 0.125}, lambda x: np.where(x > 0, x, x * 0.125)),
    ("elu", {"elu_alpha": 2.0}, lambda x: np.where(x > 0, x, 2 * np.expm1(x))),
    ("swish", {"swish_beta": 0.5}, lambda x: x * sigmoid(x / 2)),
    ("softplus", {"softplus_beta": 2.0}, lambda x: np.log1p(np.exp(2 * x)) / 2),
    ("relu_backward", {"negative_slope": 0.25}, lambda dy, x: np.where(x > 0, dy, dy * 0.25)),
    ("relu_backward", {"lower_clip": -1.0, "upper_clip": 2.0}, lambda dy, x: np.where((x > -1) & (x < 2), dy, 0)),
    ("leaky_relu_backward", {"negative_slope": 0.5}, lambda dy, x: np.where(x > 0, dy, dy * 0.5)),
    ("elu_backward", {"elu_alpha": 2.0}, lambda dy, x: np.where(x > 0, dy, 2 * dy * np.exp(x))),
    ("softplus_backward", {"softplus_beta": 2.0}, lambda dy, x: dy * sigmoid(2 * x)),
    ("swish_backward", {"swish_beta": 2.0}, lambda dy, x: dy * swish_slope(x, 2.0)),
]


@pytest.mark.parametrize("method,parameters", [(m, p) for m, p, _ in WITH_PARAMETERS if len(p) == 1])
def test_a_parameter_that_fp32_does_not_hold_is_refused(method, parameters):
    (parameter,) = parameters
    for bad, good in [(3.5e38, 3.4e38), (-1e300, -np.inf)]:
        graph = verglas.Graph(io_data_type="fp32")
        inputs = [graph.tensor(name=n, dim=[2, 2], stride=[2, 1]) for n in "xy"]
        inputs = inputs if method.endswith("_backward") else inputs[:1]
        with pytest.raises(verglas.InvalidGraphError) as caught:
            getattr(graph, method)(*inputs, **{parameter: bad})
        assert (caught.value.rule, caught.value.operand) == ("graph.parameters", parameter)
        assert caught.value.want == "a number that fp32 holds"
        getattr(graph, method)(*inputs, **{parameter: good})


def run(make, *inputs):
    """make(graph, value, *others) after the identity product of the first input; the others are epilogue operands."""
    first = inputs[0]
    unit = np.eye(first.shape[-1], dtype=np.float32)[None]
    out = Output(first.shape)
    graph = verglas.Graph(io_data_type="fp32")
    x, one = declare(graph, "x", first), declare(graph, "one", unit)
    others = [declare(graph, f"y{i}", other) for i, other in enumerate(inputs[1:])]
    y = make(graph, graph.matmul(x, one), *others).set_output(True)
    graph.execute({x: first, one: unit, y: out.array} | dict(zip(others, inputs[1:], strict=True)))
    return out.array


def close(found, exact):
    return np.allclose(found, exact, rtol=4e-6, atol=4e-7)


DOMAIN = {"sqrt": (0.01, 9), "rsqrt": (0.01, 9), "log": (0.01, 9), "reciprocal": (0.1, 9), "tan": (-1.5, 1.5)}


@pytest.mark.parametrize("method", UNARY)
def test_unary_methods(method):
    low, high = DOMAIN.get(method, (-4, 4))
    x = np.random.default_rng(1).uniform(low, high, (1, 6, 9)).astype(np.float32)
    x[0, 0, 0] = 1.0 if method in DOMAIN else 0.0
    found = run(lambda graph, value: getattr(graph, method)(input=value), x)
    assert close(found, UNARY[method](x.astype(np.float64)))


@pytest.mark.parametrize("method", BINARY)
def test_binary_methods_keep_the_order_of_their_operands(method):
    (first, second), formula = BINARY[method]
    rng = np.random.default_rng(2)
    x = rng.uniform(0.5, 4, (1, 6, 9)).astype(np.float32)
    y = rng.uniform(0.5, 2, (1, 6, 9)).astype(np.float32)
    if method.startswith(("cmp", "logical")):
        x, y = integers(x.shape, 3, low=0, high=2), integers(y.shape, 4, low=0, high=2)
    if method.endswith("backward"):
        y -= 1.25
    exact = formula(x.astype(np.float64), y.astype(np.float64))
    assert close(run(lambda graph, value, other: getattr(graph, method)(**{first: value, second: other}), x, y), exact)
    assert close(run(lambda graph, value, other: getattr(graph, method)(**{first: other, second: value}), y, x), exact)


@pytest.mark.parametrize("method,parameters,formula", WITH_PARAMETERS)
def test_parameters(method, parameters, formula):
    x = np.random.default_rng(5).uniform(-4, 4, (1, 6, 9)).astype(np.float32)
    loss = integers(x.shape, 6)
    backward = method.endswith("backward")
    inputs = (loss, x) if backward else (x,)
    found = run(lambda graph, *values: getattr(graph, method)(*values, **parameters), *inputs)
    assert close(found, formula(*(values.astype(np.float64) for values in inputs)))


def test_binary_select_never_shows_what_it_does_not_choose():
    x, mask = integers((1, 4, 6), 1), integers((1, 4, 6), 2, low=0, high=2)
    other = np.full_like(x, np.nan)
    found = run(lambda g, value, nan, m: g.binary_select(input0=value, input1=nan, mask=m), x, other, mask)
    assert (np.isnan(found) == (mask == 0)).all()
    assert (found[mask != 0] == x[mask != 0]).all()


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gen_index_counts_along_its_axis(axis):
    x = integers((1, 4, 6), 1)
    found = run(lambda graph, value: graph.gen_index(value, axis=axis), x)
    assert (found == np.indices(x.shape)[axis]).all()


def test_pointwise_by_mode_is_the_method_of_that_name():
    x, y = integers((1, 4, 6), 1), integers((1, 4, 6), 2)
    modes = verglas.pointwise_mode
    assert (run(lambda graph, v, w: graph.pointwise(modes.SUB, [v, w]), x, y) == x - y).all()
    leaky = run(lambda graph, v: graph.pointwise(modes.LEAKY_RELU, [v], negative_slope=0.5), x)
    assert (leaky == np.where(x > 0, x, x / 2)).all()
    with pytest.raises(verglas.InvalidGraphError, match=r"graph\.arity"):
        run(lambda graph, v: graph.pointwise(modes.SUB, [v]), x)


def test_every_mode_has_a_method():
    names = {mode.name.lower().replace("_bwd", "_backward") for mode in verglas.pointwise_mode}
    assert names <= set(dir(verglas.Graph))
    tested = {*UNARY, *BINARY, *(case[0] for case in WITH_PARAMETERS), "binary_select", "gen_index"}
    assert names <= tested
    assert all(inspect.getdoc(getattr(verglas.Graph, name)) for name in names)


@given(
    lower=st.none() | st.floats(-3, 3, width=32),
    upper=st.none() | st.floats(-3, 3, width=32),
    slope=st.none() | st.sampled_from([0.0, 0.25, 1.0, 2.0]),
)
@settings(max_examples=40, deadline=None)
def test_relu_with_any_parameters(lower, upper, slope):
    x = np.array([[[-np.inf, -4, -1.5, -0.0, 0.0, 1, 2.5, np.inf, np.nan]]], np.float32)
    x = np.broadcast_to(x, (1, 2, 9)).copy()
    found = run(lambda g, zero, v: g.relu(g.add(zero, v), slope, lower, upper), np.zeros_like(x), x)
    exact = x.astype(np.float64)
    if slope is None:
        exact = np.maximum(exact, 0.0 if lower is None else lower)
    else:
        with np.errstate(invalid="ignore"):
            exact = np.where(exact > 0, exact, np.where(exact == 0, 0, exact * slope))
        exact = exact if lower is None else np.maximum(exact, lower)
    exact = exact if upper is None else np.minimum(exact, upper)
    assert np.array_equal(found, exact.astype(np.float32), equal_nan=True)
