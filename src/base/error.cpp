#include "verglas/error.hpp"

#include <utility>

namespace verglas {

std::string_view name_of(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::ok: return "ok";
    case ErrorCode::invalid_graph: return "invalid_graph";
    case ErrorCode::invalid_call: return "invalid_call";
    case ErrorCode::unsupported: return "unsupported";
    case ErrorCode::compile_failed: return "compile_failed";
    case ErrorCode::driver_failed: return "driver_failed";
    case ErrorCode::io_failed: return "io_failed";
    case ErrorCode::out_of_memory: return "out_of_memory";
    case ErrorCode::internal: return "internal";
  }
  return "internal";
}

Error::Error(ErrorCode code, std::string_view rule, std::string operand, std::string got, std::string want)
    : code_(code), rule_(rule), operand_(std::move(operand)), got_(std::move(got)), want_(std::move(want)) {
  text_ = std::string(name_of(code_)) + " [" + rule_ + "] " + operand_ + ": got " + got_ + ", wanted " + want_;
}

Error::Error(ErrorCode code, std::string_view rule, std::string text) : code_(code), rule_(rule) {
  text_ = std::string(name_of(code_)) + " [" + rule_ + "] " + std::move(text);
}

}  // namespace verglas
