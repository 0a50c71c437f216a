#pragma once
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>

namespace verglas {

/// What kind of failure it is. The list is closed; Python has one exception class for each.
enum class ErrorCode : std::uint8_t {
  ok = 0,
  invalid_graph,   ///< the description is wrong in itself
  invalid_call,    ///< a buffer, stream or workspace breaks a rule of the plan; nothing was written
  unsupported,     ///< legal, but no engine serves it; the text lists what each engine said
  compile_failed,  ///< a kernel could not be generated, compiled or loaded
  driver_failed,   ///< a driver call failed; the text has the driver's own name for it
  io_failed,       ///< a file could not be read or written, or its content is not what it claims
  out_of_memory,
  internal,  ///< a defect of Verglas
};

/// "invalid_call" and so on.
std::string_view name_of(ErrorCode code) noexcept;

/// The one exception type. `what()` is `code [rule] operand: got G, wanted W`, so that a user can act without reading source.
class Error : public std::exception {
 public:
  Error(ErrorCode code, std::string_view rule, std::string operand, std::string got, std::string want);

  /// For failures that have no operand and nothing to compare: `code [rule] text`.
  Error(ErrorCode code, std::string_view rule, std::string text);

  const char* what() const noexcept override { return text_.c_str(); }
  ErrorCode code() const noexcept { return code_; }
  const std::string& rule() const noexcept { return rule_; }        ///< stable id, "gemm.k_equal"; docs/rules.md lists all
  const std::string& operand() const noexcept { return operand_; }  ///< role and name of whose fault it is; may be empty
  const std::string& got() const noexcept { return got_; }
  const std::string& want() const noexcept { return want_; }

 private:
  ErrorCode code_;
  std::string rule_, operand_, got_, want_, text_;
};

/// Answer of the call path, which neither throws nor allocates: 8 bytes. `check` is the index of the check that failed in the
/// plan's list, or −1; `CompiledPlan::explain` turns it into an Error. `driver` is the driver's own code for driver_failed.
struct Status {
  ErrorCode code = ErrorCode::ok;
  std::int16_t check = -1;
  std::int32_t driver = 0;
  constexpr bool ok() const noexcept { return code == ErrorCode::ok; }
};
static_assert(sizeof(Status) == 8);

}  // namespace verglas
