#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/nvrtc_table.hpp"
#include "jit/embedded.hpp"
#include "jit/report.hpp"

namespace verglas::jit {

/// One kernel to compile: one `extern "C"` entry, one cubin.
struct CompileRequest {
  std::string kernel;  ///< name of the entry
  std::string source;
  /// `#include "name"` in the source finds `text`; nothing is read from disk. Owner of the texts: the caller.
  std::vector<EmbeddedSource> headers;
  std::string arch = "sm_90a";
  std::vector<std::string> definitions;  ///< "BLOCK_M=128"
  bool line_info = false;                ///< for profilers; four times the cubin, same time
};

struct CompiledKernel {
  std::string kernel;
  std::string arch;
  std::string cubin;  ///< an ELF image
  std::string log;
  ResourceReport report;
  double compile_ms = 0;
};

/// The options of a compile, in order: a function of the request and of NVRTC's version only, and part of the cache key.
std::vector<std::string> options_of(const CompileRequest& request, int nvrtc_major, int nvrtc_minor);

/// Compiles, or throws compile_failed [jit.compile] with NVRTC's version, its answer and its log. May run on several threads.
CompiledKernel compile(const cuda::NvrtcTable& nvrtc, const CompileRequest& request);

}  // namespace verglas::jit
