#pragma once
#include <sys/types.h>

#include <functional>
#include <string>

namespace support {

/// Runs `body` in a child process, as user `uid` where that is not 0 (needs root), and answers what it said: empty is well.
/// An exception is answered as its text, a signal as its number.
std::string in_child(const std::function<std::string()>& body, uid_t uid = 0);

/// Runs `body(i)` in `count` children that wait for each other before they begin; the first complaint, or empty.
std::string in_children(int count, const std::function<std::string(int)>& body);

/// The user nobody.
inline constexpr uid_t kNobody = 65534;

}  // namespace support
