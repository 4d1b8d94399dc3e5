// Vectors of floats as wide as the processor's, in the extension that GCC and Clang share.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int LANES = 16, REGISTERS = 32;
#elif defined(__AVX__)
constexpr int LANES = 8, REGISTERS = 16;
#elif defined(__aarch64__)
constexpr int LANES = 4, REGISTERS = 32;
#else
constexpr int LANES = 4, REGISTERS = 16;
#endif

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t Bits __attribute__((vector_size(4 * LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));

struct bfloat16 {
    uint16_t bits;
};

inline long least(long a, long b) { return a < b ? a : b; }
inline long most(long a, long b) { return a > b ? a : b; }
inline long up_to(long count, long multiple) { return (count + multiple - 1) / multiple * multiple; }

inline Floats all(float value) { return Floats{} + value; }
inline Floats widen(Halves halves) { return (Floats)(__builtin_convertvector(halves, Bits) << 16); }

template <class T> inline T take(const void *from) {
    T out;
    std::memcpy(&out, from, sizeof out);
    return out;
}
template <class T> inline T take_some(const void *from, long bytes) {
    T out = {};
    std::memcpy(&out, from, bytes);
    return out;
}
inline Floats load(const float *from) { return take<Floats>(from); }
inline Floats load(const bfloat16 *from) { return widen(take<Halves>(from)); }
inline Floats load_some(const float *from, long count) { return take_some<Floats>(from, 4 * count); }
inline Floats load_some(const bfloat16 *from, long count) { return widen(take_some<Halves>(from, 2 * count)); }
inline void store(float *to, Floats values) { std::memcpy(to, &values, sizeof values); }
inline void store_some(float *to, Floats values, long count) { std::memcpy(to, &values, 4 * count); }

inline float number(float value) { return value; }
inline float number(bfloat16 value) {
    uint32_t bits = uint32_t(value.bits) << 16;
    return take<float>(&bits);
}
inline void put(float *to, float value) { *to = value; }
inline void put(bfloat16 *to, float value) { // rounds to nearest, ties to even; nan stays nan
    uint32_t bits = take<uint32_t>(&value);
    to->bits = value != value ? 0x7fc0 : uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float sum(Floats values) {
    typedef float Quad __attribute__((vector_size(16)));
    Quad total = {};
    for (int i = 0; i < LANES / 4; i++) total += take<Quad>((const float *)&values + 4 * i);
    return (total[0] + total[1]) + (total[2] + total[3]);
}
inline Floats highest(Floats a, Floats b) { return a > b ? a : b; }
inline float highest(Floats values) {
    typedef float Quad __attribute__((vector_size(16)));
    Quad most = take<Quad>(&values);
    for (int i = 1; i < LANES / 4; i++) {
        Quad others = take<Quad>((const float *)&values + 4 * i);
        most = most > others ? most : others;
    }
    float a = most[0] > most[1] ? most[0] : most[1], b = most[2] > most[3] ? most[2] : most[3];
    return a > b ? a : b;
}
// the first `count` lanes of `values`, the other lanes of `others`
inline Floats first_of(Floats values, long count, Floats others) {
    Ints lane;
    for (int i = 0; i < LANES; i++) lane[i] = i;
    return lane < int(count) ? values : others;
}

// e^x to two units in the last place: 2^n e^r with |r| <= ln 2 / 2 (Cody and Waite 1980), a polynomial for e^r.
// Below -87.3 it stays at about 1e-38.
inline Floats exponential(Floats x) {
    const Floats low = all(-87.3f), high = all(88.3f), round = all(12582912.0f);
    x = x < low ? low : x; // nan stays nan
    x = x > high ? high : x;
    Floats n = (x * 1.44269504f + round) - round;
    Floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    Floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return p * (Floats)((__builtin_convertvector(n, Ints) + 127) << 23);
}
