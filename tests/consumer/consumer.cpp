#include <cstring>
#include <iostream>

#include "verglas/error.hpp"
#include "verglas/version.hpp"

int main(int argc, char** argv) {
  if (argc != 2 || std::strcmp(argv[1], VERGLAS_VERSION) != 0) {
    std::cerr << "built against " << VERGLAS_VERSION << ", wanted " << (argc == 2 ? argv[1] : "an argument") << '\n';
    return 1;
  }
  // An exception made inside the library is caught outside it, also across a shared object.
  try {
    throw verglas::Error(verglas::ErrorCode::unsupported, "consumer.rule", "x", "1", "2");
  } catch (const std::exception& e) {
    if (std::strcmp(e.what(), "unsupported [consumer.rule] x: got 1, wanted 2") != 0) return 1;
  }
  return 0;
}
