// A step of a dense decoder over the engine's key/value cache, on a CPU: computes in one call what `Decoder.forward`
// computes with one operator after another.
//
// Activations are float32; weights, keys and values are float32 or bfloat16. Activations that are multiplied by
// bfloat16 weights are rounded to bfloat16. Names: D model width, H query heads, K key/value heads, E head width,
// F feed-forward width.

#include <new>
#include <type_traits>
#include "attention.h"
#ifdef _OPENMP
#include <omp.h>
inline long this_thread() { return omp_get_thread_num(); }
#else
inline long this_thread() { return 0; }
#endif

struct Layer { // as in kernels.py; matrices in panels, everything else float32
    const float *attn_norm, *qkv_bias, *q_norm, *k_norm, *out_bias, *mlp_norm;
    const void *queries, *pairs, *out, *gate_up, *down;
    void *keys, *values; // [rows, K, length, E]
};

struct Policy {
    int64_t layers, d_model, heads, kv_heads, head_dim, d_ff, length;
    float eps;
    int32_t half; // matrices, keys and values are bfloat16
    const void *embed;
    const float *norm, *rope; // rope [positions, 2 E]: cos, then sin with the first half negated
    const Layer *layer;
};

namespace {

constexpr long BLOCK = 16 * ROWS; // tokens that go through a layer together

void rms_norm(const float *x, const float *weight, long width, float eps, float *out) {
    Floats squares = {};
    long i = 0;
    for (; i + LANES <= width; i += LANES) squares += load(x + i) * load(x + i);
    if (i < width) squares += load_some(x + i, width - i) * load_some(x + i, width - i);
    float scale = 1.0f / std::sqrt(sum(squares) / float(width) + eps);
    for (i = 0; i < width; i++) out[i] = x[i] * scale * weight[i];
}

// out = silu(gate) * up; gate_up holds gate, then up
void swiglu(const float *gate_up, long width, float *out) {
    long i = 0;
    for (; i + LANES <= width; i += LANES) {
        Floats gate = load(gate_up + i);
        store(out + i, gate / (1.0f + exponential(-gate)) * load(gate_up + width + i));
    }
    if (i < width) {
        Floats gate = load_some(gate_up + i, width - i);
        store_some(out + i, gate / (1.0f + exponential(-gate)) * load_some(gate_up + width + i, width - i), width - i);
    }
}

struct Run { // neighbouring tokens of one row within the current block
    long first, count;
};

template <class W> struct Step {
    using Left = typename Weights<W>::Kind::Left;
    const Policy &policy;
    const int64_t *rows, *positions, *alone;
    int threads;
    long D = policy.d_model, H = policy.heads, K = policy.kv_heads, E = policy.head_dim, F = policy.d_ff, group = H / K;
    long stride = 0; // distance between the scores of two queries
    std::vector<float> normed, queries, pairs, mixed, gates, hidden, scores, gathered, answers;
    std::vector<bfloat16> rounded;
    std::vector<ChunkRoom> rooms;

    Step(const Policy &policy, const int64_t *rows, const int64_t *positions, const int64_t *alone, long count, int threads)
        : policy(policy), rows(rows), positions(positions), alone(alone), threads(threads) {
        bool chunks = false;
        for (long i = 0; i < count; i++) stride = most(stride, up_to(positions[i] + 1, LANES)), chunks |= !alone[i];
        long block = least(count, BLOCK);
        normed.resize(block * D), queries.resize(block * H * E), pairs.resize(block * 2 * K * E);
        mixed.resize(block * H * E), gates.resize(block * 2 * F), hidden.resize(block * F);
        scores.resize(threads * group * stride);
        gathered.resize(threads * block * group * E), answers.resize(threads * block * group * E);
        rounded.resize(block * most(most(D, F), H * E));
        for (int i = 0; chunks && i < threads; i++) rooms.emplace_back(block * group, E);
    }

    // c (+)= x w^T
    void multiply(long count, const float *x, long width, const void *w, const float *bias, long outputs, float *c, bool adds) {
        const Left *left;
        if constexpr (std::is_same_v<Left, float>)
            left = x;
        else {
            for (long i = 0; i < count * width; i++) put(&rounded[i], x[i]);
            left = rounded.data();
        }
        linear<W>(threads, count, outputs, width, left, (const W *)w, bias, c, adds);
    }

    void norms(const float *x, const float *weight, long count) {
        for (long i = 0; i < count; i++) rms_norm(x + i * D, weight, D, policy.eps, normed.data() + i * D);
    }

    // normalises one head of one token if there is a `norm`, applies the rotary embedding and multiplies by `scale`
    void turn(float *head, const float *norm, int64_t position, float scale) {
        if (norm) rms_norm(head, norm, E, policy.eps, head);
        const float *cosine = policy.rope + position * 2 * E, *sine = cosine + E;
        for (long e = 0, half = E / 2; e < half; e++) {
            float a = head[e], b = head[half + e];
            head[e] = (a * cosine[e] + b * sine[e]) * scale;
            head[half + e] = (b * cosine[half + e] + a * sine[half + e]) * scale;
        }
    }

    // writes keys and values of tokens [first, first + count) into the cache; reads `normed`
    void remember(const Layer &layer, long first, long count) {
        multiply(count, normed.data(), D, layer.pairs, layer.qkv_bias ? layer.qkv_bias + H * E : nullptr, 2 * K * E,
                 pairs.data(), false);
        for (long i = 0; i < count; i++)
            for (long k = 0; k < K; k++) {
                float *key = pairs.data() + i * 2 * K * E + k * E, *value = key + K * E;
                turn(key, layer.k_norm, positions[first + i], 1.0f);
                long at = ((rows[first + i] * K + k) * policy.length + positions[first + i]) * E;
                for (long e = 0; e < E; e++) put((W *)layer.keys + at + e, key[e]), put((W *)layer.values + at + e, value[e]);
            }
    }

    // `which`: indices in the step of the tokens of the current block. A token of a chunk is computed in the same way
    // however many of its neighbours are in the block
    void attend(const Layer &layer, const int64_t *which, Run run, long k, long thread) {
        long token = which[run.first], E = this->E, size = group * E;
        float *q = gathered.data() + thread * least(BLOCK, long(normed.size()) / D) * size;
        float *out = answers.data() + thread * least(BLOCK, long(normed.size()) / D) * size;
        long at = (rows[token] * K + k) * policy.length * E;
        const W *keys = (const W *)layer.keys + at, *values = (const W *)layer.values + at;
        for (long i = 0; i < run.count; i++)
            std::memcpy(q + i * size, queries.data() + (run.first + i) * H * E + k * size, 4 * size);
        if (alone[token])
            attend_one(group, q, keys, values, positions[token] + 1, E, scores.data() + thread * group * stride, stride, out);
        else
            attend_many(run.count * group, group, positions[token] + 1, q, keys, values, E, rooms[thread], out);
        for (long i = 0; i < run.count; i++)
            std::memcpy(mixed.data() + (run.first + i) * H * E + k * size, out + i * size, 4 * size);
    }

    // replaces x [count, D] by the output of the layer; reads `normed`
    void advance(const Layer &layer, const int64_t *which, long count, float *x) {
        multiply(count, normed.data(), D, layer.queries, layer.qkv_bias, H * E, queries.data(), false);
        float scale = 1.0f / std::sqrt(float(E));
        for (long i = 0; i < count * H; i++)
            turn(queries.data() + i * E, layer.q_norm, positions[which[i / H]], scale);
        std::vector<Run> runs;
        for (long i = 0; i < count; i++) {
            bool follows = i && !alone[which[i]] && rows[which[i]] == rows[which[i - 1]] &&
                           positions[which[i]] == positions[which[i - 1]] + 1;
            if (follows)
                runs.back().count++;
            else
                runs.push_back({i, 1});
        }
        long works = long(runs.size()) * K;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(dynamic)
        for (long work = 0; work < works; work++) attend(layer, which, runs[work / K], work % K, this_thread());
        multiply(count, mixed.data(), H * E, layer.out, layer.out_bias, D, x, true);
        norms(x, layer.mlp_norm, count);
        multiply(count, normed.data(), D, layer.gate_up, nullptr, 2 * F, gates.data(), false);
        for (long i = 0; i < count; i++) swiglu(gates.data() + i * 2 * F, F, hidden.data() + i * F);
        multiply(count, hidden.data(), F, layer.down, nullptr, D, x, true);
    }

    void run(const int64_t *tokens, long count, const int64_t *ends, long wanted, float *x, float *out) {
        std::vector<int64_t> every(count);
        for (long i = 0; i < count; i++) {
            every[i] = i;
            for (long d = 0; d < D; d++) x[i * D + d] = number(((const W *)policy.embed)[tokens[i] * D + d]);
        }
        for (long l = 0; l < policy.layers; l++) {
            bool some = ends && l + 1 == policy.layers;
            for (long first = 0; first < count; first += BLOCK) {
                long here = least(count - first, BLOCK);
                norms(x + first * D, policy.layer[l].attn_norm, here);
                remember(policy.layer[l], first, here);
                if (!some) advance(policy.layer[l], every.data() + first, here, x + first * D);
            }
            if (!some) continue;
            for (long i = 0; i < wanted; i++) std::memcpy(out + i * D, x + ends[i] * D, 4 * D);
            for (long first = 0; first < wanted; first += BLOCK) {
                long here = least(wanted - first, BLOCK);
                norms(out + first * D, policy.layer[l].attn_norm, here);
                advance(policy.layer[l], ends + first, here, out + first * D);
            }
        }
        for (long i = 0; i < wanted; i++) rms_norm((ends ? out : x) + i * D, policy.norm, D, policy.eps, out + i * D);
    }
};

} // namespace

