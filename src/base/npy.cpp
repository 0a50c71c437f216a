#include "base/npy.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <limits>

#include "base/file.hpp"
#include "base/rules.hpp"

namespace verglas {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kMaxRankOfFile = 8;

struct TypeWord {
  std::string_view word;  ///< without the byte order
  DataType type;
};
// The first word of a type is the one that is written.
constexpr std::array<TypeWord, 9> kTypes = {{{"f4", DataType::fp32},
                                             {"f2", DataType::fp16},
                                             {"V2", DataType::bf16},
                                             {"u2", DataType::bf16},
                                             {"i1", DataType::int8},
                                             {"u1", DataType::uint8},
                                             {"i4", DataType::int32},
                                             {"i8", DataType::int64},
                                             {"b1", DataType::boolean}}};

std::string printable(std::string_view text) {
  std::string s(text.substr(0, 40));
  for (char& c : s)
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7E) c = '?';
  return text.size() > 40 ? s + "…" : s;
}

/// Reader of the one kind of Python dictionary that NumPy writes.
class Dictionary {
 public:
  Dictionary(std::string_view text, std::string who) : rest_(text), who_(std::move(who)) {}

  NpyHeader read() {
    NpyHeader h;
    expect('{');
    while (!take('}')) {
      const std::string_view key = quoted();
      expect(':');
      if (key == "descr" && !seen_[0]) {
        seen_[0] = true;
        h.dtype = type(quoted());
      } else if (key == "fortran_order" && !seen_[1]) {
        seen_[1] = true;
        h.fortran_order = boolean();
      } else if (key == "shape" && !seen_[2]) {
        seen_[2] = true;
        h.dim = shape();
      } else {
        throw malformed("key '" + printable(key) + "'", "descr, fortran_order and shape, each once");
      }
      if (!take(',')) {
        expect('}');
        break;
      }
    }
    skip_blanks();
    if (!rest_.empty()) throw malformed("text after the dictionary", "blanks");
    if (!seen_[0] || !seen_[1] || !seen_[2]) throw malformed("a key that is missing", "descr, fortran_order and shape");
    return h;
  }

 private:
  Error malformed(std::string got, std::string want) const {
    return broken(Rule::file_npy_header, who_, std::move(got), std::move(want));
  }
  void skip_blanks() {
    while (!rest_.empty() && (rest_.front() == ' ' || rest_.front() == '\n' || rest_.front() == '\t')) rest_.remove_prefix(1);
  }
  bool take(char c) {
    skip_blanks();
    if (rest_.empty() || rest_.front() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  void expect(char c) {
    if (!take(c)) throw malformed("'" + printable(rest_.substr(0, 12)) + "'", fmt::format("'{}'", c));
  }
  std::string_view quoted() {
    skip_blanks();
    const char quote = rest_.empty() ? '\0' : rest_.front();
    const std::size_t end = quote == '\'' || quote == '"' ? rest_.find(quote, 1) : std::string_view::npos;
    if (end == std::string_view::npos) throw malformed("'" + printable(rest_.substr(0, 12)) + "'", "a quoted word");
    const std::string_view word = rest_.substr(1, end - 1);
    rest_.remove_prefix(end + 1);
    return word;
  }
  bool boolean() {
    skip_blanks();
    for (const auto& [word, value] : {std::pair<std::string_view, bool>{"True", true}, {"False", false}})
      if (rest_.starts_with(word)) {
        rest_.remove_prefix(word.size());
        return value;
      }
    throw malformed("'" + printable(rest_.substr(0, 12)) + "'", "True or False");
  }
  std::vector<std::int64_t> shape() {
    std::vector<std::int64_t> dim;
    expect('(');
    while (!take(')')) {
      dim.push_back(extent());
      if (dim.size() > kMaxRankOfFile)
        throw broken(Rule::file_npy_shape, who_, "rank 9 or more", fmt::format("{} at most", kMaxRankOfFile));
      if (!take(',')) {
        expect(')');
        break;
      }
    }
    return dim;
  }
  std::int64_t extent() {
    skip_blanks();
    std::int64_t v = 0;
    std::size_t digits = 0;
    bool over = false;
    for (; digits < rest_.size() && rest_[digits] >= '0' && rest_[digits] <= '9'; ++digits)
      over = over || __builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, rest_[digits] - '0', &v);
    if (digits == 0) throw malformed("'" + printable(rest_.substr(0, 12)) + "'", "an extent");
    if (over) throw broken(Rule::file_npy_shape, who_, "extent " + printable(rest_.substr(0, digits)), "one of 63 bits");
    rest_.remove_prefix(digits);
    return v;
  }
  DataType type(std::string_view descr) const {
    if (!descr.empty() && (descr.front() == '<' || descr.front() == '|'))
      for (const TypeWord& t : kTypes)
        if (descr.substr(1) == t.word && (descr.front() == '<' || t.word.back() == '1' || t.word == "V2")) return t.type;
    throw broken(Rule::file_npy_type, who_, "elements '" + printable(descr) + "'",
                 "<f4, <f2, |i1, |u1, <i4, <i8, |b1, or <V2 or <u2 for bf16");
  }

  std::string_view rest_;
  std::string who_;
  bool seen_[3] = {false, false, false};
};

std::string who(const std::string& name) { return "array '" + name + "'"; }

}  // namespace

