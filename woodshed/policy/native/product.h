// Products of few or many rows with a matrix that lies in panels: c[m, n] = sum over k of x[m, k] panel[k, n].
//
// A panel holds some columns for all k. Every output is summed in the order of k, however many rows there are, so the
// result for a token does not depend on the rest of the batch.
#pragma once
#include <type_traits>
#include "vectors.h"

constexpr int WIDE = REGISTERS == 32 ? 4 : 2; // width of a panel in vectors
constexpr int COLUMNS = WIDE * LANES;
constexpr int ROWS = 6; // maximum number of rows of x computed at once

// Ways to read x and a panel. STEP: number of values of k read at a time.
template <class Matrix> struct Single { // x is float32, the panel float32 or bfloat16
    using Left = float;
    using Right = Matrix;
    static constexpr int STEP = 1;
    template <int R, int C> static void add(Floats (&total)[R][C], const float *x, long stride, const Matrix *panel) {
        Floats right[C];
        for (int j = 0; j < C; j++) right[j] = load(panel + j * LANES);
        for (int i = 0; i < R; i++)
            for (int j = 0; j < C; j++) total[i][j] += x[i * stride] * right[j];
    }
};
struct Pairs { // both are bfloat16; values of two consecutive k are adjacent in the panel
    using Left = bfloat16;
    using Right = bfloat16;
    static constexpr int STEP = 2;
    template <int R, int C> static void add(Floats (&total)[R][C], const bfloat16 *x, long stride, const bfloat16 *panel) {
        Bits right[C];
        for (int j = 0; j < C; j++) right[j] = take<Bits>(panel + 2 * j * LANES);
        for (int i = 0; i < R; i++) {
            uint32_t pair = take<uint32_t>(x + i * stride);
#ifdef __AVX512BF16__
            for (int j = 0; j < C; j++)
                total[i][j] = (Floats)_mm512_dpbf16_ps((__m512)total[i][j], (__m512bh)_mm512_set1_epi32(int(pair)),
                                                       (__m512bh)right[j]);
#else
            uint32_t low = pair << 16, high = pair & 0xffff0000u;
            for (int j = 0; j < C; j++) {
                total[i][j] += take<float>(&low) * (Floats)(right[j] << 16);
                total[i][j] += take<float>(&high) * (Floats)(right[j] & 0xffff0000u);
            }
#endif
        }
    }
};

// x[m, k] is at m * stride + k * along; STEP values of k are adjacent
template <class Kind> struct Rows {
    const typename Kind::Left *x;
    long stride;
    static constexpr long along = 1;
};
template <class Kind> struct Columns {
    const typename Kind::Left *x;
    long stride, along;
};

// computes R rows and C vectors of columns; only the first `columns` columns are written
template <class Kind, int R, int C, class Left>
void tile(Left rows, const typename Kind::Right *panel, long panel_stride, long width, const float *bias, float *c,
          long c_stride, long columns, bool adds) {
    Floats total[R][C];
#pragma GCC unroll 8
    for (int i = 0; i < R; i++)
#pragma GCC unroll 4
        for (int j = 0; j < C; j++) total[i][j] = Floats{};
    for (long k = 0; k < width; k += Kind::STEP)
        Kind::template add<R, C>(total, rows.x + k * rows.along, rows.stride, panel + k * panel_stride);
#pragma GCC unroll 8
    for (int i = 0; i < R; i++)
#pragma GCC unroll 4
        for (int j = 0; j < C; j++) {
            long count = least(columns - j * LANES, LANES);
            float *at = c + i * c_stride + j * LANES;
            if (count == LANES) {
                Floats value = total[i][j];
                if (bias) value += load(bias + j * LANES);
                store(at, adds ? load(at) + value : value);
            } else if (count > 0) {
                Floats value = total[i][j];
                if (bias) value += load_some(bias + j * LANES, count);
                store_some(at, adds ? load_some(at, count) + value : value, count);
            }
        }
}

