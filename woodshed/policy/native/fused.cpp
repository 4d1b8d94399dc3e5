// Operators of a training step, forward and backward: those between matrix products, each in one pass over memory, then
// attention (ragged.h) and linear layers (linear.h).
//
// All float32 and contiguous. Names: N rows (tokens), D width, H query heads, K key/value heads, E head width, F
// feed-forward width, V vocabulary. Gradients of weights are summed over PARTS parts of the rows and then over the parts,
// so they do not depend on the number of threads.

#include <vector>
#include "linear.h"
#include "ragged.h"

namespace {

constexpr long PARTS = 64;

// calls work(part, first row, row after the last) for every part of `rows`
template <class Work> void in_parts(int threads, long rows, Work work) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long part = 0; part < PARTS; part++) {
        long first = rows * part / PARTS, end = rows * (part + 1) / PARTS;
        if (first < end) work(part, first, end);
    }
}

void add_up(const std::vector<float> &parts, long width, float *out) {
    for (long i = 0; i < width; i++) out[i] = 0;
    for (long part = 0; part < PARTS; part++)
        for (long i = 0; i < width; i++) out[i] += parts[part * width + i];
}

float dot(const float *a, const float *b, long width) {
    float total = 0;
#pragma omp simd reduction(+ : total)
    for (long i = 0; i < width; i++) total += a[i] * b[i];
    return total;
}

float inverse_root(const float *x, long width, float eps) { return 1.0f / std::sqrt(dot(x, x, width) / width + eps); }

// for y = x * scale * weight with scale = 1 / sqrt(mean(x^2) + eps): grad_x = d loss / d x, plus `more` unless that is
// null; adds d loss / d weight to grad_weight
void norm_backward(const float *grad, const float *x, const float *weight, float scale, long width, const float *more,
                   float *grad_x, float *grad_weight) {
    float along = 0;
#pragma omp simd reduction(+ : along)
    for (long i = 0; i < width; i++) along += grad[i] * weight[i] * x[i];
    float pull = along * scale * scale * scale / width;
#pragma omp simd
    for (long i = 0; i < width; i++) {
        float own = grad[i] * weight[i] * scale - x[i] * pull;
        grad_weight[i] += grad[i] * x[i] * scale;
        grad_x[i] = more ? more[i] + own : own;
    }
}

// turn: cos for both halves, then sin for both, the first negated; `back` rotates in the opposite direction
void rotate(const float *x, const float *turn, long half, bool back, float *out) {
    const float *cos = turn, *sin = turn + 3 * half;
    float sign = back ? -1.0f : 1.0f;
#pragma omp simd
    for (long i = 0; i < half; i++) {
        float low = x[i], high = x[half + i], s = sign * sin[i];
        out[i] = low * cos[i] - high * s;
        out[half + i] = high * cos[i] + low * s;
    }
}

// calls work(index, count) for each vector of `width` floats; the last one may have fewer than LANES
template <class Work> void in_vectors(long width, Work work) {
    long i = 0;
    for (; i + LANES <= width; i += LANES) work(i, LANES);
    if (i < width) work(i, width - i);
}
inline Floats get(const float *from, long count) { return count == LANES ? load(from) : load_some(from, count); }
inline void set(float *to, Floats values, long count) {
    if (count == LANES)
        store(to, values);
    else
        store_some(to, values, count);
}

// e^x, but exactly 0 below -87, also for -inf; nan stays nan
inline Floats weight_of(Floats x) {
    Floats e = exponential(x);
    return x < all(-87.0f) ? Floats{} : e;
}

} // namespace

