#include "base/npy.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>

#include "base/file.hpp"
#include "verglas/error.hpp"

namespace verglas {
namespace {

class Npy : public testing::Test {
 protected:
  Npy() { std::filesystem::create_directories(folder_); }
  ~Npy() override { std::filesystem::remove_all(folder_); }
  std::string path(const char* name) const { return (folder_ / name).string(); }

  /// A file of version 1 (or 2) with this dictionary and so many bytes behind it.
  std::string file(const std::string& dictionary, std::size_t bytes, int version = 1) const {
    std::string s = "\x93NUMPY";
    s += static_cast<char>(version);
    s += '\0';
    for (int i = 0; i < (version == 1 ? 2 : 4); ++i) s += static_cast<char>((dictionary.size() >> (8 * i)) & 0xFF);
    return s + dictionary + std::string(bytes, '\x01');
  }
  std::string answer_to(const std::string& content) const {
    write_file(path("x.npy"), content);
    try {
      read_npy(path("x.npy"));
    } catch (const Error& e) {
      std::string text = e.what();
      if (const auto at = text.find(path("x.npy")); at != std::string::npos) text.replace(at, path("x.npy").size(), "x.npy");
      return text;
    }
    return "read";
  }

 private:
  std::filesystem::path folder_ = std::filesystem::path(testing::TempDir()) / ("npy_" + std::to_string(getpid()));
};

TEST_F(Npy, WhatIsWrittenIsRead) {
  for (const DataType t : {DataType::fp32, DataType::fp16, DataType::bf16, DataType::int8, DataType::uint8, DataType::int32,
                           DataType::int64, DataType::boolean})
    for (const std::vector<std::int64_t>& dim : {std::vector<std::int64_t>{}, {3}, {2, 0, 4}, {2, 3, 4}}) {
      std::size_t bytes = static_cast<std::size_t>(bytes_of(t));
      for (const std::int64_t e : dim) bytes *= static_cast<std::size_t>(e);
      std::vector<std::byte> data(bytes);
      for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(i * 7 + 1);
      write_npy(path("w.npy"), t, dim, data.data());
      const NpyArray a = read_npy(path("w.npy"));
      EXPECT_EQ(a.dtype, t);
      EXPECT_EQ(a.dim, dim);
      EXPECT_FALSE(a.fortran_order);
      EXPECT_EQ(a.data, data) << name_of(t);
      EXPECT_EQ((std::filesystem::file_size(path("w.npy")) - bytes) % 64, 0U);
    }
}

TEST_F(Npy, WritesTheHeaderThatNumpyWrites) {
  const float one = 1;
  write_npy(path("w.npy"), DataType::fp32, {1}, &one);
  const std::string content = read_file(path("w.npy"), 1000);
  EXPECT_EQ(content.substr(0, 8), std::string("\x93NUMPY\x01\0", 8));
  EXPECT_EQ(content.substr(10, 58), "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), } ");
  EXPECT_EQ(content[127], '\n');
}

TEST_F(Npy, ReadsVersion2FortranOrderAndBothSpellingsOfBf16) {
  write_file(path("x.npy"), file(R"({"shape": (2, 3), "fortran_order": True, "descr": "<u2"})", 12, 2));
  const NpyArray a = read_npy(path("x.npy"));
  EXPECT_EQ(a.dtype, DataType::bf16);
  EXPECT_TRUE(a.fortran_order);
  EXPECT_EQ(a.strides(), (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(parse_npy_header(file("{'descr': '|V2', 'fortran_order': False, 'shape': ()}", 0), "x").dtype, DataType::bf16);
}

TEST_F(Npy, RefusesWithRuleGotAndWanted) {
  const std::string sound = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n";
  EXPECT_EQ(answer_to(file(sound, 24)), "read");
  EXPECT_EQ(answer_to(file(sound, 23)),
            "io_failed [file.npy_size] array 'x.npy': got 23 bytes of elements, wanted 24 for shape (2, 3) of fp32");
  EXPECT_EQ(answer_to(file(sound, 25)),
            "io_failed [file.npy_size] array 'x.npy': got 25 bytes of elements, wanted 24 for shape (2, 3) of fp32");
  EXPECT_EQ(answer_to("PK\x03\x04"),
            "io_failed [file.npy_header] array 'x.npy': got 'PK?"
            "?', wanted NumPy's magic");
  EXPECT_EQ(answer_to(""), "io_failed [file.npy_header] array 'x.npy': got '', wanted NumPy's magic");
  EXPECT_EQ(answer_to(file(sound, 24).substr(0, 9)),
            "io_failed [file.npy_header] array 'x.npy': got 9 bytes, wanted a whole header");
  EXPECT_EQ(answer_to(file(sound, 24).substr(0, 30)),
            "io_failed [file.npy_header] array 'x.npy': got 30 bytes, wanted a header of 60 bytes");
  EXPECT_EQ(answer_to(file(sound, 24, 3)), "io_failed [file.npy_header] array 'x.npy': got version 3.0, wanted 1.0 or 2.0");
  EXPECT_EQ(answer_to(file(std::string(70000, ' '), 0, 2)),
            "io_failed [file.npy_header] array 'x.npy': got a header of 70000 bytes, wanted 65524 at most");
  EXPECT_EQ(answer_to(file("{'descr': '>f4', 'fortran_order': False, 'shape': (1,)}", 4)),
            "io_failed [file.npy_type] array 'x.npy': got elements '>f4', wanted <f4, <f2, |i1, |u1, <i4, <i8, |b1, or <V2 or "
            "<u2 for bf16");
  EXPECT_EQ(answer_to(file("{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 2)}", 4)),
            "io_failed [file.npy_shape] array 'x.npy': got shape (4611686018427387904, 2), wanted bytes that fit 63 bits");
  EXPECT_EQ(answer_to(file("{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775808, 0)}", 0)),
            "io_failed [file.npy_shape] array 'x.npy': got extent 9223372036854775808, wanted one of 63 bits");
  EXPECT_EQ(answer_to(file("{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1)}", 4)),
            "io_failed [file.npy_shape] array 'x.npy': got rank 9 or more, wanted 8 at most");
  EXPECT_EQ(
      answer_to(file("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,)}", 4)),
      "io_failed [file.npy_size] array 'x.npy': got 4 bytes of elements, wanted 4000000000000 for shape (1000000000000) of fp32");
}

TEST_F(Npy, RefusesEveryOtherDictionary) {
  for (const char* wrong :
       {"", "{}", "{'descr': '<f4'}", "{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", "{'descr': '<f4', 'fortran_order': False, 'shape': [1]}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} x",
        "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'x': 1}",
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}",
        "{'descr': <f4, 'fortran_order': False, 'shape': (1,)}", "{'descr': '<f4' 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1 1)}"})
    EXPECT_TRUE(answer_to(file(wrong, 4)).starts_with("io_failed [file.npy_header]"))
        << wrong << ": " << answer_to(file(wrong, 4));
}

TEST_F(Npy, RefusesWhatIsNoFile) {
  for (const std::string& p : {path("missing.npy"), path("."), std::string("/dev/zero")}) {
    try {
      read_npy(p);
      ADD_FAILURE() << p;
    } catch (const Error& e) {
      EXPECT_EQ(e.rule(), "file.open") << p;
    }
  }
  try {
    write_npy(path("no/such/folder.npy"), DataType::fp32, {0}, nullptr);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.rule(), "file.write");
  }
}

TEST_F(Npy, ANamedPipeIsRefusedWithoutWaitingForAWriter) {
  const std::string pipe = path("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const std::string want = "': got something that is no ordinary file, wanted an ordinary file";
  EXPECT_THAT([&] { read_npy(pipe); }, testing::ThrowsMessage<Error>("io_failed [file.open] array '" + pipe + want));
  EXPECT_THAT([&] { read_file(pipe, 1000); }, testing::ThrowsMessage<Error>("io_failed [file.open] file '" + pipe + want));
}

}  // namespace
}  // namespace verglas