extern "C" {

// Computes a step of n tokens and writes their keys and values into the cache. `out`: hidden states after the final
// norm, float32 [m, D], of the tokens with index `ends` [m]; if `ends` is null, of all tokens (m is n). `tokens`,
// `rows` (of the cache), `positions` and `alone` (nonzero: a decoding token, not part of a chunk) are [n]; tokens of a
// chunk are consecutive. `x` is scratch memory for [n, D]. Returns 0, or 1 if memory ran out.
int woodshed_step(const Policy *policy, int threads, long n, const int64_t *tokens, const int64_t *rows,
                  const int64_t *positions, const int64_t *alone, const int64_t *ends, long m, float *x, float *out) try {
    if (policy->half)
        Step<bfloat16>(*policy, rows, positions, alone, n, threads).run(tokens, n, ends, m, x, out);
    else
        Step<float>(*policy, rows, positions, alone, n, threads).run(tokens, n, ends, m, x, out);
    return 0;
} catch (const std::bad_alloc &) {
    return 1;
}

// `out` = x [n, width] times a matrix in panels, float32 [n, outputs]; x is rounded to bfloat16 if the matrix is
// bfloat16. Returns 0 or 1 as above
int woodshed_linear(int threads, int half, long n, long outputs, long width, const float *x, const void *panels, float *out) try {
    std::vector<bfloat16> rounded(half ? n * width : 0);
    for (long i = 0; i < long(rounded.size()); i++) put(&rounded[i], x[i]);
    for (long first = 0; first < n; first += BLOCK) {
        long count = least(n - first, BLOCK);
        float *to = out + first * outputs;
        if (half)
            linear(threads, count, outputs, width, rounded.data() + first * width, (const bfloat16 *)panels, nullptr, to, false);
        else
            linear(threads, count, outputs, width, x + first * width, (const float *)panels, nullptr, to, false);
    }
    return 0;
} catch (const std::bad_alloc &) {
    return 1;
}

// number of floats that all vector registers hold together
int woodshed_registers() { return REGISTERS * LANES; }

long woodshed_packed_size(long outputs, long width) { return packed_size(outputs, width); }

// `panels` must hold `woodshed_packed_size` zeros
void woodshed_pack(int half, long outputs, long width, const void *w, void *panels) {
    if (half)
        pack((const bfloat16 *)w, outputs, width, (bfloat16 *)panels);
    else
        pack((const float *)w, outputs, width, (float *)panels);
}
}
