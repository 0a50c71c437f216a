// Every rule of graph files: a text that breaks only that rule, with its whole message, and the nearest text that is read.
#include <gtest/gtest.h>

#include "verglas/verglas.hpp"

namespace verglas {
namespace {

std::string answer_to(const std::string& text) {
  try {
    Graph::from_json(text);
  } catch (const Error& e) {
    return e.what();
  }
  return "read";
}

/// A file with these members beside the version.
std::string file(const std::string& members) { return R"({"verglas_graph": 1, )" + members + "}"; }
std::string with_tensor(const std::string& t) { return file(R"("tensors": [)" + t + R"(], "nodes": [])"); }
std::string with_node(const std::string& n) {
  return file(R"("tensors": [{"name": "x", "uid": 5}, {"name": "y"}, {"name": "two"}, {"name": "two"}], "nodes": [)" + n + "]");
}

struct Case {
  const char* name;
  std::string broken, message, legal;
};

class GraphFileRefuses : public testing::TestWithParam<Case> {};

TEST_P(GraphFileRefuses, WithThePlaceWhatStoodThereAndWhatWasWanted) {
  EXPECT_EQ(answer_to(GetParam().broken), GetParam().message);
  EXPECT_EQ(answer_to(GetParam().legal), "read");
}

const std::string kEmpty = file(R"("tensors": [], "nodes": [])");
const std::string kRelu = R"({"op": "relu", "inputs": ["x"], "output": "y"})";

INSTANTIATE_TEST_SUITE_P(
    Rules, GraphFileRefuses,
    testing::Values(
        Case{"NoObject", "[]", "io_failed [file.type] graph file: got an array of 0, wanted an object", kEmpty},
        Case{"NoVersion", R"({"tensors": [], "nodes": []})",
             "io_failed [file.missing_key] graph file: got no verglas_graph, wanted one", kEmpty},
        Case{"OtherVersion", R"({"verglas_graph": 2, "tensors": [], "nodes": [], "new": 0})",
             "io_failed [file.version] graph file, /verglas_graph: got version 2, wanted 1", kEmpty},
        Case{"VersionAsText", R"({"verglas_graph": "1", "tensors": [], "nodes": []})",
             "io_failed [file.type] graph file, /verglas_graph: got \"1\", wanted the version, an integer", kEmpty},
        Case{"NoNodes", file(R"("tensors": [])"), "io_failed [file.missing_key] graph file: got no nodes, wanted one", kEmpty},
        Case{"UnknownKey", file(R"("tensors": [], "nodes": [], "a/b~": 1)"),
             "io_failed [file.unknown_key] graph file, /a~1b~0: got a key that is not known here, wanted one of verglas_graph, "
             "name, "
             "io_data_type, intermediate_data_type, compute_data_type, tensors, nodes",
             kEmpty},
        Case{"UnknownTensorKey", with_tensor(R"({"dims": [1]})"),
             "io_failed [file.unknown_key] graph file, /tensors/0/dims: got a key that is not known here, wanted one of name, "
             "uid, dim, "
             "stride, data_type, reordering, output, pass_by_value, value, by_pointers",
             with_tensor(R"({"dim": [1]})")},
        Case{"AttributeOfAnotherOp", with_node(R"({"op": "relu", "inputs": ["x"], "output": "y", "padding": 0})"),
             "io_failed [file.unknown_key] graph file, /nodes/0/padding: got a key that is not known here, wanted one of op, "
             "name, inputs, "
             "output, compute_data_type, lower_clip, upper_clip, negative_slope, alpha, beta, axis",
             with_node(R"({"op": "matmul", "inputs": ["x", "x"], "output": "y", "padding": 0, "fast_accumulation": true})")},
        Case{"KeyTwice", with_tensor(R"({}, {"name": "a", "dim": [1, 2], "name": "b"})"),
             "io_failed [file.duplicate_key] graph file, /tensors/1/name: got it twice, wanted it once",
             with_tensor(R"({}, {"name": "a"})")},
        Case{"TensorIsText", with_tensor(R"("x")"), "io_failed [file.type] graph file, /tensors/0: got \"x\", wanted an object",
             with_tensor("{}")},
        Case{"DimIsNumber", with_tensor(R"({"dim": 3})"),
             "io_failed [file.type] graph file, /tensors/0/dim: got 3, wanted an array of integers",
             with_tensor(R"({"dim": [3]})")},
        Case{"EmptyDim", with_tensor(R"({"dim": []})"),
             "io_failed [file.type] graph file, /tensors/0/dim: got an array of 0, wanted one integer at least, or no such key",
             with_tensor("{}")},
        Case{"FractionalExtent", with_tensor(R"({"dim": [1, 2.5]})"),
             "io_failed [file.type] graph file, /tensors/0/dim/1: got 2.5, wanted an integer",
             with_tensor(R"({"dim": [1, -2]})")},
        Case{"HugeExtent", with_tensor(R"({"dim": [9223372036854775808]})"),
             "io_failed [file.number] graph file, /tensors/0/dim/0: got 9223372036854775808, wanted an integer of 64 bits",
             with_tensor(R"({"dim": [9223372036854775807]})")},
        Case{"HugerExtent", with_tensor(R"({"stride": [-1e30]})"),
             "io_failed [file.number] graph file, /tensors/0/stride/0: got -1e+30, wanted an integer of 64 bits",
             with_tensor(R"({"stride": [-9223372036854775808]})")},
        Case{"NumberBeyondFp64", with_tensor(R"({"value": 1e400})"),
             "io_failed [file.number] graph file: got a number beyond the range of fp64, wanted numbers that fp64 holds",
             with_tensor(R"({"value": 1e308})")},
        Case{"ParameterBeyondFp32", with_node(R"({"op": "elu", "inputs": ["x"], "output": "y", "alpha": 3.5e38})"),
             "io_failed [file.number] graph file, /nodes/0/alpha: got 3.5e+38, wanted a number that fp32 holds",
             with_node(R"({"op": "elu", "inputs": ["x"], "output": "y", "alpha": 3.4e38})")},
        Case{"AxisBeyondInt", with_node(R"({"op": "gen_index", "inputs": ["x"], "output": "y", "axis": 2147483648})"),
             "io_failed [file.number] graph file, /nodes/0/axis: got 2147483648, wanted an axis",
             with_node(R"({"op": "gen_index", "inputs": ["x"], "output": "y", "axis": 2147483647})")},
        Case{
            "ValueIsWord", with_tensor(R"({"value": "infinity"})"),
            "io_failed [file.type] graph file, /tensors/0/value: got \"infinity\", wanted a number, \"nan\", \"inf\" or \"-inf\"",
            with_tensor(R"({"value": "-inf"})")},
        Case{"OutputIsNumber", with_tensor(R"({"output": 1})"),
             "io_failed [file.type] graph file, /tensors/0/output: got 1, wanted true or false",
             with_tensor(R"({"output": true})")},
        Case{"NameIsNumber", with_tensor(R"({"name": 1})"),
             "io_failed [file.type] graph file, /tensors/0/name: got 1, wanted a string", with_tensor(R"({"name": "1"})")},
        Case{"UnknownType", with_tensor(R"({"data_type": "fp64"})"),
             "io_failed [file.word] graph file, /tensors/0/data_type: got \"fp64\", wanted a data type, such as fp32, bf16 or "
             "int8",
             with_tensor(R"({"data_type": "fp32"})")},
        Case{"TypeNotSet", with_tensor(R"({"data_type": "not_set"})"),
             "io_failed [file.word] graph file, /tensors/0/data_type: got \"not_set\", wanted a data type, such as fp32, bf16 or "
             "int8",
             with_tensor("{}")},
        Case{"UnknownOp", with_node(R"({"op": "conv", "inputs": ["x"], "output": "y"})"),
             "io_failed [file.word] graph file, /nodes/0/op: got \"conv\", wanted matmul, moe_grouped_matmul, "
             "moe_grouped_matmul_bwd, reduction, block_scale_dequantize, block_scale_quantize, take_runs, rope or a pointwise "
             "mode",
             with_node(kRelu)},
        Case{"UnknownMoeMode", with_node(R"({"op": "moe_grouped_matmul", "mode": "reduce", "inputs": ["x"], "output": "y"})"),
             "io_failed [file.word] graph file, /nodes/0/mode: got \"reduce\", wanted none, gather, scatter or combine",
             with_node(R"({"op": "moe_grouped_matmul", "mode": "gather", "inputs": ["x"], "output": "y"})")},
        Case{"UnknownMoeOffsets",
             with_node(R"({"op": "moe_grouped_matmul", "offsets": "sizes", "inputs": ["x"], "output": "y"})"),
             "io_failed [file.word] graph file, /nodes/0/offsets: got \"sizes\", wanted first_token or end",
             with_node(R"({"op": "moe_grouped_matmul_bwd", "offsets": "end", "inputs": ["x"], "output": "y"})")},
        Case{"UnknownReduction", with_node(R"({"op": "reduction", "mode": "sum", "inputs": ["x"], "output": "y"})"),
             "io_failed [file.word] graph file, /nodes/0/mode: got \"sum\", wanted a reduction mode, such as add or max",
             with_node(R"({"op": "reduction", "mode": "add", "inputs": ["x"], "output": "y"})")},
        Case{"ReductionWithoutMode", with_node(R"({"op": "reduction", "inputs": ["x"], "output": "y"})"),
             "io_failed [file.missing_key] graph file, /nodes/0: got no mode, wanted one",
             with_node(R"({"op": "reduction", "mode": "max", "inputs": ["x"], "output": "y"})")},
        Case{"DanglingName", with_node(R"({"op": "relu", "inputs": ["z"], "output": "y"})"),
             "io_failed [file.reference] graph file, /nodes/0/inputs/0: got \"z\", wanted the name or uid of a listed tensor",
             with_node(kRelu)},
        Case{"DanglingUid", with_node(R"({"op": "relu", "inputs": ["x"], "output": 6})"),
             "io_failed [file.reference] graph file, /nodes/0/output: got 6, wanted the name or uid of a listed tensor",
             with_node(R"({"op": "relu", "inputs": ["x"], "output": 5})")},
        Case{"AmbiguousName", with_node(R"({"op": "relu", "inputs": ["two"], "output": "y"})"),
             "io_failed [file.reference] graph file, /nodes/0/inputs/0: got \"two\", wanted a name that only one tensor has, or "
             "a uid",
             with_node(kRelu)},
        Case{"ReferenceIsNull", with_node(R"({"op": "relu", "inputs": [null], "output": "y"})"),
             "io_failed [file.type] graph file, /nodes/0/inputs/0: got null, wanted a name or a uid", with_node(kRelu)},
        Case{"UidTwice", with_tensor(R"({"uid": 7}, {"uid": 8}, {"uid": 7})"),
             "io_failed [file.duplicate_uid] graph file, /tensors/2/uid: got 7, as in /tensors/0, wanted a uid of its own",
             with_tensor(R"({"uid": 7}, {"uid": 8}, {"uid": -7})")},
        Case{"TooDeep", with_tensor(R"({"dim": [[[[[[1]]]]]]})"),
             "io_failed [file.limit] graph file, /tensors/0/dim/0/0/0/0/0: got a level below level 8, wanted 8 levels at most",
             with_tensor(R"({"dim": [1]})")}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(GraphFileRefusal, TextThatIsNoJsonNamesTheByte) {
  EXPECT_EQ(answer_to(kEmpty.substr(0, kEmpty.size() - 1)).substr(0, 46), "io_failed [file.json] graph file, byte 48: got");
  EXPECT_TRUE(answer_to("").starts_with("io_failed [file.json] graph file, byte 1: got")) << answer_to("");
  EXPECT_TRUE(answer_to("{\"\xFF\": 1}").starts_with("io_failed [file.json]"));
  for (const char c : answer_to("{\"\xFF\": 1}")) EXPECT_GE(c, ' ');
  EXPECT_EQ(answer_to(kEmpty), "read");
}

TEST(GraphFileRefusal, LongValuesAreShortenedBetweenCharacters) {
  std::string name;
  for (int i = 0; i < 100; ++i) name += "é";
  const std::string answer = answer_to(with_node(R"({"op": ")" + name + R"(", "inputs": ["x"], "output": "y"})"));
  EXPECT_LT(answer.size(), 290U);
  EXPECT_NE(answer.find("é…, wanted"), std::string::npos) << answer;
}

TEST(GraphFileRefusal, TooManyOfAnythingIsRefused) {
  const auto repeated = [](const std::string& one, int n) {
    std::string s = one;
    for (int i = 1; i < n; ++i) s += "," + one;
    return s;
  };
  EXPECT_EQ(answer_to(with_tensor(repeated("{}", 16385))),
            "io_failed [file.limit] graph file, /tensors: got 16385 tensors, wanted 16384 at most");
  EXPECT_EQ(answer_to(with_tensor(repeated("{}", 16384))), "read");
  EXPECT_EQ(answer_to(with_node(repeated(kRelu, 16385))),
            "io_failed [file.limit] graph file, /nodes: got 16385 nodes, wanted 16384 at most");
  EXPECT_EQ(answer_to(with_node(repeated(kRelu, 16384))), "read");
  EXPECT_EQ(answer_to(with_tensor("{\"dim\": [" + repeated("1", 65) + "]}")),
            "io_failed [file.limit] graph file, /tensors/0/dim: got 65 integers, wanted 64 at most");
  EXPECT_EQ(answer_to(with_tensor("{\"dim\": [" + repeated("1", 64) + "]}")), "read");
  const std::string long_text = kEmpty + std::string((16 << 20) - kEmpty.size(), ' ');
  EXPECT_EQ(answer_to(long_text), "read");
  EXPECT_EQ(answer_to(long_text + " "), "io_failed [file.limit] graph file: got 16777217 bytes, wanted 16777216 at most");
}

TEST(GraphFileRefusal, WhatCannotBeReadCannotBeSaved) {
  Graph g;
  Tensor t = g.tensor({.name = "x", .dim = std::vector<std::int64_t>(65, 1)});
  EXPECT_THROW(
      try { g.to_json(); } catch (const Error& e) {
        EXPECT_STREQ(e.what(), "io_failed [file.limit] dim: got 65 numbers, wanted 64 at most");
        throw;
      },
      Error);
  t.set_dim({1}).set_name("\xC3");
  EXPECT_THROW(
      try { g.to_json(); } catch (const Error& e) {
        EXPECT_STREQ(e.what(), "io_failed [file.text] name of a tensor: got bytes that are no UTF-8, wanted UTF-8");
        throw;
      },
      Error);
  t.set_name("\xC3\xA9");
  EXPECT_NO_THROW(g.to_json());
}

}  // namespace
}  // namespace verglas
