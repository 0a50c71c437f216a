"""The stages from a description to a call, one after another or all at once."""

import json

import numpy as np
import pytest
import verglas
from support import Output, declare, integers, one_matmul

A, B = integers((1, 4, 6), 1), integers((1, 6, 5), 2)
EXACT = A @ B


def described(**options):
    graph = verglas.Graph(io_data_type="fp32", **options)
    a, b = declare(graph, "a", A), declare(graph, "b", B)
    return graph, {a: A, b: B}, graph.matmul(a, b).set_output(True).set_name("y")


def served(graph, pack, y, execute=None):
    out = Output((1, 4, 5))
    (execute or graph.execute)({**pack, y: out.array})
    return bool((out.array == EXACT).all())


def test_stage_by_stage():
    graph, pack, y = described()
    assert y.get_dim() == []
    graph.validate()
    assert y.get_dim() == [1, 4, 5]
    assert y.get_stride() == [20, 5, 1]
    assert y.get_data_type() == verglas.data_type.FLOAT
    graph.build_operation_graph()
    graph.create_execution_plans([verglas.heur_mode.A, verglas.heur_mode.B, verglas.heur_mode.FALLBACK])
    graph.check_support()
    count = graph.get_execution_plan_count()
    assert count >= 1
    assert all(graph.get_plan_name_at_index(i).startswith("cpu") for i in range(count))
    graph.build_plans(verglas.build_plan_policy.HEURISTICS_CHOICE)
    assert graph.get_workspace_size() == 0
    assert served(graph, pack, y)


def test_execute_builds_what_is_missing():
    graph, pack, y = described()
    assert served(graph, pack, y)
    assert graph.plan.name == graph.get_plan_name_at_index(0)


def test_build_may_be_called_again_and_keeps_the_selected_plan():
    graph, pack, y = described()
    graph.create_execution_plans()
    last = graph.get_execution_plan_count() - 1
    graph.select_plan(last)
    graph.build()
    graph.build([verglas.heur_mode.A])
    assert graph.plan.name == graph.get_plan_name_at_index(last)
    assert served(graph, pack, y)


def test_stages_out_of_order_are_refused():
    graph, _, _ = described()
    for early in (
        graph.get_execution_plan_count,
        graph.check_support,
        graph.build_plans,
        graph.get_workspace_size,
        graph.declines,
        graph.explain,
        lambda: graph.select_plan(0),
        lambda: graph.get_plan_name_at_index(0),
        lambda: graph.plan,
    ):
        with pytest.raises(verglas.FrozenError) as caught:
            early()
        assert caught.value.rule == "plan.stage"
        assert isinstance(caught.value, RuntimeError)
    graph.create_execution_plans()
    with pytest.raises(verglas.FrozenError, match=r"plan\.stage"):
        graph.create_execution_plans()
    with pytest.raises(verglas.FrozenError, match=r"plan\.stage"):
        graph.get_workspace_size()


def test_a_planned_graph_does_not_change():
    graph, _, y = described()
    a = graph.tensor(dim=[1], stride=[1])
    graph.create_execution_plans()
    for change in (
        lambda: y.set_output(False),
        lambda: y.set_name("z"),
        lambda: y.set_dim([1, 4, 5]),
        lambda: y.set_stride([20, 5, 1]),
        lambda: y.set_uid(77),
        lambda: y.set_data_type("bf16"),
        lambda: y.set_is_pass_by_value(True),
        lambda: graph.relu(y),
        lambda: graph.matmul(a, a),
        lambda: graph.tensor(dim=[1], stride=[1]),
        lambda: graph.scalar(1.0),
    ):
        with pytest.raises(verglas.FrozenError) as caught:
            change()
        assert caught.value.rule == "graph.frozen"
    assert y.get_name() == "y"


@pytest.mark.parametrize("index", [-1, 10**6])
def test_indices_outside_the_list_are_refused(index):
    graph, pack, y = described()
    graph.create_execution_plans()
    out = Output((1, 4, 5))
    for use in (
        lambda: graph.select_plan(index),
        lambda: graph.get_plan_name_at_index(index),
        lambda: graph.get_engine_and_knobs_at_index(index),
        lambda: graph.build_plan_at_index(index),
        lambda: graph.get_workspace_size_plan_at_index(index),
        lambda: graph.execute_plan_at_index({**pack, y: out.array}, None, index),
    ):
        with pytest.raises(IndexError) as caught:
            use()
        assert caught.value.rule == "plan.index"
    assert out.untouched()


