"""Coefficients of erfc in src/engine/cpu/vector_math.hpp: erfcx(z) / t as a polynomial of t = 2 / (2 + z), 0 <= t <= 1."""

import mpmath

mpmath.mp.dps = 40
DEGREE = 14


def target(t):
    if t == 0:
        return 1 / (2 * mpmath.sqrt(mpmath.pi))
    z = 2 / mpmath.mpf(t) - 2
    if z < 25:
        return mpmath.exp(z * z) * mpmath.erfc(z) / t
    asymptotic = 1 - 1 / (2 * z**2) + 3 / (4 * z**4) - 15 / (8 * z**6) + 105 / (16 * z**8)
    return asymptotic / (z * mpmath.sqrt(mpmath.pi)) / t


def main():
    n = DEGREE + 1
    nodes = [(1 + mpmath.cos(mpmath.pi * (2 * i + 1) / (2 * n))) / 2 for i in range(n)]
    powers = mpmath.matrix(n, n)
    values = mpmath.matrix(n, 1)
    for i, x in enumerate(nodes):
        values[i] = target(x)
        for j in range(n):
            powers[i, j] = x**j
    fit = [float(c) for c in mpmath.lu_solve(powers, values)]
    worst = 0
    for k in range(1, 2001):
        t = k / 2000
        p = mpmath.polyval(list(reversed(fit)), t)
        worst = max(worst, abs(p / target(t) - 1))
    print("constant term first, largest relative error", mpmath.nstr(worst, 3))
    for c in fit:
        print(repr(c))


if __name__ == "__main__":
    main()
