#include "jit/nvrtc.hpp"

#include <fmt/format.h>

#include <chrono>

#include "base/rules.hpp"

namespace verglas::jit {
namespace {

using cuda::NVRTC_SUCCESS;
using cuda::nvrtcResult;
using cuda::NvrtcTable;

[[noreturn]] void fail(const NvrtcTable& nvrtc, const CompileRequest& request, std::string_view call, nvrtcResult code,
                       std::string_view log) {
  const char* words = nvrtc.nvrtcGetErrorString(code);
  throw broken(Rule::jit_compile,
               fmt::format("{} of kernel {} for {} with NVRTC {}.{} answers {}{}{}", call, request.kernel, request.arch,
                           nvrtc.major, nvrtc.minor, words ? words : "an unknown code", log.empty() ? "" : ":\n", log));
}

/// Destroys the program on every way out.
struct Program {
  const NvrtcTable& nvrtc;
  cuda::nvrtcProgram handle = nullptr;
  explicit Program(const NvrtcTable& table) : nvrtc(table) {}
  ~Program() {
    if (handle) nvrtc.nvrtcDestroyProgram(&handle);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
};

std::string log_of(const Program& program) {
  std::size_t bytes = 0;
  if (program.nvrtc.nvrtcGetProgramLogSize(program.handle, &bytes) != NVRTC_SUCCESS || bytes < 2) return {};
  std::string log(bytes, '\0');
  if (program.nvrtc.nvrtcGetProgramLog(program.handle, log.data()) != NVRTC_SUCCESS) return {};
  log.resize(bytes - 1);  // without the terminating zero
  return log;
}

}  // namespace

std::vector<std::string> options_of(const CompileRequest& request, int nvrtc_major, int nvrtc_minor) {
  // No relocatable code and no Ofast-compile of any level: both make ptxas ignore setmaxnreg (C7504).
  std::vector<std::string> options = {
      "--gpu-architecture=" + request.arch,
      "--std=c++20",
      "--minimal",
      "-default-device",
      "--ftz=false",
      "--prec-div=true",
      "--prec-sqrt=true",
      "--fmad=true",
      "--ptxas-options=-v",  // one a flag: NVRTC hands each value on as one word
      "--ptxas-options=--warn-on-spills",
      "--ptxas-options=--warn-on-local-memory-usage",
  };
  // NVRTC 12.9 brought a cache of its own, below the home folder and keyed by less than ours.
  if (nvrtc_major > 12 || (nvrtc_major == 12 && nvrtc_minor >= 9)) options.emplace_back("--no-cache");
  if (request.line_info) options.emplace_back("--generate-line-info");
  for (const std::string& definition : request.definitions) options.push_back("--define-macro=" + definition);
  return options;
}

CompiledKernel compile(const NvrtcTable& nvrtc, const CompileRequest& request) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::string> owned;  // zero-terminated copies: names and texts come as views
  owned.reserve(2 * request.headers.size());
  std::vector<const char*> names, texts, options;
  for (const EmbeddedSource& header : request.headers) {
    names.push_back(owned.emplace_back(header.name).c_str());
    texts.push_back(owned.emplace_back(header.text).c_str());
  }
  const std::vector<std::string> words = options_of(request, nvrtc.major, nvrtc.minor);
  for (const std::string& word : words) options.push_back(word.c_str());

  Program program(nvrtc);
  nvrtcResult code = nvrtc.nvrtcCreateProgram(&program.handle, request.source.c_str(), (request.kernel + ".cu").c_str(),
                                              static_cast<int>(names.size()), texts.data(), names.data());
  if (code != NVRTC_SUCCESS) fail(nvrtc, request, "nvrtcCreateProgram", code, {});
  code = nvrtc.nvrtcCompileProgram(program.handle, static_cast<int>(options.size()), options.data());
  CompiledKernel out{request.kernel, request.arch, {}, log_of(program), {}, 0};
  if (code != NVRTC_SUCCESS) fail(nvrtc, request, "nvrtcCompileProgram", code, out.log);
  std::size_t bytes = 0;
  code = nvrtc.nvrtcGetCUBINSize(program.handle, &bytes);
  if (code != NVRTC_SUCCESS) fail(nvrtc, request, "nvrtcGetCUBINSize", code, out.log);
  out.cubin.resize(bytes);
  code = nvrtc.nvrtcGetCUBIN(program.handle, out.cubin.data());
  if (code != NVRTC_SUCCESS) fail(nvrtc, request, "nvrtcGetCUBIN", code, out.log);
  out.report = parse_report(out.log);
  out.compile_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  return out;
}

}  // namespace verglas::jit
