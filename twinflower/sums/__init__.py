"""Secure summation: the server sees only sums over the sites, by distributed discrete noise and pairwise masks.

`discrete` draws the noise, `grid` encodes values as integers modulo 2^64, `noise` computes the privacy cost of a round
against different attackers, and `masks` hides each site's message, so that only the sum of all messages can be
read, or that of all but a few with `recovery`. `twinflower.sums.summed` and docs/sums.md explain which methods can run
this way, and why; `pooled` has sums without noise.
"""
