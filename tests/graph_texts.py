"""Small graphs as text, without their first line: what tests of tile trees and of counts have in common."""

from __future__ import annotations

SOFTMAX = """
    input S: f32[7, 50]
    M: f32[i:7] max= S[i, l] over l:50
    E: f32[i:7, l:50] = exp(S[i, l] - M[i])
    T: f32[i:7] += E[i, l] over l:50
    P: f32[i:7, l:50] = E[i, l] / T[i]
    output P"""
NORM = """
    input X: f32[9, 40]
    S: f32[i:9] += X[i, j] over j:40
    D: f32[i:9, j:40] = X[i, j] - S[i] / 40.0
    V: f32[i:9] += D[i, j] * D[i, j] over j:40
    R: f32[i:9] = 1.0 / sqrt(V[i] / 40.0 + 0.00001)
    Y: f32[i:9, j:40] = D[i, j] * R[i]
    output Y"""
MAP = """
    input A: f32[12, 9, 5]
    input B: f32[9]
    Y: f32[i:12, j:9, l:5] = A[i, j, l] * B[j] + 1.0
    output Y"""
WINDOW = """
    input A: f32[4, 11, 10]
    Y: f32[c:4, h:9, w:8] max= A[c, h + r, w + s] over r:3, s:3
    output Y"""
CHAIN = """
    input A: f32[2, 21, 10]
    input B: f32[2, 10, 37]
    input D: f32[2, 37, 18]
    C: f32[b:2, m:21, l:37] += A[b, m, k] * B[b, k, l] over k:10
    F: f32[b:2, m:21, l:37] = max(C[b, m, l], 0.0)
    E: f32[b:2, m:21, n:18] += F[b, m, l] * D[b, l, n] over l:37
    output E"""
