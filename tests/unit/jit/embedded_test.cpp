#include "jit/embedded.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "base/sha256.hpp"

namespace verglas::jit {

TEST(EmbeddedSources, AreTheKernelFilesByteForByteAndSorted) {
  std::map<std::string, std::string> on_disk;
  const std::filesystem::path folder = VERGLAS_SOURCE_DIR "/src/engine/sm90/kernels";
  if (std::filesystem::exists(folder)) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() != ".cuh") continue;
      std::ostringstream text;
      text << std::ifstream(entry.path(), std::ios::binary).rdbuf();
      on_disk[entry.path().filename().string()] = text.str();
    }
  }
  ASSERT_EQ(embedded_sources().size(), on_disk.size());
  auto expected = on_disk.begin();
  for (const EmbeddedSource& source : embedded_sources()) {
    EXPECT_EQ(source.name, expected->first);
    EXPECT_EQ(source.text, expected->second);
    EXPECT_EQ(source.digest, sha256_hex(source.text));
    ++expected;
  }
}

}  // namespace verglas::jit
