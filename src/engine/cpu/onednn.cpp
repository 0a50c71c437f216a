#include <dlfcn.h>

#include <string>

#include "engine/cpu/product.hpp"

namespace verglas::engine::cpu {
namespace {

using DnnlSgemm = int (*)(char transa, char transb, std::int64_t m, std::int64_t n, std::int64_t k, float alpha, const float* a,
                          std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c, std::int64_t ldc);

/// oneDNN and the OpenMP runtime below it. Threads are ours, so each call runs on one: the same bits for every thread count.
struct Library {
  DnnlSgemm sgemm = nullptr;
  int (*get_threads)() = nullptr;
  void (*set_threads)(int) = nullptr;
  std::string text;

  Library() {
    for (const char* name : {"libdnnl.so.3", "libdnnl.so.2", "libdnnl.so"}) {
      void* handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
      if (handle == nullptr) continue;
      sgemm = reinterpret_cast<DnnlSgemm>(dlsym(handle, "dnnl_sgemm"));
      get_threads = reinterpret_cast<int (*)()>(dlsym(handle, "omp_get_max_threads"));
      set_threads = reinterpret_cast<void (*)(int)>(dlsym(handle, "omp_set_num_threads"));
      if (sgemm && get_threads && set_threads) {
        text = std::string(name) + " is there";
        return;
      }
      sgemm = nullptr;
      text = std::string(name) + " has no dnnl_sgemm over OpenMP";
    }
    if (text.empty()) text = "libdnnl is not there (Debian: apt install libdnnl3)";
  }
};

const Library& library() noexcept {
  static const Library lib;
  return lib;
}

void sgemm(const SgemmArguments& s) noexcept {
  const Library& lib = library();
  const int before = lib.get_threads();
  if (before != 1) lib.set_threads(1);
  lib.sgemm(s.a_transposed ? 'T' : 'N', s.b_transposed ? 'T' : 'N', s.m, s.n, s.k, 1.0F, s.a, s.lda, s.b, s.ldb, s.beta, s.c,
            s.ldc);
  if (before != 1) lib.set_threads(before);
}

}  // namespace

Sgemm onednn_sgemm() noexcept { return library().sgemm ? &sgemm : nullptr; }
const char* onednn_text() noexcept { return library().text.c_str(); }

}  // namespace verglas::engine::cpu
