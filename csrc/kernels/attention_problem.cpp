// The description of an attention problem, made from the operators' arguments. See attention.h.
#include "attention.h"

namespace softnpu::attention {

namespace {

int64_t pick(const IntList& list, int64_t index, int64_t otherwise) {
  if (!list.has_value() || list->empty()) return otherwise;
  return (*list)[list->size() == 1 ? 0 : index];
}

}  // namespace

void expect(const at::Tensor& t, const char* name, at::IntArrayRef least, bool repeats) {
  bool fits = t.dim() == static_cast<int64_t>(least.size());
  for (int64_t d = 0; fits && d < t.dim(); ++d) fits = t.size(d) >= least[d] || (repeats && t.size(d) == 1);
  TORCH_CHECK(fits, "softnpu::attention: ", name, " must be at least of shape ", least, ", received ", t.sizes());
}

Problem::Problem(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Options& o)
    : heads(q.size(1)),
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
  TORCH_CHECK(q.dim() == 4 && k.dim() == 4 && v.dim() == 4, "softnpu::attention: query, key and value are 4-D");
  TORCH_CHECK(o.keep_prob > 0 && o.keep_prob <= 1, "softnpu::attention: keep_prob is ", o.keep_prob);
  TORCH_CHECK(k.size(3) == d && v.size(0) == k.size(0) && v.size(1) == kv_heads && v.size(2) == k.size(2) &&
                  group * kv_heads == heads && k.scalar_type() == q.scalar_type() && v.scalar_type() == q.scalar_type(),
              "softnpu::attention: query, key and value do not fit together");
  const int64_t far = int64_t(1) << 40;
  const int64_t count = o.q_len.has_value() ? static_cast<int64_t>(o.q_len->size()) : std::max(q.size(0), k.size(0));
  const bool paged = o.pages.has_value() && o.pages->defined();
  if (paged) {
    TORCH_CHECK(o.pages->dim() == 2 && o.pages->size(0) == count && o.pages->scalar_type() == at::kLong,
                "softnpu::attention: pages must be int64, one row a segment");
    page_size = k.size(2);
    page_count = o.pages->size(1);
    const at::Tensor table = o.pages->contiguous();
    pages.assign(table.const_data_ptr<int64_t>(), table.const_data_ptr<int64_t>() + table.numel());
    for (const int64_t block : pages) {
      TORCH_CHECK_INDEX(block >= 0 && block < k.size(0), "softnpu::attention: there is no block ", block);
    }
  }
  const int64_t tokens = paged ? page_size * page_count : k.size(2);
  int64_t first = 0, rows = 0, columns = 0;
  for (int64_t b = 0; b < count; ++b) {
    Segment s{
        pick(o.q_start, b, 0),     pick(o.q_len, b, q.size(2)), pick(o.kv_start, b, 0), pick(o.kv_len, b, k.size(2)),
        pick(o.band_low, b, -far), pick(o.band_high, b, far),   pick(o.prefix, b, 0),   first};
    s.low = std::max(s.low, -far);
    s.high = std::min(s.high, far);
    TORCH_CHECK(s.q_start >= 0 && s.q_len >= 0 && s.q_start + s.q_len <= q.size(2) && s.kv_start >= 0 &&
                    s.kv_len >= 0 && s.kv_start + s.kv_len <= tokens,
                "softnpu::attention: segment ", b, " lies outside the sequence");
    s.prefix = std::clamp<int64_t>(s.prefix, 0, s.kv_len);
    first += heads * s.q_len * s.kv_len;
    segments.push_back(s);
    rows = std::max(rows, s.q_len);
    columns = std::max(columns, s.kv_len);
  }
  TORCH_CHECK((q.size(0) == 1 || q.size(0) == count) && (paged || k.size(0) == 1 || k.size(0) == count),
              "softnpu::attention: ", count, " segments in batches of ", q.size(0), " and ", k.size(0));
  if (mask) {
    TORCH_CHECK(mask.type == at::kBool || mask.type == at::kByte, "softnpu::attention: mask is ", mask.type);
    expect(*o.mask, "mask", {count, heads, rows, columns}, true);
  }
  if (bias) {
    expect(*o.bias, "bias", {count, heads, bias_toeplitz ? 1 : rows, columns}, true);
    bias_rows = o.bias->size(2);
    bias_columns = o.bias->size(3);
  }
  if (slopes) expect(*o.slopes, "slopes", {count, heads}, true);
  if (sink) expect(*o.sink, "sink", {heads});
  TORCH_CHECK((!slopes || slopes.type == at::kFloat) && (!sink || sink.type == at::kFloat),
              "softnpu::attention: slopes and sink must be float32");
  if (o.dropout_bits.has_value()) expect(*o.dropout_bits, "dropout_bits", {(first + 7) / 8});
  dropout.active = o.keep_prob < 1;
  dropout.inverse = 1 / o.keep_prob;
  dropout.seed = static_cast<uint64_t>(o.seed);
  dropout.offset = static_cast<uint64_t>(o.offset);
  dropout.limit = static_cast<uint64_t>(std::llround(o.keep_prob * 4294967296.0));
  if (o.dropout_bits.has_value()) dropout.bits = o.dropout_bits->data_ptr<uint8_t>();
}

}  // namespace softnpu::attention