extern "C" {

int woodshed_registers() { return REGISTERS * LANES; }
int woodshed_lanes() { return LANES; }

// total = x + delta (not written without delta: the total is x then), out = total * scale * weight,
// scale = 1 / sqrt(mean(total^2) + eps)
void woodshed_add_norm(int threads, long rows, long width, float eps, const float *x, const float *delta,
                       const float *weight, float *total, float *out, float *scale) {
    in_parts(threads, rows, [&](long, long first, long end) {
        for (long n = first; n < end; n++) {
            const float *row = x + n * width;
            if (delta) {
                float *sum = total + n * width;
                const float *more = delta + n * width;
#pragma omp simd
                for (long i = 0; i < width; i++) sum[i] = row[i] + more[i];
                row = sum;
            }
            float s = scale[n] = inverse_root(row, width, eps), *to = out + n * width;
#pragma omp simd
            for (long i = 0; i < width; i++) to[i] = row[i] * s * weight[i];
        }
    });
}

// `grad_total` is null if only the norm uses the sum
void woodshed_add_norm_backward(int threads, long rows, long width, const float *grad, const float *grad_total,
                                const float *total, const float *weight, const float *scale, float *grad_x,
                                float *grad_weight) {
    std::vector<float> parts(PARTS * width);
    in_parts(threads, rows, [&](long part, long first, long end) {
        for (long n = first; n < end; n++) {
            long at = n * width;
            norm_backward(grad + at, total + at, weight, scale[n], width, grad_total ? grad_total + at : nullptr,
                          grad_x + at, &parts[part * width]);
        }
    });
    add_up(parts, width, grad_weight);
}

// q [N, H, E], k [N, K, E] and v [N, K, E] of qkv [N, H + 2 K, E]; q and k are normalised (if there are weights) and
// rotated by turn [N, 2 E]; scale [N, H + K].
void woodshed_split_heads(int threads, long rows, long heads, long kv_heads, long width, float eps, const float *qkv,
                    const float *q_norm, const float *k_norm, const float *turn, float *q, float *k, float *v,
                    float *scale) {
    long turned = heads + kv_heads, all_heads = turned + kv_heads;
    in_parts(threads, rows, [&](long, long first, long end) {
        std::vector<float> normal(width);
        for (long n = first; n < end; n++) {
            for (long h = 0; h < turned; h++) {
                const float *x = qkv + (n * all_heads + h) * width, *weight = h < heads ? q_norm : k_norm;
                float *to = h < heads ? q + (n * heads + h) * width : k + (n * kv_heads + h - heads) * width;
                if (weight) {
                    float s = scale[n * turned + h] = inverse_root(x, width, eps), *y = normal.data();
#pragma omp simd
                    for (long i = 0; i < width; i++) y[i] = x[i] * s * weight[i];
                    x = y;
                }
                rotate(x, turn + n * 2 * width, width / 2, false, to);
            }
            std::memcpy(v + n * kv_heads * width, qkv + (n * all_heads + turned) * width, 4 * kv_heads * width);
        }
    });
}

void woodshed_split_heads_backward(int threads, long rows, long heads, long kv_heads, long width, const float *grad_q,
                             const float *grad_k, const float *grad_v, const float *qkv, const float *q_norm,
                             const float *k_norm, const float *turn, const float *scale, float *grad_qkv,
                             float *grad_q_norm, float *grad_k_norm) {
    long turned = heads + kv_heads, all_heads = turned + kv_heads;
    std::vector<float> q_parts(PARTS * width), k_parts(PARTS * width);
    in_parts(threads, rows, [&](long part, long first, long end) {
        std::vector<float> back(width);
        for (long n = first; n < end; n++) {
            for (long h = 0; h < turned; h++) {
                bool query = h < heads;
                long at = (n * all_heads + h) * width;
                const float *g = query ? grad_q + (n * heads + h) * width : grad_k + (n * kv_heads + h - heads) * width;
                const float *weight = query ? q_norm : k_norm;
                rotate(g, turn + n * 2 * width, width / 2, true, weight ? back.data() : grad_qkv + at);
                if (weight)
                    norm_backward(back.data(), qkv + at, weight, scale[n * turned + h], width, nullptr, grad_qkv + at,
                                  &(query ? q_parts : k_parts)[part * width]);
            }
            std::memcpy(grad_qkv + (n * all_heads + turned) * width, grad_v + n * kv_heads * width,
                        4 * kv_heads * width);
        }
    });
    if (q_norm) add_up(q_parts, width, grad_q_norm);
    if (k_norm) add_up(k_parts, width, grad_k_norm);
}

// out [N, F] = silu(gate) * up; gate_up [N, 2 F]
void woodshed_swiglu(int threads, long rows, long width, const float *gate_up, float *out) {
    in_parts(threads, rows, [&](long, long first, long end) {
        for (long n = first; n < end; n++) {
            const float *gates = gate_up + 2 * n * width;
            in_vectors(width, [&](long i, long count) {
                Floats gate = get(gates + i, count);
                set(out + n * width + i, gate / (1.0f + exponential(-gate)) * get(gates + width + i, count), count);
            });
        }
    });
}

void woodshed_swiglu_backward(int threads, long rows, long width, const float *grad, const float *gate_up,
                              float *grad_gate_up) {
    in_parts(threads, rows, [&](long, long first, long end) {
        for (long n = first; n < end; n++) {
            const float *gates = gate_up + 2 * n * width;
            float *to = grad_gate_up + 2 * n * width;
            in_vectors(width, [&](long i, long count) {
                Floats gate = get(gates + i, count), up = get(gates + width + i, count), g = get(grad + n * width + i, count);
                Floats open = 1.0f / (1.0f + exponential(-gate));
                set(to + i, g * up * open * (1.0f + gate * (1.0f - open)), count);
                set(to + width + i, g * gate * open, count);
            });
        }
    });
}

// lse = log sum exp of each row of logits [N, V]; if `entropy` is not null, also the entropy of its softmax
void woodshed_logsumexp(int threads, long rows, long width, const float *logits, float *lse, float *entropy) {
    in_parts(threads, rows, [&](long, long first, long end) {
        for (long n = first; n < end; n++) {
            const float *row = logits + n * width;
            Floats highs = all(row[0]), totals = {}, means = {};
            in_vectors(width, [&](long i, long count) { highs = highest(highs, first_of(get(row + i, count), count, highs)); });
            float high = highest(highs);
            in_vectors(width, [&](long i, long count) {
                Floats x = get(row + i, count) - high, e = first_of(weight_of(x), count, Floats{});
                totals += e;
                if (entropy) means += e * highest(x, all(-87.0f)); // avoids 0 * -inf
            });
            float total = sum(totals);
            lse[n] = high + std::log(total);
            if (entropy) entropy[n] = std::log(total) - sum(means) / total;
        }
    });
}

// overwrites logits [N, V] by d loss / d logits = slope (onehot(target) - softmax), slope = d loss / d logp(target)
void woodshed_logits_gradient(int threads, long rows, long width, const int64_t *target, const float *lse,
                              const float *slope, float *logits) {
    in_parts(threads, rows, [&](long, long first, long end) {
        for (long n = first; n < end; n++) {
            float *row = logits + n * width, down = -slope[n], shift = lse[n];
            in_vectors(width, [&](long i, long count) {
                set(row + i, down * weight_of(get(row + i, count) - shift), count);
            });
            row[target[n]] += slope[n];
        }
    });
}

// see ragged.h
void woodshed_attention(int threads, long rows, long heads, long kv_heads, long width, float scale, const int64_t *starts,
                        const int64_t *counts, const int64_t *at, const int64_t *begins, const int64_t *context,
                        const float *q, const float *k, const float *v, float *out, float *lse) {
    ragged::Layout of{rows, heads, kv_heads, width, starts, counts, at, begins, context};
    ragged::forward(threads, of, scale, q, k, v, out, lse);
}

void woodshed_attention_backward(int threads, long rows, long heads, long kv_heads, long width, float scale,
                                 const int64_t *starts, const int64_t *counts, const int64_t *at, const int64_t *begins,
                                 const int64_t *context, const float *grad, const float *q, const float *k,
                                 const float *v, const float *out, const float *lse, float *grad_q, float *grad_k,
                                 float *grad_v) {
    ragged::Layout of{rows, heads, kv_heads, width, starts, counts, at, begins, context};
    ragged::backward(threads, of, scale, grad, q, k, v, out, lse, grad_q, grad_k, grad_v);
}

// see linear.h; `half`: operands are rounded to bfloat16
void woodshed_linear(int threads, long half, long rows, long outputs, long width, const float *x, const float *w, float *y) {
    (half ? dense::forward<Pairs> : dense::forward<Single<float>>)(threads, rows, outputs, width, x, w, y);
}

void woodshed_linear_backward(int threads, long half, long rows, long outputs, long width, const float *grad, const float *x,
                              const float *w, float *grad_x, float *grad_w) {
    (half ? dense::backward<Pairs> : dense::backward<Single<float>>)(threads, rows, outputs, width, grad, x, w, grad_x,
                                                                     grad_w);
}
}
