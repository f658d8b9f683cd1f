// Registration of the events that PyTorch's own profiler records.
#pragma once

namespace softnpu {

void install_profiler_events();  // once

}  // namespace softnpu
