#include "support/judged.hpp"

#include <map>
#include <set>

namespace support {
namespace {

/// Rules of the judge that mean the same as a rule of the library.
const std::map<std::string, std::set<std::string>> kSameRules = {
    {"call.operand_count", {"missing", "unknown", "duplicate"}},
    {"call.device", {"current_device"}},
    {"call.null", {"null"}},
    {"call.read_only", {"read_only"}},
    {"call.rank", {"rank"}},
    {"call.operand_device", {"device"}},
    {"call.dtype", {"dtype"}},
    {"call.major", {"major"}},
    {"call.stride", {"stride.negative"}},
    {"call.outer_stride", {"outer_stride"}},
    {"call.overflow", {"overflow", "extent.negative"}},
    {"call.extent_limit", {"extent.large"}},
    {"call.batch", {"extent.batch"}},
    {"call.extent", {"extent.m", "extent.n", "extent.k"}},
    {"call.alignment", {"alignment"}},
    {"call.output_extent", {"extent.output"}},
    {"call.span", {"span"}},
    {"call.aux_extent", {"extent.aux", "extent.negative"}},
    {"call.packed", {"packed"}},
    {"call.block_divides", {"blocks"}},
    {"call.scale_extent", {"scale.extent", "extent.negative", "stride.negative"}},
    {"call.scale_size", {"scale.size"}},
    {"call.overlap", {"overlap"}},
    {"call.output_alias", {"zero_stride_output", "alias_output"}},
    {"call.grid", {"grid"}},
};

}  // namespace

std::string disputed(const verglas::Error& refusal, const oracle::Verdict& verdict) {
  if (refusal.operand().empty() || refusal.got().empty() || refusal.want().empty())
    return std::string("says too little: ") + refusal.what();
  if (const auto same = kSameRules.find(refusal.rule()); same != kSameRules.end())
    for (const std::string& rule : same->second)
      if (verdict.breaks(rule)) return {};
  return std::string("library: ") + refusal.what() + "\n  judge found other rules: " + verdict.text();
}

}  // namespace support
