#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chain/chain.hpp"
#include "verglas/call.hpp"
#include "verglas/tensor.hpp"

/// What was measured, kept between processes: docs/tuning.md has the format. Nothing here throws; what cannot be read or kept is
/// told in words.
namespace verglas::plan {

/// One plan as it was measured. `build`: what its engine says that measurements depend on.
struct MeasuredPlan {
  std::string engine;
  Knobs knobs;
  std::string build;
  double seconds = 0;  ///< median of one call
};

/// All that was measured for one chain on one device.
struct TuningEntry {
  std::string device;   ///< name, multiprocessors, driver; or the processor
  std::string chain;    ///< canonical text: extents, strides, types and nodes, no names
  std::string summary;  ///< for people
  std::array<std::int64_t, 4> extents{};
  std::int64_t when = 0;            ///< seconds since 1970
  std::vector<MeasuredPlan> plans;  ///< fastest first
};

/// The chain without names and uids: equal texts are measured alike.
std::string canonical_text(const chain::FusionChain& chain);
/// The device in the words of a record; empty where it cannot be asked.
std::string device_text(Device device);

/// Something may be kept: whoever has never tuned pays for one look at a folder.
bool has_tuning();

struct TuningLookup {
  std::optional<TuningEntry> entry;
  std::string file;     ///< where it was looked for; empty: nowhere
  std::string ignored;  ///< why what is there does not count; empty otherwise
};
TuningLookup find_tuning(const std::string& device, const std::string& chain);
/// Publishes the entry in one step, over an older one; answers the file, or with `why_not` nothing.
std::string keep_tuning(const TuningEntry& entry, std::string& why_not);

struct TuningItem {
  std::string file;
  std::uint64_t bytes = 0;
  TuningEntry entry;
  std::string fault;  ///< why it does not count; empty: it does
};
std::vector<TuningItem> list_tuning();
/// Removes all entries, sound or not, and answers how many.
int clear_tuning();
/// The folder of the entries, or why there is none.
std::string tuning_folder(std::string& why_not);

/// An entry as text and back; `fault` is empty where the text is one.
std::string to_text(const TuningEntry& entry);
TuningEntry from_text(std::string_view text, std::string& fault);

}  // namespace verglas::plan
