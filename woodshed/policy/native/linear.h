// A linear layer, forward and backward: y [N, O] = x [N, I] w^T with w [O, I]. Operands are float32, or rounded to
// bfloat16; sums and results are float32. O is even, I a multiple of LANES. Bits do not depend on the number of
// threads.
#pragma once
#include <vector>
#include "product.h"

namespace dense {

constexpr long BLOCK = 16 * ROWS; // rows that go through all panels together
constexpr long DEPTH = 512;       // rows of x and grad that the gradient of w adds up at a time

// the bits of a float rounded to bfloat16, in their upper half
inline Bits rounded(Floats values) {
    Bits bits = (Bits)values, even = bits + 0x7fff + (bits >> 16 & 1);
    return (values == values ? even : bits | 0x400000) & 0xffff0000u;
}

// bfloat16 [count] of float32, count even
inline void round_row(const float *from, long count, bfloat16 *to) {
    long i = 0;
    for (; i + LANES <= count; i += LANES) {
        Halves halves = __builtin_convertvector(rounded(load(from + i)) >> 16, Halves);
        std::memcpy(to + i, &halves, sizeof halves);
    }
    for (; i < count; i++) put(to + i, from[i]);
}

// Two rows as pairs, [count, 2]; the second may be null.
inline void pair_rows(const float *first, const float *second, long count, bfloat16 *to) {
    long i = 0;
    for (; i + LANES <= count; i += LANES) {
        Bits pairs = rounded(load(first + i)) >> 16;
        if (second) pairs |= rounded(load(second + i));
        std::memcpy(to + 2 * i, &pairs, sizeof pairs);
    }
    for (; i < count; i++) {
        put(to + 2 * i, first[i]);
        put(to + 2 * i + 1, second ? second[i] : 0.0f);
    }
}

// x [rows, width] as `Kind` reads its rows
template <class Kind> struct Rounded {
    std::vector<bfloat16> room;
    Rounded(int threads, const float *x, long rows, long width) : room(rows * width) {
        (void)threads;
#pragma omp parallel for num_threads(threads)
        for (long n = 0; n < rows; n++) round_row(x + n * width, width, &room[n * width]);
    }
    const bfloat16 *data() const { return room.data(); }
};
template <> struct Rounded<Single<float>> {
    const float *x;
    Rounded(int, const float *x, long, long) : x(x) {}
    const float *data() const { return x; }
};

// x [rows, width] as `Kind` reads the columns of a matrix with so many rows
template <class Kind> struct Paired {
    std::vector<bfloat16> room;
    Paired(int threads, const float *x, long rows, long width) : room(up_to(rows, 2) * width) {
        (void)threads;
#pragma omp parallel for num_threads(threads)
        for (long n = 0; n < rows; n += 2)
            pair_rows(x + n * width, n + 1 < rows ? x + (n + 1) * width : nullptr, width, &room[n * width]);
    }
    const bfloat16 *data() const { return room.data(); }
};
template <> struct Paired<Single<float>> {
    const float *x;
    Paired(int, const float *x, long, long) : x(x) {}
    const float *data() const { return x; }
};

// c [rows, outputs] = x [rows, width] times panels
template <class Kind>
void by_panels(int threads, long rows, long outputs, long width, const float *x, const typename Kind::Right *panels,
               float *c) {
    Rounded<Kind> left(threads, x, rows, width);
#pragma omp parallel for num_threads(threads)
    for (long first = 0; first < rows; first += BLOCK) {
        Rows<Kind> block{left.data() + first * width, width};
        for (long j = 0; j < outputs; j += COLUMNS)
            panel_product<Kind, WIDE>(least(BLOCK, rows - first), block, panels + j * width, COLUMNS, width, nullptr,
                                      c + first * outputs + j, outputs, outputs - j, false);
    }
}

template <class Kind>
void forward(int threads, long rows, long outputs, long width, const float *x, const float *w, float *y) {
    using Right = typename Kind::Right;
    std::vector<Right> panels(up_to(outputs, COLUMNS) * width);
#pragma omp parallel for num_threads(threads)
    for (long o = 0; o < outputs; o++)
        for (long i = 0; i < width; i++)
            put(&panels[o / COLUMNS * COLUMNS * width + Weights<Right>::at(i, o % COLUMNS)], w[o * width + i]);
    by_panels<Kind>(threads, rows, outputs, width, x, panels.data(), y);
}

// grad_x may be null
template <class Kind>
void backward(int threads, long rows, long outputs, long width, const float *grad, const float *x, const float *w,
              float *grad_x, float *grad_w) {
    using Right = typename Kind::Right;
    if (grad_x) { // grad w
        std::vector<Right> panels(up_to(width, COLUMNS) * outputs);
#pragma omp parallel for num_threads(threads)
        for (long j = 0; j < width; j += COLUMNS) {
            Right *panel = &panels[j * outputs];
            long count = least(COLUMNS, width - j);
            for (long o = 0; o < outputs; o += Kind::STEP) {
                if constexpr (Kind::STEP == 2)
                    pair_rows(w + o * width + j, w + (o + 1) * width + j, count, panel + o * COLUMNS);
                else
                    std::memcpy(panel + o * COLUMNS, w + o * width + j, 4 * count);
            }
        }
        by_panels<Kind>(threads, rows, width, outputs, grad, panels.data(), grad_x);
    }
    Paired<Kind> left(threads, grad, rows, outputs), right(threads, x, rows, width); // grad^T x
#pragma omp parallel for num_threads(threads)
    for (long o = 0; o < outputs; o += BLOCK)
        for (long n = 0; n < rows; n += DEPTH) {
            Columns<Kind> block{left.data() + n * outputs + o * Kind::STEP, Kind::STEP, outputs};
            matrix_product<Kind>(least(BLOCK, outputs - o), block, right.data() + n * width, width,
                                 least(DEPTH, rows - n), grad_w + o * width, width, width, n > 0);
        }
}

} // namespace dense
