// The sanitizer's question of a rank that has waited for long. A header of its own: agreement.h needs Python's.
#pragma once

namespace softnpu::hccl {

// Whether two groups wait for each other; see Agreement.
void look_for_cycles();

}  // namespace softnpu::hccl
