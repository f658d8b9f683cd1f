// Text as the values of a c10d store, which are bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace softnpu::hccl {

inline std::vector<uint8_t> to_bytes(const std::string& text) { return {text.begin(), text.end()}; }
inline std::string to_text(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

}  // namespace softnpu::hccl