std::vector<std::int64_t> NpyArray::strides() const {
  std::vector<std::int64_t> s(dim.size());
  std::int64_t run = 1;
  for (std::size_t k = 0; k < dim.size(); ++k) {
    const std::size_t i = fortran_order ? k : dim.size() - 1 - k;
    s[i] = run;
    run *= dim[i] > 1 ? dim[i] : 1;
  }
  return s;
}

NpyHeader parse_npy_header(std::string_view first, const std::string& name) {
  const auto malformed = [&](std::string got, std::string want) {
    return broken(Rule::file_npy_header, who(name), std::move(got), std::move(want));
  };
  const auto byte = [&](std::size_t i) { return static_cast<std::size_t>(static_cast<unsigned char>(first[i])); };
  if (!first.starts_with(kMagic)) throw malformed("'" + printable(first.substr(0, 6)) + "'", "NumPy's magic");
  if (first.size() < 10) throw malformed(fmt::format("{} bytes", first.size()), "a whole header");
  const std::size_t major = byte(6), minor = byte(7);
  if ((major != 1 && major != 2) || minor != 0) throw malformed(fmt::format("version {}.{}", major, minor), "1.0 or 2.0");
  const std::size_t begin = major == 1 ? 10 : 12;
  if (first.size() < begin) throw malformed(fmt::format("{} bytes", first.size()), "a whole header");
  std::size_t length = byte(8) | byte(9) << 8;
  if (major == 2) length |= byte(10) << 16 | byte(11) << 24;
  if (length > kMaxNpyHeader - begin)
    throw malformed(fmt::format("a header of {} bytes", length), fmt::format("{} at most", kMaxNpyHeader - begin));
  if (first.size() - begin < length)
    throw malformed(fmt::format("{} bytes", first.size()), fmt::format("a header of {} bytes", length));
  NpyHeader h = Dictionary(first.substr(begin, length), who(name)).read();
  h.data_offset = begin + length;
  std::int64_t bytes = bytes_of(h.dtype);
  bool over = false;
  bool empty = false;
  for (const std::int64_t e : h.dim) {
    empty |= e == 0;
    over |= __builtin_mul_overflow(bytes, e > 0 ? e : 1, &bytes);
  }
  if (over)
    throw broken(Rule::file_npy_shape, who(name), fmt::format("shape ({})", fmt::join(h.dim, ", ")), "bytes that fit 63 bits");
  h.data_bytes = empty ? 0 : bytes;
  return h;
}

NpyArray read_npy(const std::string& path) {
  std::int64_t bytes = 0;
  const OpenFile file = open_ordinary(path, who(path), bytes);
  std::string first(kMaxNpyHeader, '\0');
  first.resize(std::fread(first.data(), 1, first.size(), file.get()));
  NpyHeader h = parse_npy_header(first, path);
  const std::int64_t there = bytes - static_cast<std::int64_t>(h.data_offset);
  if (there != h.data_bytes)
    throw broken(Rule::file_npy_size, who(path), fmt::format("{} bytes of elements", there),
                 fmt::format("{} for shape ({}) of {}", h.data_bytes, fmt::join(h.dim, ", "), name_of(h.dtype)));
  NpyArray out{.dtype = h.dtype, .dim = std::move(h.dim), .fortran_order = h.fortran_order, .data = {}};
  out.data.resize(static_cast<std::size_t>(h.data_bytes));
  if (std::fseek(file.get(), static_cast<long>(h.data_offset), SEEK_SET) != 0 ||
      std::fread(out.data.data(), 1, out.data.size(), file.get()) != out.data.size())
    throw broken(Rule::file_open, who(path), "a read that stopped early", fmt::format("{} bytes", out.data.size()));
  return out;
}

void write_npy(const std::string& path, DataType dtype, const std::vector<std::int64_t>& dim, const void* data) {
  std::string_view word;
  for (auto t = kTypes.rbegin(); t != kTypes.rend(); ++t)
    if (t->type == dtype) word = t->word;
  if (word.empty()) throw broken(Rule::file_npy_type, who(path), std::string(name_of(dtype)), "a type that .npy files have");
  std::string header = fmt::format("{{'descr': '{}{}', 'fortran_order': False, 'shape': ({}{}), }}",
                                   bytes_of(dtype) == 1 ? '|' : '<', word, fmt::join(dim, ", "), dim.size() == 1 ? "," : "");
  header.resize((10 + header.size() + 1 + 63) / 64 * 64 - 10 - 1, ' ');  // elements begin at a multiple of 64 bytes
  header += '\n';
  std::string content = std::string(kMagic) + std::string("\x01\x00", 2);
  content += static_cast<char>(header.size() & 0xFFU);
  content += static_cast<char>(header.size() >> 8);
  content += header;
  std::size_t bytes = static_cast<std::size_t>(bytes_of(dtype));
  for (const std::int64_t e : dim) bytes *= static_cast<std::size_t>(e);
  content.append(static_cast<const char*>(data), bytes);
  write_file(path, content);
}

}  // namespace verglas
