// The description of an attention problem, made from the operators' arguments. See attention.h.
#include "attention.h"

namespace softnpu::attention::inline CPU_CAPABILITY {

namespace {

// A number for each segment, one for all of them, or none.
int64_t pick(const IntList& list, int64_t index, int64_t otherwise) {
  if (!list.has_value() || list->empty()) return otherwise;
  return (*list)[list->size() == 1 ? 0 : index];
}

void check_list(const kernels::Guard& guard, const IntList& list, const char* name, int64_t count) {
  if (!list.has_value() || list->size() <= 1) return;
  guard.hold(static_cast<int64_t>(list->size()) == count, name, c10::str(count, " numbers, or one for all"), *list);
}

// query, key and value fit together; called before anything of them is read.
const at::Tensor& checked(const kernels::Guard& guard, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  guard.rank(q, "query", 4);
  guard.rank(k, "key", 4);
  guard.dtype(q, "query", {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble});
  guard.same_dtype(k, "key", q);
  guard.hold(k.size(3) == q.size(3), "key", c10::str(q.size(3), " as last dimension, as 'query' has"), k.sizes());
  guard.hold(k.size(1) == 0 ? q.size(1) == 0 : q.size(1) % k.size(1) == 0, "key",
             c10::str("heads that divide the query's ", q.size(1)), k.sizes());
  guard.rank(v, "value", 4);
  guard.same_dtype(v, "value", q);
  guard.sizes(v, "value", {k.size(0), k.size(1), k.size(2), v.size(3)});
  return q;
}

// Start and length of a stretch of a sequence.
void check_stretch(const kernels::Guard& guard, const char* name, int64_t start, int64_t length, int64_t tokens) {
  const bool inside = start >= 0 && start <= tokens && length >= 0 && length <= tokens - start;
  guard.hold(inside, name, c10::str("a segment within ", tokens, " tokens"),
             c10::str("start ", start, ", length ", length));
}

}  // namespace

void expect(const kernels::Guard& guard, const at::Tensor& t, const char* name, at::IntArrayRef least, bool repeats) {
  bool fits = t.dim() == static_cast<int64_t>(least.size());
  for (int64_t d = 0; fits && d < t.dim(); ++d) fits = t.size(d) >= least[d] || (repeats && t.size(d) == 1);
  guard.hold(fits, name, c10::str("at least shape ", least), t.sizes());
}

Problem::Problem(const kernels::Guard& guard, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                 const Options& o)
    : heads(checked(guard, q, k, v).size(1)),
      kv_heads(k.size(1)),
      group(kv_heads == 0 ? 0 : heads / kv_heads),
      d(q.size(3)),
      dv(v.size(3)),
      scale(o.scale),
      query(q),
      key(k),
      value(v),
      mask(view_of(o.mask)),
      bias(view_of(o.bias)),
      slopes(view_of(o.slopes)),
      sink(view_of(o.sink)),
      bias_scale(o.bias_scale),
      bias_toeplitz(o.bias_toeplitz),
      slopes_sqrt(o.slopes_sqrt),
      slopes_shift(o.slopes_shift) {
  guard.hold(o.keep_prob > 0 && o.keep_prob <= 1, "keep_prob", "in (0, 1]", o.keep_prob);
  const int64_t far = int64_t(1) << 40;
  const int64_t count = o.q_len.has_value() ? static_cast<int64_t>(o.q_len->size()) : std::max(q.size(0), k.size(0));
  const bool paged = o.pages.has_value() && o.pages->defined();
  guard.hold(q.size(0) == 1 || q.size(0) == count, "query", c10::str("a batch of 1 or ", count), q.sizes());
  guard.hold(paged || k.size(0) == 1 || k.size(0) == count, "key", c10::str("a batch of 1 or ", count), k.sizes());
  const std::pair<const IntList&, const char*> lists[] = {
      {o.q_start, "q_start"},   {o.q_len, "q_len"},         {o.kv_start, "kv_start"}, {o.kv_len, "kv_len"},
      {o.band_low, "band_low"}, {o.band_high, "band_high"}, {o.prefix, "prefix"}};
  for (const auto& [list, name] : lists) check_list(guard, list, name, count);
  if (paged) {
    guard.rank(*o.pages, "pages", 2);
    guard.dtype(*o.pages, "pages", {at::kLong});
    guard.sizes(*o.pages, "pages", {count, o.pages->size(1)});
    page_size = k.size(2);
    page_count = o.pages->size(1);
    const at::Tensor table = o.pages->contiguous();
    pages.assign(table.const_data_ptr<int64_t>(), table.const_data_ptr<int64_t>() + table.numel());
    for (const int64_t block : pages) guard.index(block, k.size(0), "pages");
  }
  const int64_t tokens = paged ? guard.product(page_size, page_count, "pages") : k.size(2);
  int64_t first = 0, rows = 0, columns = 0;
  for (int64_t b = 0; b < count; ++b) {
    Segment s{
        pick(o.q_start, b, 0),     pick(o.q_len, b, q.size(2)), pick(o.kv_start, b, 0), pick(o.kv_len, b, k.size(2)),
        pick(o.band_low, b, -far), pick(o.band_high, b, far),   pick(o.prefix, b, 0),   first};
    s.low = std::clamp(s.low, -far, far);
    s.high = std::clamp(s.high, -far, far);
    check_stretch(guard, "query", s.q_start, s.q_len, q.size(2));
    check_stretch(guard, "key", s.kv_start, s.kv_len, tokens);
    s.prefix = std::clamp<int64_t>(s.prefix, 0, s.kv_len);
    const int64_t scores = guard.product(guard.product(heads, s.q_len, "query"), s.kv_len, "key");
    first = guard.sum(first, scores, "query");
    segments.push_back(s);
    rows = std::max(rows, s.q_len);
    columns = std::max(columns, s.kv_len);
  }
  guard.hold(rows < far && columns < far, "key", "sequences shorter than 2^40", c10::str(rows, " and ", columns));
  if (mask) {
    guard.dtype(*o.mask, "mask", {at::kBool, at::kByte});
    expect(guard, *o.mask, "mask", {count, heads, rows, columns}, true);
  }
  if (bias) {
    guard.dtype(*o.bias, "bias", {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble});
    expect(guard, *o.bias, "bias", {count, heads, bias_toeplitz ? 1 : rows, columns}, true);
    bias_rows = o.bias->size(2);
    bias_columns = o.bias->size(3);
    guard.hold(!bias_toeplitz || (bias_rows > 0 && bias_rows <= bias_columns && rows <= bias_columns), "bias",
               c10::str("the last rows of a square matrix of at least ", rows, " rows"), o.bias->sizes());
  }
  if (slopes) {
    guard.dtype(*o.slopes, "slopes", {at::kFloat});
    expect(guard, *o.slopes, "slopes", {count, heads}, true);
    guard.hold(slopes_shift > -far && slopes_shift < far, "slopes_shift", "within 2^40", slopes_shift);
  }
  if (sink) {
    guard.dtype(*o.sink, "sink", {at::kFloat});
    expect(guard, *o.sink, "sink", {heads});
  }
  if (o.dropout_bits.has_value()) {
    guard.dtype(*o.dropout_bits, "dropout_bits", {at::kByte});
    guard.hold(o.dropout_bits->is_contiguous(), "dropout_bits", "a contiguous tensor", o.dropout_bits->strides());
    expect(guard, *o.dropout_bits, "dropout_bits", {guard.sum(first, 7, "query") / 8});
  }
  dropout.active = o.keep_prob < 1;
  dropout.inverse = 1 / o.keep_prob;
  dropout.seed = static_cast<uint64_t>(o.seed);
  dropout.offset = static_cast<uint64_t>(o.offset);
  dropout.limit = static_cast<uint64_t>(std::llround(o.keep_prob * 4294967296.0));
  if (o.dropout_bits.has_value()) dropout.bits = o.dropout_bits->data_ptr<uint8_t>();
}

}  // namespace softnpu::attention::inline CPU_CAPABILITY