// multiplies all rows by one panel
template <class Kind, int C, class Left>
void panel_product(long rows, Left x, const typename Kind::Right *panel, long panel_stride, long width,
                   const float *bias, float *c, long c_stride, long columns, bool adds) {
    long tiles = (rows + ROWS - 1) / ROWS;
    for (long t = 0, m = 0; t < tiles; t++) {
        long count = (rows - m) / (tiles - t); // tiles of almost equal size
        Left from = x;
        from.x += m * x.stride;
        float *to = c + m * c_stride;
        auto run = [&](auto fixed) {
            tile<Kind, decltype(fixed)::value, C>(from, panel, panel_stride, width, bias, to, c_stride, columns, adds);
        };
        switch (count) {
        case 1: run(std::integral_constant<int, 1>()); break;
        case 2: run(std::integral_constant<int, 2>()); break;
        case 3: run(std::integral_constant<int, 3>()); break;
        case 4: run(std::integral_constant<int, 4>()); break;
        case 5: run(std::integral_constant<int, 5>()); break;
        default: run(std::integral_constant<int, 6>());
        }
        m += count;
    }
}

// multiplies all rows by a matrix that is one panel, of any multiple of LANES columns
template <class Kind, class Left>
void matrix_product(long rows, Left x, const typename Kind::Right *matrix, long stride, long width, float *c,
                    long c_stride, long columns, bool adds) {
    auto from = [&](long j) { return matrix + j * Kind::STEP; };
    long j = 0;
    for (; j + COLUMNS <= columns; j += COLUMNS)
        panel_product<Kind, WIDE>(rows, x, from(j), stride, width, nullptr, c + j, c_stride, COLUMNS, adds);
    for (; j + 2 * LANES <= columns; j += 2 * LANES)
        panel_product<Kind, 2>(rows, x, from(j), stride, width, nullptr, c + j, c_stride, 2 * LANES, adds);
    for (; j < columns; j += LANES)
        panel_product<Kind, 1>(rows, x, from(j), stride, width, nullptr, c + j, c_stride, LANES, adds);
}

// ---- matrices of weights, [outputs, width] as torch has them, in panels ----

constexpr double WORTH_THREADS = 1 << 20; // number of multiplications above which several threads are used

template <class W> struct Weights; // position of a value within its panel, and the type of x
template <> struct Weights<float> {
    using Kind = Single<float>;
    static long at(long k, long column) { return k * COLUMNS + column; }
};
template <> struct Weights<bfloat16> {
    using Kind = Pairs;
    static long at(long k, long column) { return k / 2 * 2 * COLUMNS + 2 * column + k % 2; }
};

// number of elements of the panels of a matrix; padding must be zero
inline long packed_size(long outputs, long width) { return up_to(outputs, COLUMNS) * up_to(width, 2); }

template <class W> void pack(const W *w, long outputs, long width, W *panels) {
    long size = COLUMNS * up_to(width, 2);
    for (long n = 0; n < outputs; n++)
        for (long k = 0; k < width; k++) panels[n / COLUMNS * size + Weights<W>::at(k, n % COLUMNS)] = w[n * width + k];
}

// c [rows, outputs] (+)= x [rows, width] w^T (+ bias). For bfloat16 weights x is bfloat16 too, and `width` must be even
template <class W>
void linear(int threads, long rows, long outputs, long width, const typename Weights<W>::Kind::Left *x, const W *panels,
            const float *bias, float *c, bool adds) {
    using Kind = typename Weights<W>::Kind;
    long count = (outputs + COLUMNS - 1) / COLUMNS, size = COLUMNS * up_to(width, 2);
    (void)threads;
#pragma omp parallel for num_threads(threads) if (threads > 1 && double(rows) * outputs * width > WORTH_THREADS)
    for (long p = 0; p < count; p++)
        panel_product<Kind, WIDE>(rows, Rows<Kind>{x, width}, panels + p * size, COLUMNS, width,
                                  bias ? bias + p * COLUMNS : nullptr, c + p * COLUMNS, outputs, outputs - p * COLUMNS,
                                  adds);
}
