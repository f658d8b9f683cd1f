// What Python needs of the sanitizer: on, off, and what it found.
#include <torch/csrc/utils/pybind.h>

#include "device/stream.h"
#include "torch/sanitizer/stacks.h"
#include "torch/sanitizer/stage.h"

namespace py = pybind11;

namespace softnpu {

namespace {

using sanitizer::Finding;
using sanitizer::Sanitizer;

py::list stack_of(uint32_t id) {
  py::list frames;
  for (const StackFrame& frame : python_stack(id))
    frames.append(py::make_tuple(frame.file, frame.line, frame.function));
  return frames;
}

py::dict access_of(const sanitizer::Access& access, const std::string& actor, const std::string& does) {
  Sanitizer& all = Sanitizer::get();
  py::dict found;
  found["operator"] = all.text(access.op);
  found["stream"] = actor;
  found["does"] = does;
  found["tensor"] = all.text(access.shape);
  found["bytes"] = py::make_tuple(access.region.begin, access.region.end);
  found["step"] = access.step;
  found["stack"] = stack_of(access.stack);
  found["in_graph"] = access.graph != 0;
  return found;
}

py::dict finding_of(const Finding& finding) {
  py::dict found;
  found["kind"] = std::string(1, finding.kind);
  found["text"] = finding.text;
  found["repair"] = finding.repair;
  py::list accesses;
  if (!finding.first_actor.empty()) accesses.append(access_of(finding.first, finding.first_actor, finding.first_does));
  const bool two = finding.kind != 'g' && !finding.second_actor.empty();
  if (two) accesses.append(access_of(finding.second, finding.second_actor, finding.second_does));
  found["accesses"] = accesses;
  found["allocated"] = stack_of(finding.allocated);
  found["allocation_bytes"] = finding.bytes;
  found["related"] = stack_of(finding.related);
  found["related_text"] = finding.related_text;
  found["count"] = finding.count;
  py::list history;
  for (const auto& moment : finding.history) history.append(py::make_tuple(moment.step, moment.actor, moment.what));
  found["history"] = history;
  return found;
}

// A finding that Python makes: `at` and `other` are numbers of stacks.
void report(const std::string& kind, const std::string& text, const std::string& repair, uint32_t at, uint32_t other,
            const std::string& other_text) {
  Finding finding;
  finding.kind = kind.at(0);
  finding.text = text;
  finding.repair = repair;
  finding.first.stack = at;
  finding.first_actor = "the host";
  finding.first_does = "calls";
  finding.related = other;
  finding.related_text = other_text;
  Sanitizer::get().report(std::move(finding));
}

}  // namespace

void bind_sanitizer(py::module& m) {
  Sanitizer::capture_stack = &capture_python_stack;
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  m.def(
      "sanitizer_enable", [](bool poison) { Sanitizer::get().enable({poison}); }, py::arg("poison") = false,
      Unlocked());
  m.def("sanitizer_disable", [] { Sanitizer::get().disable(); }, Unlocked());
  m.def("sanitizer_limit", [](int64_t streams, int64_t events) { Sanitizer::get().limit(streams, events); });
  m.def("sanitizer_cannot_capture", [](const std::vector<std::string>& operators) {
    Sanitizer::get().cannot_capture({operators.begin(), operators.end()});
  });
  m.def("sanitizer_held", [] { return Sanitizer::get().held(); });
  m.def("sanitizer_reset", [] { Sanitizer::get().reset(); }, Unlocked());
  m.def("sanitizer_on", &sanitizer::on);
  m.def("sanitizer_tracked", [] { return Sanitizer::get().tracked(); }, Unlocked());
  m.def("sanitizer_findings", [] {
    py::list all;
    for (const Finding& finding : Sanitizer::get().take()) all.append(finding_of(finding));
    return all;
  });
  m.def("sanitizer_stack", &capture_python_stack);
  m.def("shuffle", [](uint64_t seed) { Queues::all().shuffle(seed); }, Unlocked());
  m.def("waiting_streams", [] { return Queues::all().waiting(); }, Unlocked());
  m.def("sanitizer_report", &report, py::arg("kind"), py::arg("text"), py::arg("repair"), py::arg("at") = 0,
        py::arg("other") = 0, py::arg("other_text") = "");
}

}  // namespace softnpu
