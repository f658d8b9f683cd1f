#include "torch/sanitizer/stacks.h"

#include <torch/csrc/utils/pybind.h>

#include <unordered_map>

namespace py = pybind11;

namespace softnpu {

namespace {

constexpr size_t kMostFrames = 48;

struct Frame {
  PyCodeObject* code;
  int last;
  bool operator==(const Frame&) const = default;
};
using Frames = std::vector<Frame>;

struct Hash {
  size_t operator()(const Frames& frames) const {
    size_t hash = frames.size();
    for (const Frame& frame : frames) {
      hash = (hash ^ reinterpret_cast<size_t>(frame.code)) * 0x9e3779b97f4a7c15u;
      hash = (hash ^ static_cast<size_t>(frame.last)) * 0xff51afd7ed558ccdu;
      hash ^= hash >> 31;
    }
    return hash;
  }
};

struct Table {  // guarded by the GIL
  std::unordered_map<Frames, uint32_t, Hash> numbers;
  std::vector<const Frames*> stacks;
  std::unordered_map<PyCodeObject*, bool> kept;
  Frames scratch;
};

Table& table() {
  static auto* one = new Table;  // holds code objects: never destroyed
  return *one;
}

bool finalizing() {
#if PY_VERSION_HEX >= 0x030d0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

PyFrameObject* frame_of_main() {
  PyThreadState* first = nullptr;
  for (auto* thread = PyInterpreterState_ThreadHead(PyInterpreterState_Get()); thread != nullptr;
       thread = PyThreadState_Next(thread)) {
    first = thread;  // the newest is the head
  }
  return first == nullptr ? nullptr : PyThreadState_GetFrame(first);
}

}  // namespace

uint32_t capture_python_stack() {
  if (!Py_IsInitialized() || finalizing()) return 0;
  const py::gil_scoped_acquire gil;
  Table& all = table();
  Frames& frames = all.scratch;
  frames.clear();
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  if (frame == nullptr) frame = frame_of_main();
  while (frame != nullptr && frames.size() < kMostFrames) {
    PyCodeObject* code = PyFrame_GetCode(frame);
#if PY_VERSION_HEX >= 0x030b0000
    frames.push_back({code, PyFrame_GetLasti(frame)});
#else
    frames.push_back({code, PyFrame_GetLineNumber(frame)});
#endif
    if (!all.kept.try_emplace(code, true).second) Py_DECREF(code);  // the first reference is kept
    PyFrameObject* back = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
  Py_XDECREF(frame);
  if (frames.empty()) return 0;
  const auto found = all.numbers.find(frames);
  if (found != all.numbers.end()) return found->second;
  const auto at = all.numbers.emplace(frames, static_cast<uint32_t>(all.stacks.size() + 1)).first;
  all.stacks.push_back(&at->first);
  return at->second;
}

std::vector<StackFrame> python_stack(uint32_t id) {
  std::vector<StackFrame> found;
  const Table& all = table();
  if (id == 0 || id > all.stacks.size()) return found;
  auto text = [](PyObject* value) { return py::reinterpret_steal<py::object>(value).cast<std::string>(); };
  for (const Frame& frame : *all.stacks[id - 1]) {
    auto* code = reinterpret_cast<PyObject*>(frame.code);
#if PY_VERSION_HEX >= 0x030b0000
    const int line = PyCode_Addr2Line(frame.code, frame.last);
#else
    const int line = frame.last;
#endif
    found.push_back(
        {text(PyObject_GetAttrString(code, "co_filename")), text(PyObject_GetAttrString(code, "co_name")), line});
  }
  return found;
}

}  // namespace softnpu
