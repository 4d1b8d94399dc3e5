// Causal attention, forward and backward, of pieces of any lengths that lie one after the other. A piece starts a sequence
// or continues another piece, which several may continue. The layout is that of `policy/attention.py`.
//
// Scores of a block of queries with all keys that they see stay in the cache: S = Q K^T, P = softmax(S), O = P V. Backward
// computes P from the log of its sum (FlashAttention, Dao et al. 2022, appendix B.2): dV = P^T dO,
// dS = P (dO V^T - dO O), dQ = dS K, dK = dS^T Q. One thread computes a key/value head of a piece, so bits do not depend
// on the number of threads.
#pragma once
#include <vector>
#include "product.h"

namespace ragged {

constexpr long QUERIES = 48, SCORES = 1 << 16;

// c = x b, or c += x b; `depth` rows of b
template <class Left>
void product(long rows, Left x, const float *b, long b_row, long depth, float *c, long c_row, long columns,
             bool adds = false) {
    matrix_product<Single<float>>(rows, x, b, b_row, depth, c, c_row, columns, adds);
}
using Across = Rows<Single<float>>;
using Down = Columns<Single<float>>;

struct Layout {
    long rows, heads, kv_heads, width;
    const int64_t *starts, *counts;    // [rows + 1]: first position, and first query, of each piece
    const int64_t *at;                 // [M]: positions of the queries; null: all
    const int64_t *begins, *context;   // context[begins[row]] to context[begins[row + 1]]: keys that a piece continues

