// Attention of the queries of neighbouring positions of one row, over that row's keys and values [T, E].
#pragma once
#include <vector>
#include "product.h"

constexpr long KEYS = 256;         // number of keys that a chunk attends to at a time
constexpr long QUERIES = 8 * ROWS; // number of queries at a time, so that their scores stay in the cache

// Replaces the first `count` scores by e^(score - top), those up to `padded` by 0, and returns the sum. There must be
// room for whole vectors
inline float exponentials(float *scores, long count, long padded, float top) {
    Floats totals = {};
    long i = 0;
    for (; i + LANES <= count; i += LANES) {
        Floats now = exponential(load(scores + i) - top);
        totals += now;
        store(scores + i, now);
    }
    if (i < count) {
        Floats now = first_of(exponential(load(scores + i) - top), count - i, Floats{});
        totals += now;
        store(scores + i, now), i += LANES;
    }
    for (; i < padded; i += LANES) store(scores + i, Floats{});
    return sum(totals);
}

inline float highest(const float *scores, long count) {
    Floats tops = all(-INFINITY);
    long i = 0;
    for (; i + LANES <= count; i += LANES) tops = highest(tops, load(scores + i));
    if (i < count) tops = highest(tops, first_of(load(scores + i), count - i, tops));
    return highest(tops);
}

// out [rows, E] (+)= p [rows, keys] v [keys, E]
template <class Kind>
void mix(long rows, const float *p, long p_stride, const typename Kind::Right *v, long keys, long E, float *out, bool adds) {
    long e = 0;
    for (; e + COLUMNS <= E; e += COLUMNS)
        panel_product<Kind, WIDE>(rows, Rows<Kind>{p, p_stride}, v + e, E, keys, nullptr, out + e, E, COLUMNS, adds);
    for (; e + LANES <= E; e += LANES)
        panel_product<Kind, 1>(rows, Rows<Kind>{p, p_stride}, v + e, E, keys, nullptr, out + e, E, LANES, adds);
    for (long i = 0; i < rows && e < E; i++) { // the last columns, fewer than a vector
        Floats total = {};
        for (long t = 0; t < keys; t++) total += p[i * p_stride + t] * load_some(v + t * E + e, E - e);
        store_some(out + i * E + e, adds ? load_some(out + i * E + e, E - e) + total : total, E - e);
    }
}

// ---- one token: `queries` is the number of query heads that share a key head ----

#ifdef __AVX512F__
// sums of four vectors, at little more than the cost of one: each addition halves the lanes of two vectors
inline void sum_four(Floats a, Floats b, Floats c, Floats d, float *out) {
    auto halve = [](__m512 a, __m512 b) {
        return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    };
    __m512 quarters = halve(halve((__m512)a, (__m512)b), halve((__m512)c, (__m512)d));
    quarters = _mm512_add_ps(quarters, _mm512_permute_ps(quarters, 0xb1));
    quarters = _mm512_add_ps(quarters, _mm512_permute_ps(quarters, 0x4e));
    out[0] = quarters[0], out[1] = quarters[4], out[2] = quarters[8], out[3] = quarters[12];
}
#else
inline void sum_four(Floats a, Floats b, Floats c, Floats d, float *out) {
    out[0] = sum(a), out[1] = sum(b), out[2] = sum(c), out[3] = sum(d);
}
#endif

// scores of R queries with C keys; C is 1 or 4
template <int R, int C, class W>
inline void dots(const float *q, const W *keys, long E, float *scores, long stride) {
    Floats total[R][4];
#pragma GCC unroll 4
    for (int i = 0; i < R; i++) total[i][0] = total[i][1] = total[i][2] = total[i][3] = Floats{};
    long e = 0;
    for (; e + LANES <= E; e += LANES)
#pragma GCC unroll 4
        for (int j = 0; j < C; j++) {
            Floats key = load(keys + j * E + e);
#pragma GCC unroll 4
            for (int i = 0; i < R; i++) total[i][j] += load(q + i * E + e) * key;
        }
    if (e < E)
#pragma GCC unroll 4
        for (int j = 0; j < C; j++) {
            Floats key = load_some(keys + j * E + e, E - e);
#pragma GCC unroll 4
            for (int i = 0; i < R; i++) total[i][j] += load_some(q + i * E + e, E - e) * key;
        }
#pragma GCC unroll 4
    for (int i = 0; i < R; i++) {
        float four[4];
        sum_four(total[i][0], total[i][1], total[i][2], total[i][3], four);
        std::memcpy(scores + i * stride, four, 4 * C);
    }
}

