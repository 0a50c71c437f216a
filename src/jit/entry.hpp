#pragma once
#include <string>
#include <string_view>

#include "jit/container.hpp"
#include "jit/nvrtc.hpp"

namespace verglas::jit {

/// Everything that decides the bytes of a cubin, as canonical bytes: the source, each header by its digest, the options, the
/// architecture, NVRTC's version and build. No path, no time and no driver: equal installations share entries wherever they lie,
/// and an update of the driver keeps them.
std::string cache_key(const CompileRequest& request, const cuda::NvrtcTable& nvrtc);

/// The part of it that is ours, as a digest: what a build of Verglas would hand to NVRTC, whichever NVRTC that is. Needs none.
std::string source_key(const CompileRequest& request);

/// File name of the entry of a key: 64 hexadecimal digits and ".vgk".
std::string entry_name(std::string_view key);

std::string write_entry(std::string_view key, const CompiledKernel& kernel);

/// The kernel of an entry whose stored key is `key`; a fault for anything else, a right entry of another key included.
tl::expected<CompiledKernel, ContainerFault> read_entry(std::string_view bytes, std::string_view key);
/// The same for whatever key is stored, which is answered too: for listing and verifying.
struct StoredEntry {
  std::string key;
  CompiledKernel kernel;
};
tl::expected<StoredEntry, ContainerFault> read_any_entry(std::string_view bytes);

/// The report as JSON text, as stored in entries and plan files; and back (false where the text is not one).
std::string report_to_json(const ResourceReport& report);
bool report_from_json(std::string_view text, ResourceReport& report);

}  // namespace verglas::jit
