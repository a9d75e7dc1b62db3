"""Conversion of a model's files: planned as pieces, made on several threads, resumed after a kill.

`convert.convert` is the door. A product (`packed_product`, `float_product`) knows what is to be
written where; `staging` and `journal` keep what is done; `work` makes the rest.
"""