template <int R, class W> void dots_with(const float *q, const W *keys, long count, long E, float *scores, long stride) {
    long t = 0;
    for (; t + 4 <= count; t += 4) dots<R, 4>(q, keys + t * E, E, scores + t, stride);
    for (; t < count; t++) dots<R, 1>(q, keys + t * E, E, scores + t, stride);
}

// `scores`: room for [queries, stride], stride >= keys
template <class W>
void attend_one(long queries, const float *q, const W *k, const W *v, long keys, long E, float *scores, long stride, float *out) {
    for (long i = 0; i < queries;) {
        const float *from = q + i * E;
        float *to = scores + i * stride;
        switch (queries - i) {
        case 1: dots_with<1>(from, k, keys, E, to, stride), i += 1; break;
        case 2: dots_with<2>(from, k, keys, E, to, stride), i += 2; break;
        case 3: dots_with<3>(from, k, keys, E, to, stride), i += 3; break;
        default: dots_with<4>(from, k, keys, E, to, stride), i += 4;
        }
    }
    float totals[64];
    for (long i = 0; i < queries; i++) {
        float *row = scores + i * stride;
        totals[i] = exponentials(row, keys, keys, highest(row, keys));
    }
    mix<Single<W>>(queries, scores, stride, v, keys, E, out, false);
    for (long i = 0; i < queries; i++)
        for (long e = 0; e < E; e++) out[i * E + e] /= totals[i];
}

// ---- tokens of a chunk: KEYS keys at a time, with a running maximum (Milakov and Gimelshein 2018) ----

struct ChunkRoom {
    std::vector<float> keys, values, scores, tops, totals;
    ChunkRoom(long queries, long E)
        : keys(up_to(KEYS, COLUMNS) * E), values(KEYS * E), scores(QUERIES * KEYS), tops(queries), totals(queries) {}
};

inline const float *as_floats(const float *values, long, float *) { return values; }
inline const float *as_floats(const bfloat16 *values, long count, float *room) {
    for (long i = 0; i < count; i++) room[i] = number(values[i]);
    return room;
}

// q [queries, E]; query i sees the first seen + i / group keys
template <class W>
void attend_many(long queries, long group, long seen, const float *q, const W *k, const W *v, long E, ChunkRoom &room, float *out) {
    long keys = seen + (queries - 1) / group;
    for (long first = 0; first < keys; first += KEYS) {
        long here = least(keys - first, KEYS);
        for (long t = 0; t < here; t++)
            for (long e = 0; e < E; e++)
                room.keys[(t / COLUMNS * E + e) * COLUMNS + t % COLUMNS] = number(k[(first + t) * E + e]);
        const float *values = as_floats(v + first * E, here * E, room.values.data());
        for (long i = 0; i < queries; i += QUERIES) {
            long some = least(queries - i, QUERIES);
            long seen_by_last = least(seen + (i + some - 1) / group - first, here);
            if (seen_by_last <= 0) continue;
            float *scores = room.scores.data();
            for (long t = 0; t < seen_by_last; t += COLUMNS) { // with the queries that see some of these keys
                long skip = most(0, (first + t + 1 - seen) * group - i);
                panel_product<Single<float>, WIDE>(some - skip, Rows<Single<float>>{q + (i + skip) * E, E}, room.keys.data() + t * E, COLUMNS, E,
                                                   nullptr, scores + skip * KEYS + t, KEYS, COLUMNS, false);
            }
            for (long j = i; j < i + some; j++) {
                float *row = scores + (j - i) * KEYS;
                long count = most(0, least(seen + j / group - first, here));
                if (first == 0) room.tops[j] = -INFINITY, room.totals[j] = 0;
                float top = count ? highest(row, count) : -INFINITY;
                top = room.tops[j] > top ? room.tops[j] : top;
                float shrink = first == 0 ? 0.0f : std::exp(room.tops[j] - top);
                room.totals[j] = room.totals[j] * shrink + exponentials(row, count, seen_by_last, top);
                room.tops[j] = top;
                if (first && shrink != 1.0f)
                    for (long e = 0; e < E; e++) out[j * E + e] *= shrink;
            }
            mix<Single<float>>(some, scores, KEYS, values, seen_by_last, E, out + i * E, first > 0);
        }
    }
    for (long i = 0; i < queries; i++)
        for (long e = 0; e < E; e++) out[i * E + e] /= room.totals[i];
}
