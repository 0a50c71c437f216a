#include "jit/container.hpp"

#include <gtest/gtest.h>

#include "base/sha256.hpp"

namespace verglas::jit {
namespace {

constexpr std::uint32_t kKind = 7, kSchema = 3;

Container sample() {
  Container c{kKind, kSchema, {}};
  c.add("empty", "");
  c.add("text", std::string("a\0\n\xff", 4));
  c.add("long", std::string(1000, 'x'));
  return c;
}
/// With the last 32 bytes made right again.
std::string resealed(std::string bytes) {
  bytes.resize(bytes.size() - 32);
  return bytes + sha256(bytes);
}

TEST(Container, ReadsWhatItWrote) {
  const auto read = read_container(write_container(sample()), kKind, kSchema);
  ASSERT_TRUE(read) << read.error().text;
  EXPECT_EQ(read->fields, sample().fields);
  EXPECT_EQ(*read->find("text"), std::string("a\0\n\xff", 4));
  EXPECT_EQ(read->find("missing"), nullptr);
}

TEST(Container, RefusesEveryPrefixAndEveryChangedByte) {
  const std::string good = write_container(sample());
  for (std::size_t n = 0; n < good.size(); ++n) EXPECT_FALSE(read_container(good.substr(0, n), kKind, kSchema)) << n;
  for (std::size_t at = 0; at < good.size(); ++at)
    for (const int bit : {0, 7}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << bit));
      EXPECT_FALSE(read_container(bad, kKind, kSchema)) << at;
    }
  EXPECT_FALSE(read_container(good + '\0', kKind, kSchema));
}

TEST(Container, TellsOthersFilesAndOtherFormatsFromDamage) {
  using What = ContainerFault::What;
  const std::string good = write_container(sample());
  EXPECT_EQ(read_container("", kKind, kSchema).error().what, What::not_ours);
  EXPECT_EQ(read_container("{\"graph\": 1}", kKind, kSchema).error().what, What::not_ours);
  EXPECT_EQ(read_container(good, kKind + 1, kSchema).error().what, What::not_ours);
  EXPECT_EQ(read_container(good, kKind, kSchema + 1).error().what, What::other_schema);
  EXPECT_EQ(read_container(good.substr(0, 100), kKind, kSchema).error().what, What::damaged);
}

TEST(Container, ReadsNothingOutsideItsBytesWhateverTheLengthsClaim) {
  const std::string good = write_container(sample());
  // The field count and the first field's two lengths, at 24, 28 and 37; each with a right checksum.
  for (const auto& [at, bytes] : {std::pair<std::size_t, std::size_t>{24, 4}, {28, 4}, {37, 8}})
    for (const int fill : {0xff, 0x7f, 0x01}) {
      std::string bad = good;
      for (std::size_t i = 0; i < bytes; ++i) bad[at + i] = static_cast<char>(fill);
      EXPECT_FALSE(read_container(resealed(bad), kKind, kSchema)) << at << " " << fill;
    }
}

TEST(Container, RefusesAFieldThatIsThereTwice) {
  Container c{kKind, kSchema, {}};
  c.add("a", "1");
  c.add("a", "2");
  EXPECT_FALSE(read_container(write_container(c), kKind, kSchema));
}

}  // namespace
}  // namespace verglas::jit
