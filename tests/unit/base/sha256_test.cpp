#include "base/sha256.hpp"

#include <gtest/gtest.h>

namespace verglas {

// Values of FIPS 180-4's examples, and of coreutils' sha256sum.
TEST(Sha256, MatchesPublishedDigests) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_hex(std::string(1000000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, DoesNotDependOnHowTheBytesCome) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>(i * 7);
  for (std::size_t length = 0; length <= text.size(); ++length) {
    const std::string_view all = std::string_view(text).substr(0, length);
    for (const bool plain : {false, true}) {
      Sha256 pieces(plain);
      for (std::size_t at = 0; at < length; at += 1 + at % 13) pieces.add(all.substr(at, 1 + at % 13));
      const auto digest = pieces.digest();
      EXPECT_EQ(std::string(reinterpret_cast<const char*>(digest.data()), 32), sha256(all)) << length << plain;
    }
  }
}

}  // namespace verglas