    long before(long row) const { return begins[row + 1] - begins[row]; }
    long keys(long row) const { return before(row) + starts[row + 1] - starts[row]; }
    // position in [N] of a key that a piece sees
    long key(long row, long t) const {
        long first = before(row);
        return t < first ? context[begins[row] + t] : starts[row] + t - first;
    }
    // how many keys a query sees
    long seen(long row, long query) const { return before(row) + (at ? at[query] : query) - starts[row] + 1; }
};

// x [N, K, E] of one piece and head, after what it continues, as [T, E], and with `turned` as [E, T] padded with zeros to `wide` keys
inline void gather(const Layout &of, long row, long head, const float *x, long wide, float *plain, float *turned) {
    long count = of.keys(row), E = of.width;
    for (long t = 0; t < count; t++)
        std::memcpy(plain + t * E, x + (of.key(row, t) * of.kv_heads + head) * E, 4 * E);
    if (!turned) return;
    for (long e = 0; e < E; e++) {
        for (long t = 0; t < count; t++) turned[e * wide + t] = plain[t * E + e];
        for (long t = count; t < wide; t++) turned[e * wide + t] = 0;
    }
}

// work(query, how many, keys that the last of them sees, rounded up to LANES) for blocks of a piece's queries
template <class Work> void in_blocks(const Layout &of, long row, Work work) {
    long most_at_once = most(ROWS, least(QUERIES, SCORES / up_to(of.keys(row), LANES) / ROWS * ROWS));
    for (long first = of.counts[row]; first < of.counts[row + 1]; first += most_at_once) {
        long count = least(most_at_once, of.counts[row + 1] - first);
        work(first, count, up_to(of.seen(row, first + count - 1), LANES));
    }
}

// q, out [M, H, E], k, v [N, K, E], lse [M, H] (the log of the sum over scores)
inline void forward(int threads, const Layout &of, float scale, const float *q, const float *k, const float *v,
                    float *out, float *lse) {
    long E = of.width, H = of.heads, group = H / of.kv_heads;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (long unit = 0; unit < of.rows * of.kv_heads; unit++) {
        long row = unit / of.kv_heads, kv = unit % of.kv_heads, keys = of.keys(row), wide = up_to(keys, LANES);
        if (of.counts[row] == of.counts[row + 1]) continue;
        std::vector<float> key(keys * E), turned(E * wide), value(keys * E), room;
        gather(of, row, kv, k, wide, key.data(), turned.data());
        gather(of, row, kv, v, wide, value.data(), nullptr);
        in_blocks(of, row, [&](long first, long count, long columns) {
            room.resize(count * columns);
            for (long h = kv * group; h < (kv + 1) * group; h++) {
                float *scores = room.data();
                const float *query = q + (first * H + h) * E;
                product(count, Across{query, H * E}, turned.data(), wide, E, scores, columns, columns);
                for (long i = 0; i < count; i++) {
                    float *s = scores + i * columns;
                    long seen = of.seen(row, first + i), t = 0;
                    Floats highs = all(s[0]), sums = {};
                    for (; t + LANES <= seen; t += LANES) highs = highest(highs, load(s + t));
                    if (t < seen) highs = highest(highs, first_of(load(s + t), seen - t, highs));
                    float high = highest(highs) * scale;
                    for (t = 0; t < columns; t += LANES) {
                        Floats e = t < seen ? exponential(load(s + t) * scale - high) : Floats{};
                        if (t + LANES > seen) e = first_of(e, most(0, seen - t), Floats{});
                        store(s + t, e);
                        sums += e;
                    }
                    float total = sum(sums), part = 1.0f / total;
                    lse[(first + i) * H + h] = high + std::log(total);
                    for (t = 0; t < seen; t += LANES) store(s + t, load(s + t) * part);
                }
                product(count, Across{scores, columns}, value.data(), E, least(columns, keys),
                                        out + (first * H + h) * E, H * E, E);
            }
        });
    }
}

// grad_q as q; grad_k, grad_v as k. What pieces send back to the keys that they continue is added up in their order.
inline void backward(int threads, const Layout &of, float scale, const float *grad, const float *q, const float *k,
                     const float *v, const float *out, const float *lse, float *grad_q, float *grad_k, float *grad_v) {
    long E = of.width, H = of.heads, K = of.kv_heads, group = H / K, units = of.rows * K;
    long contexts = of.begins[of.rows];
    std::vector<float> sent(2 * contexts * K * E);
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (long unit = 0; unit < units; unit++) {
        long row = unit / K, kv = unit % K, keys = of.keys(row), wide = up_to(keys, LANES);
        std::vector<float> key(keys * E), key_turned(E * wide), value(keys * E), value_turned(E * wide);
        std::vector<float> key_grad(keys * E), value_grad(keys * E), room;
        gather(of, row, kv, k, wide, key.data(), key_turned.data());
        gather(of, row, kv, v, wide, value.data(), value_turned.data());
        in_blocks(of, row, [&](long first, long count, long columns) {
            room.resize(2 * count * columns);
            long used = least(columns, keys);
            for (long h = kv * group; h < (kv + 1) * group; h++) {
                float *weights = room.data(), *slopes = weights + count * columns;
                const float *query = q + (first * H + h) * E, *from = grad + (first * H + h) * E;
                product(count, Across{query, H * E}, key_turned.data(), wide, E, weights, columns, columns);
                product(count, Across{from, H * E}, value_turned.data(), wide, E, slopes, columns, columns);
                for (long i = 0; i < count; i++) {
                    float *p = weights + i * columns, *d = slopes + i * columns;
                    long seen = of.seen(row, first + i);
                    const float *o = out + ((first + i) * H + h) * E, *g = from + i * H * E;
                    float along = 0, total = lse[(first + i) * H + h];
                    for (long e = 0; e < E; e++) along += g[e] * o[e];
                    for (long t = 0; t < columns; t += LANES) {
                        Floats weight = t < seen ? exponential(load(p + t) * scale - total) : Floats{};
                        if (t + LANES > seen) weight = first_of(weight, most(0, seen - t), Floats{});
                        store(p + t, weight);
                        store(d + t, weight * (load(d + t) - along) * scale);
                    }
                }
                product(count, Across{slopes, columns}, key.data(), E, used, grad_q + (first * H + h) * E, H * E, E);
                product(used, Down{slopes, 1, columns}, query, H * E, count, key_grad.data(), E, E, true);
                product(used, Down{weights, 1, columns}, from, H * E, count, value_grad.data(), E, E, true);
            }
        });
        for (long t = 0; t < keys; t++) {
            bool own = t >= of.before(row);
            long to = ((own ? of.key(row, t) : of.begins[row] + t) * K + kv) * E;
            std::memcpy((own ? grad_k : sent.data()) + to, &key_grad[t * E], 4 * E);
            std::memcpy((own ? grad_v : sent.data() + contexts * K * E) + to, &value_grad[t * E], 4 * E);
        }
    }
    for (long from = 0; from < contexts; from++)
        for (long e = 0; e < K * E; e++) {
            long to = of.context[from] * K * E + e;
            grad_k[to] += sent[from * K * E + e];
            grad_v[to] += sent[(contexts + from) * K * E + e];
        }
}

} // namespace ragged
