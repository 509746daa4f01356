"""Sums over the sites as all that a server sees: a grid of whole numbers, noise that is shared out, pairwise masks.

`discrete` draws the noise, `grid` puts values on whole numbers modulo 2^64, `accounting` says what a round costs
against whom, `masks` hides what a site sends from everybody who does not have the other sites' messages, too. Which
methods may be run like this, and why, is in `twinflower.algorithms.summed` and in docs/sums.md.
"""