def test_every_plan_of_the_list_can_be_built_and_run():
    graph, pack, y = described()
    graph.create_execution_plans()
    graph.build_plans(verglas.build_plan_policy.ALL)
    for i in range(graph.get_execution_plan_count()):
        graph.build_plan_at_index(i)
        assert graph.get_workspace_size_plan_at_index(i) == 0
        assert served(graph, pack, y, lambda buffers, i=i: graph.execute_plan_at_index(buffers, None, i))
    assert graph.plan.name == graph.get_plan_name_at_index(0)


def test_a_record_of_a_plan_survives_json_and_is_replayed():
    graph, _, _ = described()
    graph.create_execution_plans()
    records = [graph.get_engine_and_knobs_at_index(i) for i in range(graph.get_execution_plan_count())]
    for engine_id, knobs in json.loads(json.dumps(records)):
        again, pack, y = described()
        again.create_execution_plan(engine_id, knobs)
        assert again.get_execution_plan_count() == 1
        assert again.get_engine_and_knobs_at_index(0) == (engine_id, knobs)
        assert served(again, pack, y)
        assert (again.plan.engine_id, again.plan.knobs) == (engine_id, knobs)


@pytest.mark.parametrize("engine_id,change", [(9999, {}), (None, {"PRODUCT": 77}), (None, {"NO_SUCH_KNOB": 1})])
def test_records_of_no_plan_are_refused(engine_id, change):
    graph, _, _ = described()
    graph.create_execution_plans()
    known, knobs = graph.get_engine_and_knobs_at_index(0)
    again, _, _ = described()
    with pytest.raises(verglas.UnsupportedError) as caught:
        again.create_execution_plan(known if engine_id is None else engine_id, {**knobs, **change})
    assert caught.value.rule == "plan.replay"


def test_deselected_engines_stay_in_the_list_and_are_not_run():
    graph, pack, y = described()
    graph.create_execution_plans()
    count, first = graph.get_execution_plan_count(), graph.get_plan_name_at_index(0)
    assert count >= 2
    graph.deselect_engines([first])
    assert graph.get_execution_plan_count() == count
    graph.check_support()
    assert served(graph, pack, y)
    assert graph.plan.name != first
    with pytest.raises(verglas.UnsupportedError, match=r"plan\.barred"):
        graph.select_plan(0)
    graph.deselect_engines(["cpu"])
    for use in (graph.check_support, graph.build_plans, lambda: graph.execute({})):
        with pytest.raises(verglas.UnsupportedError) as caught:
            use()
        assert caught.value.rule == "plan.none"
        assert f"{first}: deselected" in str(caught.value)


def test_deselected_before_planning():
    graph, pack, y = described()
    graph.deselect_engines(["PRODUCT=1"])
    assert served(graph, pack, y)
    assert "PRODUCT=1" not in graph.plan.name


def test_tuning_builds_the_fastest_and_ranks_the_next_graph(monkeypatch, tmp_path):
    monkeypatch.setenv("VERGLAS_CACHE", str(tmp_path))
    graph, pack, y = described()
    plans = graph.tune(most=4, seconds=0.001)
    timed = [seconds for _, _, seconds, failure in plans if not failure]
    assert timed == sorted(timed)
    index, name, seconds, failure = plans[0]
    assert seconds > 0 and failure == ""
    assert graph.get_plan_name_at_index(index) == name == graph.plan.name
    assert served(graph, pack, y)
    again, pack, y = described()
    assert served(again, pack, y)
    assert again.plan.name == name


def test_tuning_for_no_number_of_seconds_takes_the_shortest_windows(monkeypatch):
    monkeypatch.setenv("VERGLAS_CACHE", "off")
    for seconds in (float("nan"), -1.0, 0.0):
        graph, *_ = described()
        assert all(plan[2] > 0 and not plan[3] for plan in graph.tune(most=1, seconds=seconds))


def test_a_limit_of_the_workspace_bars_nothing_that_needs_none():
    graph, pack, y = described()
    graph.deselect_workspace_greater_than(0)
    assert served(graph, pack, y)
    graph.deselect_workspace_greater_than(-1)
    with pytest.raises(verglas.UnsupportedError, match="over the limit with a workspace of 0 bytes"):
        graph.build()


@pytest.mark.parametrize("modes", [["A"], [1.5], "A", 5])
def test_modes_and_policies_are_enums(modes):
    graph, _, _ = described()
    with pytest.raises(TypeError):
        graph.create_execution_plans(modes)
    with pytest.raises(TypeError):
        graph.build_plans("ALL")


