#pragma once

namespace support {

/// How often the calling thread has called operator new: the test programs' own counts.
long allocations_of_this_thread() noexcept;

}  // namespace support
