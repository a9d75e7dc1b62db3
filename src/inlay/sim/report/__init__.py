"""Runs of simulations side by side: one page to look at, or one picture.

All plots are said in Vega-Lite, as data. The package vl-convert, of the extra `report`, has the
library that draws them in a page and draws them itself where a file is asked for.
"""