def test_uids_are_unique_and_give_way():
    graph = verglas.Graph()
    first = graph.tensor(dim=[1], stride=[1])
    taken = first.get_uid()
    second = graph.tensor(dim=[1], stride=[1], uid=taken)
    assert second.get_uid() == taken != first.get_uid()
    with pytest.raises(verglas.InvalidGraphError) as caught:
        first.set_uid(taken)
    assert caught.value.rule == "graph.uid_unique"


def test_tensors_are_keys():
    graph, other = verglas.Graph(), verglas.Graph()
    first, second = (graph.tensor(dim=[1], stride=[1]) for _ in range(2))
    foreign = other.tensor(dim=[1], stride=[1])
    assert first == first.set_name("again")
    assert first is first.set_name("again")
    assert len({first, second, foreign, first}) == 3
    assert first != foreign
    assert first != "again"
    with pytest.raises(verglas.InvalidGraphError, match=r"graph\.handle"):
        graph.matmul(first, foreign)


def test_tensor_attributes_are_given_and_got():
    graph = verglas.Graph()
    t = graph.tensor(name="t", dim=(2, 3, 4), stride=(12, 4, 1), data_type="int8", is_pass_by_value=False, uid=42)
    assert (t.get_name(), t.get_uid(), t.get_dim(), t.get_stride()) == ("t", 42, [2, 3, 4], [12, 4, 1])
    assert t.get_data_type() is verglas.data_type.INT8
    assert (t.get_is_virtual(), t.get_is_pass_by_value()) == (False, False)
    assert t.set_is_virtual(True).get_is_virtual()
    assert not t.set_output(True).get_is_virtual()
    assert t.set_is_pass_by_value(True).get_is_pass_by_value()
    assert "'t'" in repr(t)
    assert "uid=42" in repr(t)


@pytest.mark.parametrize(
    "name,member",
    [("bf16", "BFLOAT16"), ("bfloat16", "BFLOAT16"), ("BFLOAT16", "BFLOAT16"), (np.float16, "HALF"), (np.dtype("int8"), "INT8"),
     ("HALF", "HALF"), (bool, "BOOLEAN"), (np.int64, "INT64"), ("fp8_e4m3", "FP8_E4M3"), ("float8_e5m2", "FP8_E5M2")],
)  # fmt: skip
def test_types_have_many_names(name, member):
    assert verglas.Graph().tensor(dim=[1], stride=[1], data_type=name).get_data_type() is verglas.data_type[member]


@pytest.mark.parametrize("name", ["float99", "", np.float64, "torch.float32", float])
def test_unknown_types_are_refused_by_name(name):
    with pytest.raises(verglas.InvalidGraphError) as caught:
        verglas.Graph(io_data_type=name)
    assert caught.value.rule == "graph.dtype"


@pytest.mark.parametrize("bad", [3, 1.5])
def test_numbers_are_no_types(bad):
    with pytest.raises(TypeError):
        verglas.Graph(io_data_type=bad)


def test_cases_a_55_asking_for_a_gpu_says_why_there_is_none():
    for name in ("cuda:99",):
        graph, _, _ = described(device=name)
        with pytest.raises(verglas.UnsupportedError) as caught:
            graph.build()
        assert caught.value.rule == "plan.none"
        assert "cpu: [engine.device]" in str(caught.value)
        declined = graph.declines()
        assert all(len(decline) == 3 and all(decline) for decline in declined)
        assert "cpu" in [engine for engine, _, _ in declined]
    for name in ("gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", ""):
        with pytest.raises(verglas.InvalidGraphError) as caught:
            verglas.Graph(device=name)
        assert caught.value.rule == "graph.device"


def test_a_graph_tells_what_it_became():
    graph, _, _, _ = one_matmul(A, B, epilogue=lambda g, c: g.gelu(c), name="text")
    line = graph.describe()
    assert "\n" not in line
    assert "matmul" in line
    assert "gelu" in line
    assert graph.plan.name in line
    assert "gelu" in graph.explain()
    assert "'text'" in repr(graph)
    operands = graph.plan.operands()
    assert [(o.name, o.roles, o.is_output) for o in operands] == [("a", "a", False), ("b", "b", False), ("y", "output", True)]
    assert [o.dim for o in operands] == [[1, 4, 6], [1, 6, 5], [1, 4, 5]]
